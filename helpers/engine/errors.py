"""Errors that speak to a person, each in one line, and a package that is missing."""

import importlib
import logging
import os
import sys
from pathlib import Path
from types import ModuleType


def one_line(text: str) -> str:
    """A text with what cannot be printed as Python writes it: a line stays one line, and nothing of
    a file reaches a terminal as an order to it."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def reason(error: Exception) -> str:
    """The first line of what an error says, or its kind where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:160]


def named_reason(error: Exception) -> str:
    """The same behind the error's kind."""
    return f"{type(error).__name__}: {str(error).strip()}".splitlines()[0][:160]


def whole_reason(error: BaseException, most: int = 200) -> str:
    """All that an error says, its lines as one, up to so many characters."""
    return " ".join(str(error).split())[:most]


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


def is_number(value: object) -> bool:
    """True and False are none, though Python counts with them."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_finite_number(value: object) -> bool:
    """A number that floating point has, too: Python's whole numbers know no end."""
    return is_number(value) and abs(value) <= sys.float_info.max


def check_count(name: str, value: object, least: int = 1) -> None:
    """Raise a UserError if a value is no whole number from `least` on."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UserError(f"{name} must be a whole number of at least {least}, not {value!r:.40}")


def check_seed(seed: object) -> None:
    """Raise a UserError if nothing can be drawn from this."""
    if type(seed) is not int or abs(seed) >= 2**63:
        raise UserError(f"seed must be a whole number of 64 bits, not {seed!r:.40}")


def as_path(value: object) -> Path:
    """A path, of what somebody gave as one.

    Raises:
        UserError: it is neither text nor a path.
    """
    if not isinstance(value, str | os.PathLike):
        raise UserError(f"{value!r:.40} is no path: give the name of a file or a folder")
    return Path(value)


def cannot_read(path: str | Path, error: OSError) -> UserError:
    """What to raise in the place of the system's own error."""
    return UserError(f"{path} cannot be read: {error.strerror or error}")


def cannot_write(path: str | Path, error: OSError) -> UserError:
    """The same where something was to be written."""
    return UserError(f"cannot write to {path}: {error.strerror}")


def check_access(path: str | Path) -> None:
    """Raise a UserError if the system does not say whether there is such a file or folder, as it
    does not inside a folder that may not be entered. Versions of Python differ in what they take
    that for."""
    try:
        Path(path).stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # or a name that no file has
        return
    except OSError as error:
        raise cannot_read(path, error) from None


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
