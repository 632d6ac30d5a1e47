"""Health before a job: who meets whom, who is named, what nvidia-smi says, and a rank made slow."""

import json
import sys
from argparse import Namespace
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.engine.errors import UserError
from helpers.lab import ranks_health
from helpers.lab.cluster.described_run import describe
from helpers.lab.cluster.sagemaker import estimator_arguments
from helpers.lab.cluster.slurm import slurm_script
from helpers.lab.launch.launch import launch
from helpers.lab.runs.failure_report import RunFailed
from helpers.planner.hardware.cluster import make_cluster
from helpers.planner.hardware.links import Link
from helpers.planner.hardware.lookup import find_gpu
from helpers.planner.measure import gpu_state, health, health_verdict
from helpers.planner.measure.health import RankHealth, rounds
from helpers.planner.measure.health_verdict import expected_rates, judge
from helpers.train.arguments import parse
from helpers.train.preflight import preflight
from tests.support import scripts
from tests.support.ranks import pool

RATES = {"product": 5e10, "memory": 8e9, "disk write": 5e8, "disk read": 1e9, "all-reduce": 4e8}
GPU = dict(
    zip(gpu_state.FIELDS, ("GPU-1", 81559.0, 600.0, 0.0, 1980.0, 1980.0, "Not Active", 41.0))
)
SMALL = {"layers": 2, "hidden": 32, "heads": 2, "seq_len": 16, "steps": 1, "batch_size": 4}


def ranks(world: int, nodes: int = 1, device: str = "cuda") -> list[RankHealth]:
    """Healthy ones, all alike."""
    name, gpu = ("cpu", {}) if device == "cpu" else ("NVIDIA H100 80GB HBM3", GPU)
    node = [f"node-{rank * nodes // world}" for rank in range(world)]

    def link(a: int, b: int) -> tuple[float, float]:
        return (1e-5, 3e11) if node[a] == node[b] else (3e-5, 2.5e10)

    return [
        RankHealth(node[a], name, dict(RATES), {b: link(a, b) for b in range(a + 1, world)}, gpu)
        for a in range(world)
    ]


def slowed(found: list[RankHealth], rank: int, kind: str, factor: float) -> list[RankHealth]:
    """The same with one rank's product, memory, disk, links or clock at a share of its pace."""
    found = list(found)
    one = found[rank]
    if kind == "link":
        for a, other in enumerate(found):
            slow = {
                b: (s, rate * factor if rank in (a, b) else rate)
                for b, (s, rate) in other.links.items()
            }
            found[a] = replace(other, links=slow)
    elif kind == "clock":
        found[rank] = replace(one, gpu=one.gpu | {"clocks.sm": one.gpu["clocks.sm"] * factor})
    else:
        found[rank] = replace(one, rates=one.rates | {kind: one.rates[kind] * factor})
    return found


@given(st.integers(1, 40))
def test_every_pair_meets_once_and_no_rank_has_two_opponents(world: int) -> None:
    played = list(rounds(world))
    met = [(a, b) for one in played for a, b in one.items() if a < b]
    assert sorted(met) == [(a, b) for a in range(world) for b in range(a + 1, world)]
    for one in played:
        assert all(one[b] == a and a != b for a, b in one.items())


def test_a_large_world_does_not_take_for_ever() -> None:
    assert len(list(rounds(1024))) == health.MOST_ROUNDS


@given(
    st.integers(1, 8),
    st.sampled_from(["cpu", "cuda"]),
    st.lists(st.floats(0.9, 1.1), min_size=64, max_size=64),
)
def test_what_differs_a_little_is_healthy(world: int, device: str, noise: list[float]) -> None:
    found = ranks(world, device=device)
    for rank in range(world):
        for place, kind in enumerate((*RATES, "link")):
            found = slowed(found, rank, kind, noise[(8 * rank + place) % 64])
    assert judge(found) == []


def named(found: list[RankHealth]) -> set[int]:
    return {finding.rank for finding in judge(found) if finding.slower}


def check_judgement() -> None:
    """One slow rank of any world is named, it alone, and the words hold its node and its figure."""
    for world in (2, 3, 4, 8):
        for kind in ("product", "memory", "clock"):
            for rank in range(world):
                [finding] = judge(slowed(ranks(world), rank, kind, 0.5))
                assert finding.rank == rank and finding.slower
                assert finding.words.startswith(f"rank {rank} (node-0): {kind} ")
                assert "50% less than its peers'" in finding.words
    for world in (3, 4, 8):
        for rank in range(world):
            assert named(slowed(ranks(world), rank, "link", 0.25)) == {rank}
    # a node's network: both of its ranks have slow links to the others, and none inside
    found = ranks(6, nodes=3)
    for rank in (0, 1, 2, 3):
        links = {b: (s, r / 4 if b in (4, 5) else r) for b, (s, r) in found[rank].links.items()}
        found[rank] = replace(found[rank], links=links)
    assert named(found) == {4, 5}
    # the same order on every rank, each of which judges for itself
    found = ranks(4)
    for kind in ("clock", "memory", "product"):
        found = slowed(found, 1, kind, 0.5)
    kinds = [one.words.split(": ")[1].split()[0] for one in judge(found)]
    assert kinds == ["product", "memory", "clock"]
    # one cable: none of its two ranks is to blame
    found = ranks(4)
    found[1] = replace(found[1], links=found[1].links | {3: (1e-5, 2e10)})
    assert [one.words.split(":")[0] for one in judge(found)] == [
        "link of ranks 1 (node-0) and 3 (node-0)"
    ]
    # a disk is its node's: one rank's turn at it says nothing
    assert judge(slowed(ranks(4), 1, "disk write", 0.1)) == []
    found = ranks(6, nodes=3)
    for rank in (2, 3):
        found = slowed(found, rank, "disk write", 0.1)
    [finding] = judge(found)
    assert finding.words.startswith("node node-1: disk write 0.05 GB/s, 90% less than")


