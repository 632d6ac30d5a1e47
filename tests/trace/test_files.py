"""Traces as files: what is broken is refused in one line, and what only looks so is read."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import record_function

from helpers.engine.errors import UserError
from helpers.engine.pipeline.schedules import Action
from helpers.engine.pipeline.simulator import Span
from helpers.trace.recorder import FACTS, profiled
from helpers.trace.timelines import read_timelines, write_timelines
from helpers.trace.traces import read_traces


def taken(folder: Path, name: str = "forward") -> dict[str, Any]:
    """A rank's file of steps 2 to 4, with a range of this name in each."""
    for _ in profiled(range(5), folder, 2, 4):
        with record_function(name):
            torch.ones(8).sum()
    with gzip.open(folder / "rank-0.json.gz", "rt") as file:
        return {} if '"' in name else json.load(file)


def write(folder: Path, document: Any, rank: int = 0) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"rank-{rank}.json.gz").write_bytes(gzip.compress(json.dumps(document).encode(), 1))


def with_event(document: dict[str, Any], **event: Any) -> dict[str, Any]:
    return {**document, "traceEvents": [*document["traceEvents"], event]}


def without(document: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name != key}


def of_no_time(document: dict[str, Any]) -> dict[str, Any]:
    short = ({**one, "dur": 0} if "dur" in one else one for one in document["traceEvents"])
    return {**document, "traceEvents": list(short)}


