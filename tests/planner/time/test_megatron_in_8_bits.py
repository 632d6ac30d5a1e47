"""NVIDIA's published runs in 8 bits, to which nothing was fitted: rows of nvidia_nemo.csv."""

from dataclasses import replace
from statistics import mean

import pytest

from helpers.planner.audit.constants import predicted_s
from helpers.planner.audit.rows import Row, rows

SOURCES = ("nemo-", "megatron-bridge")


def select(on_h100: bool, source: str, first: str = "", last: str = "9999") -> list[Row]:
    """Rows of some sources and dates, on Hopper or on Blackwell."""
    return [
        row
        for row in rows()
        if row.run.source.startswith(SOURCES)
        and (row.generation == "hopper") == on_h100
        and row.run.source.startswith(source)
        and first <= row.run.date <= last
    ]


def test_they_are_within_5_per_cent_in_the_mean():
    """4.2 % when this was written, of 8 to 1,024 GPUs of two generations, and +0.2 %: without the
    first table of Blackwell, whose programs were slower, and the last ones, which are faster."""
    of_blackwell = [*select(False, "nemo", "2025-05"), *select(False, "mega", "", "2026-02")]
    errors = [row.fitted for row in (*select(True, ""), *of_blackwell)]
    assert len(errors) > 40
    assert mean(map(abs, errors)) < 0.05
    assert abs(mean(errors)) < 0.03


@pytest.mark.parametrize(
    ("which", "size", "most", "worst"),
    [
        ((True, "nemo"), 9, 0.065, 0.16),
        ((True, "mega", "", "2026-02"), 8, 0.025, 0.05),
        ((True, "mega", "2026-03"), 5, 0.05, 0.10),
        ((False, "nemo"), 15, 0.08, 0.21),
        ((False, "mega", "", "2026-02"), 12, 0.055, 0.12),
        ((False, "mega", "2026-03"), 7, 0.095, 0.18),
    ],
    ids=("H100 to 25.02", "H100 to 26.02", "H100 later", "B to 25.07", "B to 26.02", "B later"),
)
def test_no_table_of_them_is_far_off(which: tuple, size: int, most: float, worst: float):
    """6.0, 1.7, 3.4, 7.6, 3.9 and 8.7 % when this was written. Llama 3.1 of 405B took 8 % less from
    26.02 to 26.04 on either generation; two tables of May 2025 are 7 % apart about one layout of
    Nemotron-4 340B."""
    errors = [row.fitted for row in select(*which)]
    assert len(errors) == size
    assert mean(map(abs, errors)) < most
    assert max(map(abs, errors)) < worst


@pytest.mark.parametrize("place", (2, 3, 4))
def test_16_bits_take_longer_and_less_than_twice_as_long(place: int):
    row = select(True, "nemo")[place]
    in_16_bits = row.run.layout.replace("precision=fp8", "precision=bf16")
    assert 1.2 < predicted_s(replace(row.run, layout=in_16_bits)) / row.fitted_s < 2


@pytest.mark.parametrize("on_h100", (True, False))
def test_megatron_is_the_edition_of_its_tables(on_h100: bool):
    row = select(on_h100, "")[0]
    assert predicted_s(replace(row.run, program="megatron")) == row.fitted_s
