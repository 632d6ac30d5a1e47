"""The profiler against real ranks: clocks, traces, memory, and every fault put in on purpose."""

import gzip
import itertools
import json
import time
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from helpers.engine.errors import UserError
from helpers.engine.files.weights import load_config
from helpers.lab.runs.run import load_run
from helpers.trace.clocks import clock_offset
from helpers.trace.findings import THRESHOLDS, find, write_findings
from helpers.trace.intervals import both, clip, length, union, without
from helpers.trace.memory import HELD, memory_of_step
from helpers.trace.recorder import FACTS, RANGES, profiled
from helpers.trace.traces import Trace, read_traces
from tests.support import faults, scripts, trace_format
from tests.support.matrix import part
from tests.support.ranks import pool

TRIES = 5  # of a run: other programs can keep a core from one of its ranks, or from a short step

spans = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)).map(lambda s: (s[0], sum(s))))


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """The traces of a run with this fault, taken once; another try is another run."""

    @cache
    def run(fault: str, number: int) -> tuple[Path, list[Trace]]:
        folder = tmp_path_factory.mktemp("run")
        pool(faults.ranks(fault)).run(faults.train, folder / "traces", fault)
        return folder, read_traces(folder / "traces")

    return lambda fault, number=0: run(fault, number)


def offset(shift_ns: int) -> dict[str, int]:
    late = shift_ns * dist.get_rank()
    return clock_offset(dist.group.WORLD, lambda: time.time_ns() + late)


def covered(intervals) -> set[int]:
    return {at for start, end in intervals for at in range(start, end)}


@given(spans, spans)
def test_intervals_are_sets_of_time(one, other):
    a, b = union(one), union(other)
    assert covered(a) == covered(one) and length(a) == len(covered(one))
    assert covered(without(a, b)) == covered(one) - covered(other)
    assert covered(both(a, b)) == covered(one) & covered(other)
    assert covered(clip(one, 5, 20)) == covered(one) & set(range(5, 20))
    assert all(end < start for (_, end), (start, _) in itertools.pairwise(a))


@pytest.mark.parametrize(
    ("first", "last", "wrong"), [(0, 3, "first"), (1.5, 3, "first"), (3, "4", "last")]
)
def test_steps_that_are_no_whole_numbers_are_refused(first, last, wrong, tmp_path):
    with pytest.raises(UserError, match=f"{wrong} must be a whole number of at least 1"):
        profiled([], tmp_path, first, last)


@pytest.mark.parametrize(("first", "last"), [(1, 3), (4, 3), (2, 3)])
def test_steps_that_cannot_be_traced_are_refused(first, last, tmp_path):
    with pytest.raises(UserError, match=f"steps {first} to {last} cannot be traced"):
        profiled([], tmp_path, first, last, done=2)


def test_batches_come_through_and_a_short_run_leaves_its_steps(tmp_path):
    assert list(profiled("abcd", tmp_path, 3, 9)) == list("abcd")
    [trace] = read_traces(tmp_path)
    assert [step.name for step in trace.steps] == ["step 3", "step 4"]


def test_a_run_that_stops_leaves_its_whole_steps(tmp_path):
    for batch in profiled("abcd", tmp_path, 1, 4):
        if batch == "c":
            break
    [trace] = read_traces(tmp_path)
    assert [step.name for step in trace.steps] == ["step 1", "step 2"]


def test_what_is_no_trace_is_refused(tmp_path):
    with pytest.raises(UserError, match="holds no traces"):
        read_traces(tmp_path)
    (tmp_path / "rank-0.json.gz").write_bytes(b"half")
    with pytest.raises(UserError, match="is no trace"):
        read_traces(tmp_path)


@pytest.mark.slow
def test_a_clock_that_is_ahead_is_found():
    first, second = pool(2).run(offset, 5_000_000)
    assert first == {"offset_ns": 0, "error_ns": 0}
    assert abs(second["offset_ns"] - 5_000_000) <= second["error_ns"] + 10_000 < 2_000_000


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize("healthy", part(["pipeline"], [""]))
def test_a_healthy_run_reports_nothing(healthy, tmp_path):
    for number in range(TRIES):
        folder = tmp_path / str(number)
        pool(2).run(faults.train, folder, healthy)
        found = find(read_traces(folder))
        if not found:
            return
    raise AssertionError(found)