def test_who_is_slow_is_named() -> None:
    check_judgement()
    assert judge(slowed(ranks(4, device="cpu"), 1, "product", 0.55)) == []  # cores are shared
    assert named(slowed(ranks(4, device="cpu"), 1, "product", 0.3)) == {1}
    assert judge(slowed(ranks(2), 1, "link", 0.1)) == []  # with what would it be compared?


def _with_itself(rates, may_lag):
    middle = median(rates.values())
    return [(who, middle) for who, rate in rates.items() if rate < (1 - may_lag) * middle]


def _first_is_right(rates, may_lag):
    first = next(iter(rates.values()), 0.0)
    return [(who, first) for who, rate in rates.items() if rate < (1 - may_lag) * first]


@pytest.mark.parametrize("fault", [_with_itself, _first_is_right, lambda rates, may_lag: []])
def test_a_wrong_judgement_would_be_found(monkeypatch, fault) -> None:
    monkeypatch.setattr(health_verdict, "_laggards", fault)
    with pytest.raises((AssertionError, ValueError)):
        check_judgement()


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("ecc.errors.uncorrected.volatile.total", 2.0, "2 uncorrected ECC errors"),
        ("clocks_event_reasons.hw_slowdown", "Active", "slows its clocks down"),
        ("memory.used", 40000.0, "49% of its memory taken"),
    ],
)
def test_what_a_gpu_says_of_itself(field: str, value: object, words: str) -> None:
    found = ranks(4)
    found[2] = replace(found[2], gpu=GPU | {field: value})
    [finding] = judge(found)
    assert finding.slower and finding.words.startswith("rank 2 (node-0): its GPU")
    assert words in finding.words


def test_all_ranks_alike_are_held_against_what_is_known() -> None:
    table = expected_rates(ranks(2), None)
    assert table["memory"] < find_gpu("H100").memory_bytes_per_s
    assert {one.slower for one in judge(ranks(2), table)} == {False}
    assert expected_rates(ranks(2, device="cpu"), None) == {}
    cluster = replace(make_cluster("p4d.24xlarge"), matmul_flops={"fp32": 1e11}, together=2.0)
    record = replace(cluster, memory_bytes_per_s=8e9, measured={"send": Link(3e11, 1e-5)})
    # two of four ranks have a core at a time, so half of what one reaches alone is all right
    halves = [replace(one, rates=one.rates | {"memory": 4e9}) for one in ranks(4)]
    assert judge(halves, expected_rates(halves, record)) == []
    two = [replace(halves[0], links={1: (1e-5, 5e10)}), replace(halves[1], links={})]
    words = [one.words for one in judge(two, expected_rates(two, record))]
    assert [said.split(":")[0][:6] for said in words] == ["rank 0", "rank 1"] * 2 + ["link o"]
    assert "memory 4 GB/s, below the 8 GB/s known of this machine" in words[2]


def test_a_gpu_without_a_known_fp32_rate_is_held_against_its_memory_alone() -> None:
    """`doctor --ranks` ended with a KeyError there."""
    found = [replace(one, device="NVIDIA B200") for one in ranks(2)]
    table = expected_rates(found, None)
    assert table == {"memory": pytest.approx(0.9 * find_gpu("B200").memory_bytes_per_s)}
    assert {one.words.split()[3] for one in judge(found, table)} == {"memory"}


def test_the_best_of_two_tries_counts() -> None:
    one, other = slowed(ranks(2), 0, "product", 0.5), slowed(ranks(2), 0, "link", 0.5)
    assert [health._better(*two) for two in zip(one, other)] == ranks(2)


def test_what_nvidia_smi_writes() -> None:
    """Its CSV, without heads and units, of a GPU with all of it and of one that lacks ECC."""
    text = (
        "GPU-5a1c8f2e-0b3d-4c11-9e6f-7d2a8b4c9e10, 81559, 1, 0, 1980, 1980, Not Active, 41\n"
        "GPU-91b7d3aa-6c5e-42f8-8a70-13e9f4d2c6b5, 8192, 353, [N/A], 1815, 2100, Active, 68\n"
        "Failed to initialize NVML: Driver/library version mismatch\n"
    )
    first, second = gpu_state.parse(text)
    assert first["uuid"].startswith("GPU-5a1c") and first["memory.total"] == 81559.0
    assert first["ecc.errors.uncorrected.volatile.total"] == 0.0
    assert second["ecc.errors.uncorrected.volatile.total"] is None
    assert second["clocks_event_reasons.hw_slowdown"] == "Active"
    assert gpu_state.parse("No devices were found\n") == []


