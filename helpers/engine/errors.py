"""Errors that speak to a person, each in one line, and a package that is missing."""

import importlib
import logging
from types import ModuleType


def one_line(text: str) -> str:
    """A text with what cannot be printed as Python writes it: a line stays one line, and nothing of
    a file reaches a terminal as an order to it."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


class UserError(ValueError):
    """The input is wrong. The message is one line that says what, and what to do instead."""

    def __str__(self) -> str:
        return one_line(super().__str__())

    def _render_traceback_(self) -> list[str]:
        """In a notebook: that line alone."""
        return [f"UserError: {self}"]


class NoToken(UserError, IndexError):
    """An id or a label is no token of the model. torch itself raises an IndexError for it."""


class Diverged(RuntimeError):
    """Losses or gradients are not finite any more. The message says since when and where first."""


class NotRepeatable(RuntimeError):
    """Two passes over the same batch differ. The message says in what and on which rank."""


class RankHung(RuntimeError):
    """Ranks waited for another in vain. The message says for which, and what that one is doing."""


def need(module: str, extra: str) -> ModuleType:
    """Import `module`, or say in one line which extra brings it.

    Raises:
        UserError: the package is not installed.
    """
    # where a processor has bf16, its import asks on stderr for a hub's kernels, not needed here
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.split(".")[0]
        if error.name is not None and error.name.split(".")[0] != package:
            raise  # the package is there but broken inside: hiding that helps nobody
        raise UserError(f'this needs the package {package}: pip install -e ".[{extra}]"') from None