PLANTED = {
    "input": (1,),
    "launch": (0,),
    "communication": (0, 1),
    "bubble": (0, 1),
    "straggler": (1,),
    "memory": (0,),
}


@pytest.mark.alone
@pytest.mark.slow
# notebook 7 finds five of them
@pytest.mark.parametrize(
    "fault", part(("memory", "straggler"), ("input", "launch", "communication", "bubble"))
)
def test_a_planted_fault_is_found_where_it_is(fault, traced):
    for number in range(TRIES):
        found = {one.kind: one for one in find(traced(fault, number)[1])}
        if {kind: one.ranks for kind, one in found.items()} == {fault: PLANTED[fault]}:
            break
    assert set(found) == {fault}, [one.words for one in found.values()]
    assert found[fault].ranks == PLANTED[fault]
    assert found[fault].amount > THRESHOLDS[fault]


@pytest.mark.slow
def test_every_range_of_a_step_is_there(traced):
    for trace in traced("bubble")[1]:
        for step in trace.steps:
            names = {s.name for s in trace.named if step.start_s <= s.start_s < step.end_s}
            assert names == {*RANGES, "my own"}


@pytest.mark.slow
def test_a_reduce_scatter_of_sends_and_receives_is_communication(traced):
    """One for each block, and one for what is left; its pieces are not counted again."""
    units = load_config("gptj-tiny").n_layer + 1
    for trace in traced("sharded")[1]:
        seen = Counter(one.name for one in trace.communication)
        carrier = next(name for name in seen if name.endswith(":reduce_scatter"))
        assert seen[carrier] == units * len(trace.steps)
        kinds = {name.partition(":")[2] for name in seen}
        assert kinds <= {"reduce_scatter", "all_gather", "all_reduce"}


@pytest.mark.slow
def test_clocks_are_aligned(traced):
    """No rank leaves an all-reduce before the last one has come."""
    traces = traced("straggler")[1]
    error_s = sum(trace.facts["error_ns"] for trace in traces) * 1e-9
    calls = [[s for s in t.communication if s.name.endswith(":all_reduce")] for t in traces]
    assert len(calls[0]) == len(calls[1]) >= faults.LAST - faults.FIRST
    for one, other in zip(*calls):
        assert max(one.start_s, other.start_s) <= min(one.end_s, other.end_s) + error_s


@pytest.mark.slow
def test_a_rank_whose_clock_is_ahead_is_shifted_back(traced, tmp_path):
    folder, before = traced("straggler")
    for path in (folder / "traces").iterdir():
        document = json.loads(gzip.decompress(path.read_bytes()))
        if document[FACTS]["rank"] == 1:
            document["baseTimeNanoseconds"] += 10**10
            document[FACTS]["offset_ns"] += 10**10
        (tmp_path / path.name).write_bytes(gzip.compress(json.dumps(document).encode(), 1))
    assert [t.steps for t in read_traces(tmp_path)] == [t.steps for t in before]
    (tmp_path / "rank-0.json.gz").unlink()
    with pytest.raises(UserError, match=r"ranks \[1\], of 2 ranks"):
        read_traces(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["straggler", "bubble"])
def test_the_merged_trace_is_well_formed(fault, traced):
    folder, traces = traced(fault)
    words = write_findings(folder)
    found = trace_format.parse(folder / "trace.json")
    assert list(found) == ["rank 0", "rank 1"]
    for trace, counts in zip(traces, found.values()):
        assert counts["X"] == len(trace.slices)
        assert counts["C"] == len(trace.memory)
    report = json.loads((folder / "findings.json").read_text())
    assert [one["words"] for one in report["findings"]] == words
    assert report["steps"] == list(range(faults.FIRST, faults.LAST + 1))
    assert len(report["times"]) == len(report["steps"]) and len(report["times"][0]) == 2


WELL = [
    {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "rank 0"}},
    {"ph": "M", "name": "thread_name", "pid": 0, "tid": 0, "args": {"name": "main"}},
    {"ph": "X", "name": "a", "cat": "x", "pid": 0, "tid": 0, "ts": 1.0, "dur": 2.0},
    {"ph": "X", "name": "b", "cat": "x", "pid": 0, "tid": 0, "ts": 1.5, "dur": 1.5},
]