def test_the_report_has_a_line_for_each(tmp_path: Path) -> None:
    found = slowed(ranks(4), 3, "product", 0.1)
    path = tmp_path / "health.json"
    path.write_text(json.dumps([asdict(one) for one in found]))
    assert health.read_health(path) == found
    report = ranks_health.report_of(found, judge(found))
    names = [line.name for line in report.lines]
    pairs = ["0-1", "0-2", "0-3", "1-2", "1-3", "2-3"]
    expected = [*(f"rank {rank}" for rank in range(4)), *(f"link {pair}" for pair in pairs)]
    assert names == [*expected, "rank 3"] and not report.ok
    assert report.ready == "Not ready: slower than their peers: rank 3."
    assert "1980 of 1980 MHz, 0 uncorrected ECC errors" in str(report)
    silent = [replace(one, gpu=GPU | {"clocks.sm": None}) for one in ranks(2)]
    assert "clocks unknown, 0 uncorrected" in str(ranks_health.report_of(silent, judge(silent)))
    many = ranks_health.report_of(ranks(16), [])
    assert many.ok and any("120 pairs" in line.found for line in many.lines)


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="at least 2"):
        ranks_health.ranks_report(1)
    with pytest.raises(UserError, match="calibrate"):
        ranks_health.ranks_report(2, tmp_path / "none.json")
    said = scripts.refusal("--preflight", "loudly", out=tmp_path / "x")
    assert "invalid choice: 'loudly'" in said
    said = scripts.refusal("--preflight-record", tmp_path / "none.json", out=tmp_path / "x")
    assert "calibrate() writes it" in said


def test_cluster_scripts_pass_it_on() -> None:
    run = describe(
        "scripts/train.py", nodes=2, nproc=8, model="gptj-tiny", dp_shard=16, preflight=True
    )
    assert parse(run.words[1:]).preflight == "refuse"
    assert "--preflight --out" in slurm_script(run, minutes=9)
    job = estimator_arguments(run, image="i", role="r", instance_type="p4d.24xlarge")
    words = scripts.script("cluster/from_hyperparameters").flags(
        [
            word
            for name, value in job["hyperparameters"].items()
            for word in (f"--{name}", str(value))
        ]
    )
    assert parse(words).preflight == "refuse"
    warned = describe("scripts/train.py", preflight="warn")
    assert parse(warned.words[1:]).preflight == "warn"


@pytest.fixture
def dream(tmp_path: Path) -> Path:
    """A record that no machine reaches."""
    record = {
        "name": "dream",
        "nodes": 1,
        "devices_per_node": 2,
        "memory_bytes": 1e9,
        "matmul_flops": {"fp32": 1e18},
        "memory_bytes_per_s": 1e18,
        "intra": asdict(Link(1e18, 1e-9)),
        "inter": asdict(Link(1e18, 1e-9)),
        "measured": {},
    }
    path = tmp_path / "record.json"
    path.write_text(json.dumps({"cluster": record}))
    return path


def warnings(says: str | None, record: Path) -> list[str]:
    args = Namespace(preflight=says, preflight_record=record, out=record.parent)
    return preflight(args, torch.device("cpu"))


def test_what_a_record_alone_says_is_no_reason_to_refuse(dream: Path) -> None:
    """One rank has no peer to be slower than."""
    for says in ("refuse", "warn"):
        [found] = pool(1).run(warnings, says, dream)
        assert found and all(one.startswith("preflight: rank 0 (") for one in found)
    assert pool(1).run(warnings, None, dream) == [[]]


@pytest.mark.slow
def test_a_preflight_that_warns(dream: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = scripts.process(
        ranks=2, dp_replicate=2, out=out, preflight="warn", preflight_record=dream, **SMALL
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads((out / "summary.json").read_text())
    for words in ("rank 0", "rank 1", "link of ranks 0"):
        assert any(one.startswith(f"preflight: {words}") for one in summary["warnings"])
    assert done.stdout.count("warning: preflight: rank 1") == 2  # product and memory, said once
    assert summary["phases_s"]["check"] > 0.5


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs a core for one process")
def test_a_rank_beside_a_busy_neighbour_is_refused(tmp_path: Path, warm) -> None:
    slow = "tests/support/fault_scripts/slow_rank.py"
    with pytest.raises(RunFailed) as failed:
        launch(
            slow,
            nproc=2,
            out=tmp_path / "run",
            ranks=warm,
            show=False,
            dp_replicate=2,
            preflight=True,
            **SMALL,
        )
    assert failed.value.exit_code == 2
    assert "preflight: rank 1 (" in str(failed.value) and "rank 0 (" not in str(failed.value)
    left = {path.name for path in (tmp_path / "run").iterdir()}
    assert not left & {"metrics.jsonl", "summary.json", "checkpoints", ".lock"}
