"""A parser of Chrome's Trace Event Format, as Perfetto takes it: what it returns is well-formed."""

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

# kind: what an event of it must have, besides ph, name, pid and tid
MUST_HAVE = {"X": ("ts", "dur", "cat"), "M": ("args",), "C": ("ts", "args")}
NAMES = ("process_name", "process_sort_index", "thread_name", "thread_sort_index")


def parse(path: Path) -> dict[str, Counter]:
    """By process name, its number of events by kind.

    Raises:
        ValueError: the first event that breaks a rule, and which.
    """
    document = json.loads(path.read_text(encoding="utf-8"))
    events = document["traceEvents"]
    for number, event in enumerate(events):
        wrong = _wrong(event)
        if wrong:
            raise ValueError(f"event {number}: {wrong}")
    _check_nesting(events)
    processes = _names(events, "process_name", lambda e: e["pid"])
    threads = _names(events, "thread_name", lambda e: (e["pid"], e["tid"]))
    found: dict[str, Counter] = defaultdict(Counter)
    for event in events:
        if event["pid"] not in processes:
            raise ValueError(f"process {event['pid']} has no name")
        if event["ph"] == "X" and (event["pid"], event["tid"]) not in threads:
            raise ValueError(f"thread {event['tid']} of process {event['pid']} has no name")
        found[processes[event["pid"]]][event["ph"]] += 1
    return dict(found)


def _wrong(event: dict[str, Any]) -> str:
    """The rule that an event breaks, if any."""
    kind = event.get("ph")
    if kind not in MUST_HAVE:
        return f"its kind is {kind!r}"
    missing = [key for key in ("name", "pid", "tid", *MUST_HAVE[kind]) if key not in event]
    if missing:
        return f"it has no {missing[0]}"
    if not all(type(event[key]) is int for key in ("pid", "tid")):
        return "its pid and tid are no whole numbers"
    for key in ("ts", "dur"):
        if type(event.get(key, 0)) not in (int, float) or not event.get(key, 0) >= 0:
            return f"its {key} is {event[key]!r}"
    if kind == "M" and event["name"] not in NAMES:
        return f"it names {event['name']!r}"
    if kind == "C" and not all(type(v) in (int, float) for v in event["args"].values()):
        return "a counter's values are no numbers"
    return ""


def _check_nesting(events: list[dict[str, Any]]) -> None:
    """Slices of a row lie inside each other or apart, to the nanosecond that Perfetto keeps."""
    rows = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            start, end = round(event["ts"] * 1e3), round((event["ts"] + event["dur"]) * 1e3)
            rows[event["pid"], event["tid"]].append((start, -end, event["name"]))
    for row, slices in rows.items():
        outer: list[tuple[int, str]] = []
        for start, minus_end, name in sorted(slices):
            while outer and outer[-1][0] <= start:
                outer.pop()
            if outer and -minus_end > outer[-1][0]:
                raise ValueError(f"{name!r} overlaps {outer[-1][1]!r} in row {row}")
            outer.append((-minus_end, name))


def _names(events: list[dict[str, Any]], kind: str, of: Any) -> dict[Any, str]:
    named = [event for event in events if event["name"] == kind]
    names = {of(event): event["args"]["name"] for event in named}
    if len(names) != len(named):
        raise ValueError(f"something has two of {kind}")
    return names