@pytest.mark.parametrize(
    ("event", "change"),
    [
        (3, {"dur": 1.501}),
        (3, {"dur": -1.0}),
        (3, {"ts": "1"}),
        (3, {"ph": "Y"}),
        (3, {"tid": "main"}),
        (3, {"tid": 1}),
        (3, {"pid": 1}),
        (0, {"name": "process"}),
    ],
)
def test_the_parser_of_the_format_can_fail(event, change, tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": WELL}))
    assert trace_format.parse(path) == {"rank 0": {"M": 2, "X": 2}}
    broken = [{**one, **change} if i == event else one for i, one in enumerate(WELL)]
    path.write_text(json.dumps({"traceEvents": broken}))
    with pytest.raises(ValueError):
        trace_format.parse(path)


@pytest.mark.slow
def test_memory_by_category_follows_the_allocator(traced):
    trace = traced("straggler")[1][0]
    use = memory_of_step(trace)
    step = trace.steps[-1]
    totals = [c.total for c in trace.memory if step.start_s <= c.at_s < step.end_s]
    assert {now - total for now, total in zip(use.total, totals, strict=True)} == {
        use.total[0] - totals[0]
    }
    states = trace.facts["state_bytes"]
    for name in HELD:
        assert min(use.bytes[name]) >= states[name] > 0
    config = load_config("gptj-tiny")
    head = 4 * config.vocab_size * (config.hidden_size + 1)  # made in the forward, with the loss
    gradients, activations = use.bytes["gradients"], use.bytes["activations"]
    assert max(gradients) >= states["parameters"] - head
    assert max(map(sum, zip(gradients, activations, strict=True))) >= states["parameters"]
    assert activations[gradients.index(max(gradients))] >= head
    assert max(use.bytes["activations"]) > 2**20
    assert all(min(values) >= 0 for values in use.bytes.values())
    assert sum(use.peak.values()) == max(use.total)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["straggler", "bubble"])
def test_the_pictures_say_their_numbers(fault, traced):
    pytest.importorskip("pandas")
    pytest.importorskip("matplotlib")
    from helpers.lab.drawings.profile_trace import draw_memory, draw_timeline
    from helpers.lab.figures.display import png

    traces = traced(fault)[1]
    fig, table, alt = draw_timeline(traces)
    assert png(fig, alt).startswith(b"\x89PNG")
    for trace, (_, row) in zip(traces, table.iterrows()):
        step = trace.steps[-1]
        assert row["step"] == pytest.approx(1e3 * (step.end_s - step.start_s), abs=0.051)
        assert row[[*RANGES, "my own"]].sum() <= row["step"] + 0.05 * (len(RANGES) + 2)  # rounded
        assert f"rank {trace.rank} takes {row['step']:.0f} ms" in alt
    fig, table, alt = draw_memory(traces[0])
    assert png(fig, alt).startswith(b"\x89PNG")
    assert table["share"].sum() == pytest.approx(2)  # all of it, and its total
    assert f"{table['bytes at the peak']['total'] / 1e6:.3g} MB" in alt


@pytest.mark.slow
def test_the_script_profiles_a_run(tmp_path):
    sizes = {"batch_size": 2, "seq_len": 16, "steps": 4, "layers": 2}
    done = scripts.process(**sizes, profile="2:3", out=tmp_path / "run")
    assert done.returncode == 0, done.stderr
    run = load_run(tmp_path / "run")
    assert [step.name for step in run.traces[0].steps] == ["step 2", "step 3"]
    assert trace_format.parse(run.path / "trace.json").keys() == {"rank 0"}
    words = list(run.findings["words"]) or ["nothing stands out in steps 2 to 3"]
    assert set(words) <= set(done.stdout.splitlines())


@pytest.mark.parametrize(
    ("value", "says"),
    [("3:5", "the run takes 4"), ("4:3", "FIRST:LAST"), ("0:2", "FIRST:LAST"), ("3", "FIRST")],
)
def test_the_script_refuses_steps_that_it_does_not_take(value, says, tmp_path):
    assert says in scripts.refusal("--steps=4", f"--profile={value}", out=tmp_path / "run")
