"""A script's flags and the words of its command line, there and back.

{"batch_size": 8, "save": True, "tie": False, "at": [1, 2]}
--batch-size 8 --save --no-tie --at 1 2
"""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from numbers import Real
from pathlib import Path
from typing import Any

from helpers.engine.errors import UserError

NAME = re.compile(r"[A-Za-z]\w*", re.ASCII)
UNCARRIED = re.compile(r"[\0\ud800-\udfff]")


def check_names(names: Iterable[Any]) -> None:
    """Raise a UserError if one of them can be no flag's."""
    for name in names:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise UserError(f"{name!r:.40} is no name of a flag: letters, digits and _ make one")


def to_words(flags: Mapping[str, Any]) -> list[str]:
    """The words for flags by their names; None and an empty list leave a flag out.

    Raises:
        UserError: a value that no flag can carry.
    """
    words = []
    for name, value in flags.items():
        flag = name.replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif texts := _texts(name, value):
            words += [f"--{flag}", *texts]
    return words


def _texts(name: str, value: Any) -> list[str]:
    if isinstance(value, (str, Real, Path)):
        texts = [str(value)]
    elif _is_list(value):
        texts = list(map(str, value))
    else:
        raise UserError(f"{name} is a {type(value).__name__}, which no flag can carry")
    if flag := next((text for text in texts if text.startswith("--")), None):
        raise UserError(f"{name} has {flag!r:.40}, which would be a flag of its own")
    return texts


def carried_words(flags: Mapping[str, Any]) -> list[str]:
    """The same, of which a command line can carry each.

    Raises:
        UserError: one has a character that it cannot, or as to_words.
    """
    words = to_words(flags)
    for word in words:
        check_carried(word)
    return words


def check_carried(text: str) -> None:
    """Raise a UserError if no command line, and no file, can hold it."""
    if UNCARRIED.search(text):
        raise UserError(f"{text!a:.40} has a character that no command line can carry")


def _is_list(value: Any) -> bool:
    """Of what a command line has words for."""
    if not isinstance(value, Iterable) or isinstance(value, (Mapping, bytes)):
        return False
    try:
        return all(isinstance(one, (str, Real, Path)) for one in value)
    except TypeError:  # a tensor of one number
        return False


def from_words(words: Iterable[str]) -> dict[str, Any]:
    """The flags that these words give: switches, numbers, texts, and lists of two or more.

    Raises:
        UserError: the first word is no flag.
    """
    values: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("--"):
            name, equals, value = word.removeprefix("--").partition("=")
            values[name] = [value] if equals else []
        elif not values:
            raise UserError(f"{word!r} is no flag: flags begin with --")
        else:
            values[name].append(word)
    return dict(_flag(name.replace("-", "_"), given) for name, given in values.items())


def _flag(name: str, given: list[str]) -> tuple[str, Any]:
    if not given:
        return name.removeprefix("no_"), not name.startswith("no_")
    values = [_value(text) for text in given]
    return name, values if len(values) > 1 else values[0]


def _value(text: str) -> int | float | str:
    """A number only where Python writes it in the same way, so that the way back is exact."""
    if not text[-1:].isdigit():  # nan and inf stay texts
        return text
    for kind in (int, float):
        with suppress(ValueError):
            if str(kind(text)) == text:
                return kind(text)
    return text
