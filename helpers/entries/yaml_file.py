"""A YAML file as keys with their values and lines, what it refers to by ${...} followed."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from helpers.engine.errors import UserError, need
from helpers.entries.entry import LONGEST_PATH, Entry, checked, text_of

REFERENCE = re.compile(r"\$\{([^{}]+)\}")
EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d{1,3}")
DEPTH = 10  # of references that refer to references


def read_yaml(path: Path) -> list[Entry]:
    """All keys of a file that have a value of their own: not those of other keys.

    Raises:
        UserError: it cannot be read, or is no mapping of names.
    """
    return of_yaml(path, text_of(path))


def of_yaml(path: Path, text: str) -> list[Entry]:
    """The keys of a text that stands in a file.

    Raises:
        UserError: as read_yaml.
    """
    yaml = need("yaml", "hf")
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        there = isinstance(node, yaml.MappingNode)
        entries = list(_entries(yaml, yaml.SafeLoader(text), node, "")) if there else []
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{path} is no YAML: {' '.join(str(error).split())[:120]}") from None
    if not entries:
        raise UserError(f"{path} is no recipe or configuration: it has no keys")
    values = {entry.path: entry.value for entry in checked(path, entries)}
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
        if len(name) > LONGEST_PATH:
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
