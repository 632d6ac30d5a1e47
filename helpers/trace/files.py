"""A rank's trace file: torch's Chrome JSON, and what recorder.py noted in it.

What is no such file is refused in one line, so that who reads the events need not ask whether a
number is there.
"""

import gzip
import json
import re
import zlib
from math import isfinite
from pathlib import Path
from typing import Any

from helpers.engine.errors import UserError, is_number
from helpers.trace.recorder import FACTS, STEP

NOTED = ("rank", "steps", "device", "state_bytes", "offset_ns", "memory")
NEEDS = {"X": ("ts", "dur")}  # kind of event: its numbers
NAME = re.compile(r'(?<="name": ").*(?=",$)', re.MULTILINE)  # torch leaves quotes in it as they are
BROKEN = (OSError, EOFError, zlib.error, ValueError, LookupError, TypeError, RecursionError)

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
    """Are the facts there, every event's numbers, and each step that was noted?"""
    facts, events = document[FACTS], document["traceEvents"]
    names = {f"{STEP}{number}" for number in facts["steps"]}
    return (
        set(NOTED) <= facts.keys()
        and is_number(document["baseTimeNanoseconds"])
        and all(_is_event(event) for event in events)
        and names <= {event["name"] for event in events if event["ph"] == "X"}
    )


def _is_event(event: dict[str, Any]) -> bool:
    numbers = [event[key] for key in NEEDS.get(event["ph"], ())]
    return "name" in event and all(is_number(one) and isfinite(one) for one in numbers)
