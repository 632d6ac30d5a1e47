"""What is known where several ways through a program come together."""

from typing import Any

from helpers.smp.reading.values import Keyed, Namespace, Unknown, same


def merged(name: str, a: Any, b: Any) -> Any:
    """What is known of a name after one of two branches was taken."""
    if same(a, b):
        return a
    if isinstance(a, Keyed) and isinstance(b, Keyed):
        both = Namespace(a.name) if isinstance(a, Namespace) else Keyed()
        for key in [*a, *(key for key in b if key not in a)]:
            text = f"{name}[{key!r}]"
            both[key] = merged(text, a.get(key, Unknown(text)), b.get(key, Unknown(text)))
        both.lines = {**b.lines, **a.lines}
        return both
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return [merged(f"{name}[{index}]", *pair) for index, pair in enumerate(zip(a, b))]
    return Unknown(name)


def put(owner: list[Any], key: Any, value: Any) -> None:
    """In one place of a list, or it is not known in which."""
    try:
        owner[key] = value
    except (TypeError, IndexError, ValueError):
        owner[:] = [Unknown("an item") for _ in owner]


def blur(value: Any, name: str) -> None:
    """What is in a list or a dictionary is not known any more, to whoever holds it."""
    if isinstance(value, list):  # one more than there are: it stays unknown how many
        value[:] = [Unknown(name)] * (len(value) + 1)
    elif isinstance(value, Keyed):
        value.update({key: Unknown(f"{name}[{key!r}]") for key in value} | {Unknown(name): None})


def refilled(before: dict[str, Any], copies: list[dict[int, Any]]) -> dict[int, Any]:
    """Lists and dictionaries as the branches may have left them, changed in place, since others may
    hold them too; by the branches' copies of them."""
    kept: dict[int, Any] = {}
    for name, own in before.items():
        if not isinstance(own, (Keyed, list)):
            continue
        ways = [copy[id(own)] for copy in copies]
        whole = ways[0]
        for way in ways[1:]:
            whole = merged(name, whole, way)
        kept |= {id(way): own for way in ways}
        if isinstance(own, list):
            own[:] = max(ways, key=len)
            if isinstance(whole, list):
                own[:] = whole
            else:
                blur(own, name)
        else:
            own.clear()
            own.update(whole)
            own.lines = whole.lines
    return kept


def all_same(values: list[Any]) -> Any:
    """A value that is one of these."""
    first = values[0]
    for value in values[1:]:
        first = merged("a result", first, value)
    return first
