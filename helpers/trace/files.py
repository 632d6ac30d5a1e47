"""A rank's trace file: torch's Chrome JSON, and what recorder.py noted in it.

What is no such file is refused in one line, so that who reads the events need not ask whether a
number is there.
"""

import gzip
import json
import re
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any

from helpers.engine.errors import UserError, is_number
from helpers.trace.recorder import FACTS, STEP

NOTED = ("rank", "steps", "device", "state_bytes", "offset_ns", "memory")
NEEDS = {"X": ("ts", "dur")}  # kind of event: its numbers
CHANGE = ("Device Type", "Bytes", "Addr", "Total Allocated")  # of memory
MARKED = "user_annotation"  # the category of record_function
CALL = "Collective name"  # torch's argument beside NCCL's kernels
NAME = re.compile(r'(?<="name": ").*(?=",$)', re.MULTILINE)  # torch leaves quotes in it as they are
BROKEN = (OSError, EOFError, zlib.error, ValueError, LookupError, TypeError, AttributeError)
BROKEN += (RecursionError,)

Document = dict[str, Any]


def read_document(path: Path) -> Document:
    """The whole file.

    Raises:
        UserError: it is broken, or holds no whole step.
    """
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            document = _parsed(file.read())
        whole = _is_whole(document)
    except BROKEN:
        whole = False
    if not whole:
        raise UserError(f"{path} is no trace of this profiler, or a broken one")
    if not document[FACTS]["steps"]:
        raise UserError(f"{path} holds no whole step: the run ended too early")
    return document


def _parsed(text: str) -> Document:
    try:
        return json.loads(text)
    except ValueError:
        return json.loads(NAME.sub(lambda name: name[0].replace('"', r"\""), text))


def _is_whole(document: Document) -> bool:
    """Is all there that who reads it counts with, and each step that was noted?"""
    facts, events = document[FACTS], document["traceEvents"]
    limits = list(facts["memory"].values())
    numbers = [document["baseTimeNanoseconds"], facts["offset_ns"], *facts["state_bytes"].values()]
    names = {f"{STEP}{number}" for number in facts["steps"]}
    return (
        all(isinstance(one, int) for one in (facts["rank"], world_size(document), *facts["steps"]))
        and set(NOTED) <= facts.keys()
        and all(before < step for before, step in pairwise(facts["steps"]))
        and all(map(is_moderate, [*numbers, *(one for limit in limits for one in limit)]))
        and all(len(limit) == 2 and limit[1] > 0 for limit in limits)
        and isinstance(document.get("host_name", ""), str)
        and all(_is_event(event) for event in events)
        and names <= {one["name"] for one in events if _is_range(one)}
    )


def _is_range(event: dict[str, Any]) -> bool:
    return event["ph"] == "X" and event.get("cat") == MARKED and event["dur"] > 0


def world_size(document: Document) -> int:
    """Ranks of the run; torch says nothing of one."""
    return document.get("distributedInfo", {}).get("world_size", 1)


def _is_event(event: dict[str, Any]) -> bool:
    kind, name, args = event["ph"], event["name"], event.get("args", {})
    numbers = [event[key] for key in NEEDS.get(kind, ())]
    words = [name, event.get("cat", ""), args.get(CALL, "")]
    if name == "[memory]":
        numbers += [event["ts"], *(args[key] for key in CHANGE)]
    if (kind, name) == ("M", "thread_name"):
        words.append(args["name"])
    thread = (event.get("pid"), event.get("tid"))
    return (
        all(map(is_moderate, numbers))
        and (kind != "X" or event["dur"] >= 0)
        and all(isinstance(one, str) for one in words)
        and not any(isinstance(one, (list, dict)) for one in thread)
    )


def is_moderate(number: object) -> bool:
    """As all bytes, addresses and nanoseconds are: within 64 bits."""
    return is_number(number) and abs(number) < 2**64
