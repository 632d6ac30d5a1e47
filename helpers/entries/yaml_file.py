"""A YAML file as keys with their values and lines, what it refers to by ${...} followed."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from helpers.engine.errors import UserError, need, whole_reason
from helpers.entries.entry import LONGEST_PATH, Entry, checked, text_of

REFERENCE = re.compile(r"\$\{([^{}]+)\}")
PRODUCT = re.compile(r"\$\{multiply:\s*(\d{1,9})\s*,\s*(\d{1,9})\s*\}")  # of NeMo's launcher
EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d{1,3}")
# folders of launchers, by which one file of a job refers to itself: ${fine_tuning.model.data}
LAUNCHERS = ("recipes", "training", "fine_tuning", "peft", "evaluation", "prompt_learning")
MOST_NODES, LONGEST_VALUE = 100_000, 10_000
# what PyYAML raises of a value that is not what its tag says: !!int "", !!bool x, !!timestamp x
NOT_ITS_TAG = (IndexError, KeyError, AttributeError)


def read_yaml(path: Path, over: Mapping[str, Any] | None = None) -> list[Entry]:
    """All keys of a file that have a value of their own: not those of other keys.

    Args:
        over: values by paths, which take the place of the file's, before references are followed.

    Raises:
        UserError: it cannot be read, or is no mapping of names.
    """
    return of_yaml(path, text_of(path), over)


def of_yaml(path: Path, text: str, over: Mapping[str, Any] | None = None) -> list[Entry]:
    """The keys of a text that stands in a file.

    Args:
        over: as read_yaml's.

    Raises:
        UserError: as read_yaml.
    """
    yaml = need("yaml", "hf")
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        there = isinstance(node, yaml.MappingNode)
        if there:
            _check_size(yaml, node, {})
        entries = list(_entries(yaml, yaml.SafeLoader(text), node, "")) if there else []
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except NOT_ITS_TAG:
        raise UserError(f"{path} is no YAML: a value is not what its tag says") from None
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{path} is no YAML: {whole_reason(error, 120)}") from None
    if not entries:
        raise UserError(f"{path} is no recipe or configuration: it has no keys")
    entries = _covered(entries, over or {})
    values = {entry.path: entry.value for entry in checked(path, entries)}
    known: dict[str, Any] = {}
    return [Entry(one.path, _followed(one.path, values, known), one.line) for one in entries]


def _covered(entries: list[Entry], over: Mapping[str, Any]) -> list[Entry]:
    """The entries with others over them: one of a path takes the place of it and of all below, and
    of a value that stands where it has keys. Those of no line of the file have line 0."""
    lines = {entry.path: entry.line for entry in entries}
    kept = [one for one in entries if not any(_covers(path, one.path) for path in over)]
    return [*kept, *(Entry(path, value, lines.get(path, 0)) for path, value in over.items())]


def _covers(path: str, other: str) -> bool:
    return f"{other}.".startswith(f"{path}.") or path.startswith(f"{other}.")


def _check_size(yaml: Any, node: Any, known: dict[int, int]) -> int:
    """Nodes that a node stands for, with those that its aliases repeat.

    Raises:
        ValueError: they are more than any file has, as where aliases of aliases multiply.
    """
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if id(node) not in known:
        known[id(node)] = 1  # a node that holds itself ends here
        of_keys = isinstance(node, yaml.MappingNode)
        parts = [one for pair in node.value for one in pair] if of_keys else node.value
        known[id(node)] = 1 + sum(_check_size(yaml, one, known) for one in parts)
    if known[id(node)] > MOST_NODES:
        raise ValueError("its aliases repeat more than any file has")
    return known[id(node)]


def _entries(yaml: Any, loader: Any, node: Any, path: str) -> Iterator[Entry]:
    seen: set[str] = set()
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise ValueError("a key that is no name")
        name = f"{path}.{key.value}" if path else str(key.value)
        line = key.start_mark.line + 1
        if name in seen:
            raise UserError(f"{name} stands twice, in line {line} too: keep one of them")
        seen.add(name)
        if len(name) > LONGEST_PATH:
            raise ValueError("keys are nested too deeply")
        name.encode()  # half of a character that takes two escapes is no text
        if isinstance(value, yaml.MappingNode) and value.value:
            yield from _entries(yaml, loader, value, name)
        else:
            yield Entry(name, _number(value, loader.construct_object(value, deep=True)), line)


def _number(node: Any, value: Any) -> Any:
    """YAML 1.1 takes 1e-5 for a word, which YAML 1.2 and whoever writes it take for a number."""
    if isinstance(value, str) and node.style is None and EXPONENT.fullmatch(value):
        return float(value)
    return value


def _followed(path: str, values: dict[str, Any], known: dict[str, Any]) -> Any:
    """A key's value with what it refers to in its place, as far as the file has it; one that refers
    to itself, or becomes longer than any value, stays as it stands."""
    value = values[path]
    if not isinstance(value, str):
        return value
    if path in known:
        return known[path]
    known[path] = value
    whole = REFERENCE.fullmatch(value.strip())
    if whole and not PRODUCT.fullmatch(value.strip()):
        key = _key(whole[1], path, values)
        known[path] = _followed(key, values, known) if key in values else value
        return known[path]

    def put(found: re.Match[str]) -> str:
        key = _key(found[1], path, values)
        return str(_followed(key, values, known)) if key in values else found[0]

    text = REFERENCE.sub(put, value)
    product = PRODUCT.fullmatch(text.strip())
    if product:
        known[path] = int(product[1]) * int(product[2])
    else:
        known[path] = text if len(text) <= LONGEST_VALUE else value
    return known[path]


def _key(reference: str, path: str, values: dict[str, Any]) -> str:
    """The path that a reference means: of the whole launcher, or beside the key."""
    reference = reference.strip()
    if reference.startswith("."):
        return f"{path.rpartition('.')[0]}{reference}".lstrip(".")
    folder, _, inside = reference.partition(".")
    return inside if folder in LAUNCHERS and reference not in values else reference
