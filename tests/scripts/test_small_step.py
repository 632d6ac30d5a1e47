"""The parts of a small step: all of it, and each where it belongs."""

import sys
from pathlib import Path

import pytest

from tests.support.ranks import pool

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from benchmarks.studies.small_step import PARTS, step_parts

SIZES = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2}


@pytest.mark.parametrize("degrees", [{}, {"tp": 2}, {"pp": 2, "microbatches": 2}], ids=str)
def test_they_make_up_the_step(degrees):
    ranks = 2 if degrees else 1
    step_s, parts = pool(ranks).run(step_parts, "gptj-tiny", SIZES, 4, 32, degrees)[0]
    assert tuple(parts) == PARTS
    assert sum(parts.values()) == pytest.approx(step_s)
    assert all(seconds >= 0 for seconds in parts.values())
    assert all(parts[part] > 0 for part in PARTS if part != "messages")
    assert (parts["messages"] > 0.02 * step_s) == (ranks > 1)