SLICE = {"ph": "X", "name": "aten::add", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 1.0, "dur": 1.0}
BROKEN = {
    "no events": lambda one: without(one, "traceEvents"),
    "no slices": lambda one: {**one, "traceEvents": []},
    "no origin": lambda one: without(one, "baseTimeNanoseconds"),
    "no rank": lambda one: {**one, FACTS: without(one[FACTS], "rank")},
    "no duration": lambda one: with_event(one, **without(SLICE, "dur")),
    "a time in words": lambda one: with_event(one, **{**SLICE, "ts": "1.0"}),
    "a time that is no number": lambda one: with_event(one, **{**SLICE, "ts": float("nan")}),
    "a time of no clock": lambda one: with_event(one, **{**SLICE, "ts": 2.0**64}),
    "a time that is a truth": lambda one: with_event(one, **{**SLICE, "ts": True}),
    "a name that is none": lambda one: with_event(one, **{**SLICE, "name": 7}),
    "a duration below 0": lambda one: with_event(one, **{**SLICE, "dur": -1.0}),
    "memory without bytes": lambda one: with_event(one, ph="i", name="[memory]", ts=1.0, args={}),
    "arguments that are none": lambda one: with_event(one, **SLICE, args=7),
    "a call that is no name": lambda one: with_event(one, **SLICE, args={"Collective name": 7}),
    "a thread without a name": lambda one: with_event(one, ph="M", name="thread_name"),
    "ranks in words": lambda one: {**one, "distributedInfo": {"world_size": "one"}},
    "an offset in words": lambda one: {**one, FACTS: {**one[FACTS], "offset_ns": "0"}},
    "a limit of 0": lambda one: {**one, FACTS: {**one[FACTS], "memory": {"GPU memory": [1, 0]}}},
    "a step that takes no time": lambda one: of_no_time(one),
    "a step that is noted twice": lambda one: {**one, FACTS: {**one[FACTS], "steps": [2, 2, 3]}},
    "a step that is not there": lambda one: {**one, FACTS: {**one[FACTS], "steps": [2, 9]}},
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_file_without_what_is_asked_of_it_is_refused(what, tmp_path):
    write(tmp_path, BROKEN[what](taken(tmp_path)))
    with pytest.raises(UserError, match=r"rank-0\.json\.gz is no trace of this profiler"):
        read_traces(tmp_path)


def test_a_file_that_was_damaged_is_refused(tmp_path):
    taken(tmp_path)
    path = tmp_path / "rank-0.json.gz"
    whole = path.read_bytes()
    path.write_bytes(whole[:200] + bytes(byte ^ 255 for byte in whole[200:210]) + whole[210:])
    with pytest.raises(UserError, match="or a broken one"):
        read_traces(tmp_path)
    path.write_bytes(gzip.compress(b"[" * 200_000))
    with pytest.raises(UserError, match="or a broken one"):
        read_traces(tmp_path)


@pytest.mark.parametrize("name", ['say "hi"', '"', "step through the rows", "step 3", "7"])
def test_a_range_may_be_called_anything_without_a_colon_or_a_hash(name, tmp_path):
    taken(tmp_path, name)
    [trace] = read_traces(tmp_path)
    written = {name, name.replace('"', "'")}  # the second by torch from 2.15 on
    assert max(len(trace.ranges(one)) for one in written) == len(trace.steps) == 3


@pytest.mark.parametrize("call", ["all_to_all", "all_to_allv"])
def test_an_all_to_all_of_nccl_is_communication(call, tmp_path):
    assert communication(tmp_path, {"Collective name": call}) == [f"ncclDevKernel_{call}"]


@pytest.mark.parametrize(
    "args", [{}, {"Collective name": "send"}, {"Collective name": "coalesced"}]
)
def test_a_message_of_nccl_that_is_posted_early_is_none(args, tmp_path):
    assert communication(tmp_path, args) == []


def communication(folder: Path, args: dict[str, str]) -> list[str]:
    """What a kernel of NCCL's sends and receives counts as, with torch's words beside it."""
    name = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    kernel = {**SLICE, "cat": "kernel", "name": name, "args": args}
    write(folder, with_event(taken(folder), **kernel))
    [trace] = read_traces(folder)
    assert trace.device_work == []
    return [one.name for one in trace.communication]


def test_ranks_are_held_together_by_the_steps_that_all_have(tmp_path):
    document = taken(tmp_path)
    document["distributedInfo"] = {"world_size": 2}
    write(tmp_path, document)

    def second(*steps: int) -> None:
        write(tmp_path, {**document, FACTS: {**document[FACTS], "rank": 1, "steps": steps}}, 1)

    second(3, 4)
    for trace in read_traces(tmp_path):
        assert [step.name for step in trace.steps] == ["step 3", "step 4"]
    document[FACTS]["steps"] = [2]
    write(tmp_path, document)
    second(3, 4)
    with pytest.raises(UserError, match="other steps from rank to rank"):
        read_traces(tmp_path)
    write(tmp_path, document, 1)
    with pytest.raises(UserError, match=r"the traces of ranks \[0, 0\], of 2 ranks"):
        read_traces(tmp_path)


def test_ranks_are_on_one_clock_that_starts_at_0(tmp_path):
    """Rank 1's origin is 3 ms later by its clock, which is 1 ms ahead."""
    document = {**taken(tmp_path), "distributedInfo": {"world_size": 2}}
    write(tmp_path, document)
    second = {"rank": 1, "offset_ns": document[FACTS]["offset_ns"] + 10**6}
    origin = {"baseTimeNanoseconds": document["baseTimeNanoseconds"] + 3 * 10**6}
    write(tmp_path, {**document, **origin, FACTS: {**document[FACTS], **second}}, 1)
    one, other = read_traces(tmp_path)
    assert one.slices[0].start_s == pytest.approx(0, abs=2e-9)
    later_s = [b.start_s - a.start_s for a, b in zip(one.slices, other.slices, strict=True)]
    assert later_s == pytest.approx([2e-3] * len(later_s), abs=2e-9)
    assert [a.end_s - a.start_s for a in one.slices] == pytest.approx(
        [event["dur"] * 1e-6 for event in slices_of(document)], abs=2e-9
    )


def test_threads_are_called_as_the_file_says(tmp_path):
    named = {"ph": "M", "name": "thread_name", "pid": 1, "tid": 9, "args": {"name": "carrier"}}
    write(tmp_path, with_event(taken(tmp_path), **named))
    [trace] = read_traces(tmp_path)
    assert trace.threads[1, 9] == "carrier"


def slices_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Its events that take time, in a trace's order."""
    events = [one for one in document["traceEvents"] if one["ph"] == "X" and one["cat"] != "Trace"]
    return sorted(events, key=lambda one: (one["ts"], -one["dur"]))


def steps_of(*span: object) -> str:
    return json.dumps({"steps": [[[span]]]})


@pytest.mark.parametrize(
    "text",
    [
        steps_of(1, 2),
        steps_of("Q", 0, 0, 1.0, 2.0),
        steps_of("F", "0", 0, 1.0, 2.0),
        steps_of("F", 0, 0, 1.0, float("nan")),
        steps_of("F", 0, 0, 2.0, 1.0),
        steps_of("F", 0, 0, 1.0, 10**400),
        "[" * 100_000,
    ],
)
def test_timelines_that_are_none_are_refused(text, tmp_path):
    path = tmp_path / "timeline.json"
    path.write_text(text)
    with pytest.raises(UserError, match="holds no timelines"):
        read_timelines(path)


def test_a_step_begins_at_0_and_keeps_its_times(tmp_path):
    """Rank 1 is the first to run here, and the clock is the epoch's."""
    at_s, path = 2.0**30, tmp_path / "timeline.json"
    forward, backward = ["F", 0, 2, at_s + 2, at_s + 3.5], ["B", 1, 2, at_s + 1, at_s + 1.25]
    write_timelines(path, [[[forward], [backward]], [[forward], []]])
    both, alone = read_timelines(str(path))
    assert both.spans == ((Span(Action("F", 0, 2), 1, 2.5),), (Span(Action("B", 1, 2), 0, 0.25),))
    assert alone.spans == ((Span(Action("F", 0, 2), 0, 1.5),), ())
