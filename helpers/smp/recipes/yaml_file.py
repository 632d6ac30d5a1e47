"""A YAML file as keys with their values and lines, what it refers to by ${...} followed."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.engine.errors import UserError, need

REFERENCE = re.compile(r"\$\{([^{}]+)\}")
EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d{1,3}")
MOST_BYTES = 2**20
MOST_KEYS = 5000
DEPTH = 10  # of references that refer to references


@dataclass(frozen=True)
class Entry:
    """A key by its path, `model.optim.lr`, its value, and its line."""

    path: str
    value: Any
    line: int


def read_yaml(path: Path) -> list[Entry]:
    """All keys of a file that have a value of their own: not those of other keys.

    Raises:
        UserError: it cannot be read, or is no mapping of names.
    """
    yaml = need("yaml", "hf")
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UserError(f"{path} is larger than any recipe")
        text = path.read_text(encoding="utf-8")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if not isinstance(node, yaml.MappingNode):
            raise UserError(f"{path} is no recipe: it has no keys")
        loader = yaml.SafeLoader(text)
        entries = list(_entries(yaml, loader, node, ""))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no YAML: {' '.join(str(error).split())[:120]}") from None
    if len(entries) > MOST_KEYS:
        raise UserError(f"{path} has more keys than any recipe")
    values = {entry.path: entry.value for entry in entries}
    return [Entry(one.path, _followed(one.value, one.path, values), one.line) for one in entries]


def _entries(yaml: Any, loader: Any, node: Any, path: str) -> Iterator[Entry]:
    seen: set[str] = set()
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise ValueError("a key that is no name")
        name = f"{path}.{key.value}" if path else str(key.value)
        line = key.start_mark.line + 1
        if name in seen:
            raise ValueError(f"{name} stands twice, in line {line} too")
        seen.add(name)
        if len(name) > 500:
            raise ValueError("keys are nested too deeply")
        if isinstance(value, yaml.MappingNode) and value.value:
            yield from _entries(yaml, loader, value, name)
        else:
            yield Entry(name, _number(value, loader.construct_object(value, deep=True)), line)


def _number(node: Any, value: Any) -> Any:
    """YAML 1.1 takes 1e-5 for a word, which YAML 1.2 and whoever writes it take for a number."""
    if isinstance(value, str) and node.style is None and EXPONENT.fullmatch(value):
        return float(value)
    return value


def _followed(value: Any, path: str, values: dict[str, Any], depth: int = 0) -> Any:
    """A value with what it refers to in its place, as far as the file has it."""
    if not isinstance(value, str) or depth > DEPTH:
        return value
    whole = REFERENCE.fullmatch(value.strip())
    if whole:
        key = _key(whole[1], path)
        return _followed(values[key], key, values, depth + 1) if key in values else value

    def put(found: re.Match[str]) -> str:
        key = _key(found[1], path)
        return str(_followed(values[key], key, values, depth + 1)) if key in values else found[0]

    return REFERENCE.sub(put, value)


def _key(reference: str, path: str) -> str:
    """The path that a reference means: of the whole launcher, or beside the key."""
    reference = reference.strip()
    if reference.startswith("."):
        return f"{path.rpartition('.')[0]}{reference}".lstrip(".")
    return reference.removeprefix("recipes.")
