"""How a command speaks: its mistakes, each in one line from one rank, and its report."""

import argparse
import os
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

FIRST_SPEAKS_S = 5.0  # on a busy machine the first rank may start so much later than others


def is_first() -> bool:
    """Is this process the first rank, which speaks and writes for all?"""
    return os.environ.get("RANK", "0") == "0"


class Parser(argparse.ArgumentParser):
    """One line and exit code 2, from the first rank alone."""

    def error(self, message: str) -> NoReturn:
        refuse(message)


def refuse(message: str, code: int = 2) -> NoReturn:
    """Say what is wrong, by default with the input, once, and leave.

    All ranks find the same mistake. torchrun ends the others when one leaves, so all but the first
    rank give that one time to speak; if it found nothing wrong, they speak themselves.
    """
    if not is_first():
        time.sleep(FIRST_SPEAKS_S)
    print(f"error: {message}", file=sys.stderr, flush=True)
    sys.exit(code)


def markdown(head: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """A table in Markdown."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)])


def say(text: str, end: str = "\n") -> None:
    """Print a command's report: a reader that has left, as head, is no mistake; a full disk is."""
    try:
        print(text, end=end, flush=True)
    except OSError as error:
        # what is still in the buffer is not tried again when Python ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            refuse(f"the report cannot be written: {error.strerror}", code=1)
