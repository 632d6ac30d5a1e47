"""The ranks' traces as one timeline, for ui.perfetto.dev.

    write_timeline(traces, "runs/one/trace.json")

Source: Chrome's Trace Event Format. `X` events are slices, `M` events name processes and threads,
`C` events are counters; times are in microseconds. Slices of one row must nest: Perfetto drops one
that only overlaps, so it gets a row of its own.
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from helpers.engine.errors import as_path
from helpers.engine.files.whole import replace_text
from helpers.trace.traces import Event, Slice, Thread, Trace

ROUNDING_NS = 10  # that torch may leave a slice longer than the one it is in


def write_timeline(traces: list[Trace], path: str | Path) -> None:
    """One file of all ranks: each a process, its threads and streams rows in it."""
    events = [event for trace in traces for event in _process(trace)]
    text = json.dumps({"displayTimeUnit": "ms", "traceEvents": events}, separators=(",", ":"))
    replace_text(as_path(path), text)


def _process(trace: Trace) -> Iterator[Event]:
    """A rank's events: the main thread first, then the others and the streams."""
    rank = trace.rank
    yield _name("process_name", rank, 0, name=f"rank {rank}")
    yield _name("process_sort_index", rank, 0, sort_index=rank)
    by_thread: dict[Thread, list[Slice]] = defaultdict(list)
    for one in trace.slices:
        by_thread[one.thread].append(one)
    row = 0
    for thread in sorted(by_thread, key=lambda one: (one != trace.main, str(one))):
        name = "main" if thread == trace.main else trace.threads.get(thread, f"stream {thread[1]}")
        lanes: list[list[int]] = []  # of each: the ends of the slices that are open
        for one in by_thread[thread]:
            start = _ns(one.start_s)
            lane, end = _nest(lanes, start, _ns(one.end_s))
            slice_ = {"ph": "X", "name": one.name, "cat": one.category, "pid": rank}
            yield {**slice_, "tid": row + lane, "ts": start / 1e3, "dur": (end - start) / 1e3}
        for lane in range(len(lanes)):
            words = f"{name} ({lane + 1})" if lane else name
            yield _name("thread_name", rank, row + lane, name=words)
            yield _name("thread_sort_index", rank, row + lane, sort_index=row + lane)
        row += len(lanes)
    for change in trace.memory:
        counter = {"ph": "C", "name": f"allocated, {change.device}", "pid": rank, "tid": 0}
        yield {**counter, "ts": _ns(change.at_s) / 1e3, "args": {"bytes": change.total}}


def _ns(seconds: float) -> int:
    """Perfetto keeps whole nanoseconds."""
    return round(seconds * 1e9)


def _nest(lanes: list[list[int]], start: int, end: int) -> tuple[int, int]:
    """The first lane in which a slice nests, and its end there; it is noted as open."""
    for number, ends in enumerate(lanes):
        while ends and ends[-1] <= start:
            ends.pop()
        if not ends or end <= ends[-1] + ROUNDING_NS:
            ends.append(min([end, *ends[-1:]]))
            return number, ends[-1]
    lanes.append([end])
    return len(lanes) - 1, end


def _name(kind: str, rank: int, row: int, **args: Any) -> Event:
    return {"ph": "M", "name": kind, "pid": rank, "tid": row, "args": args}
