"""What stands for a value that a program has: plain Python where the file says it, else who to ask.

Unknown("region")                    a name that the file does not give
Imported("os.environ")               what an import brings, never imported here
Made("smp.DistributedModel", …)      what a call of it would make, known by its arguments
"""

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

MOST_ITEMS, MOST_BITS = 10_000, 4096  # of a value that is worked out here


@dataclass(frozen=True)
class Unknown:
    """A value that the file does not say; `name` is what to ask for."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Imported:
    """A module, a class or a function, by its whole name."""

    dotted: str


class Keyed(dict):
    """A dictionary that knows the lines on which each key was given, the last one last."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lines: dict[Any, list[int]] = {}

    def put(self, key: Any, value: Any, line: int) -> None:
        self[key] = value
        self.lines.setdefault(key, []).append(line)

    def take(self, other: dict) -> None:
        """All of another one's keys, with their lines."""
        self.update(other)
        for key, lines in getattr(other, "lines", {}).items():
            self.lines[key] = [*self.lines.get(key, []), *lines]

    def without(self, names: set[Any]) -> "Keyed":
        """The other keys, with their lines."""
        rest = Keyed({key: value for key, value in self.items() if key not in names})
        rest.lines = {key: list(lines) for key, lines in self.lines.items() if key in rest}
        return rest


class Namespace(Keyed):
    """What a parser of arguments gives: `args.x` is the key x."""

    def __init__(self, name: str = "args") -> None:
        super().__init__()
        self.name = name


@dataclass(eq=False)
class Made:
    """The object that a call of something imported makes.

    told: methods that were called on it, with their arguments.
    """

    dotted: str
    args: list[Any]
    kwargs: Keyed
    node: ast.Call | None = field(default=None, repr=False)
    told: list[tuple[str, list[Any], Keyed]] = field(default_factory=list, repr=False)


@dataclass(eq=False)
class Local:
    """A function or a class of the program itself."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda = field(repr=False)
    names: "dict[str, Any]" = field(repr=False)


def is_known(value: Any) -> bool:
    """Is it a plain value, with nothing unknown inside?"""
    if isinstance(value, (Unknown, Imported, Made, Local)):
        return False
    if isinstance(value, dict):
        return all(map(is_known, value.keys())) and all(map(is_known, value.values()))
    if isinstance(value, (list, tuple, set)):
        return all(map(is_known, value))
    return True


def hashes(value: Any) -> bool:
    """Can it be a key?"""
    try:
        hash(value)
    except TypeError:
        return False
    return True


def unknown_in(*values: Any) -> Unknown | None:
    """The first value that the file does not say, among these and in them."""
    for value in values:
        if isinstance(value, Unknown):
            return value
        if isinstance(value, Made):
            return Unknown(f"{value.dotted}()")
        if isinstance(value, Imported):
            return Unknown(value.dotted)
        if isinstance(value, Local):
            return Unknown(getattr(value.node, "name", "a lambda"))
        if isinstance(value, dict):
            value = [*value.keys(), *value.values()]
        if isinstance(value, (list, tuple, set)) and (found := unknown_in(*value)):
            return found
    return None


def forked(value: Any, seen: dict[int, Any] | None = None) -> Any:
    """A copy that a branch may change; what several names share stays shared."""
    seen = {} if seen is None else seen
    if id(value) in seen:
        return seen[id(value)]
    if isinstance(value, Keyed):
        copy = Namespace(value.name) if isinstance(value, Namespace) else Keyed()
        seen[id(value)] = copy
        copy.update({key: forked(item, seen) for key, item in value.items()})
        copy.lines = {key: list(lines) for key, lines in value.lines.items()}
        return copy
    if isinstance(value, list):
        seen[id(value)] = copy = []
        copy.extend(forked(item, seen) for item in value)
        return copy
    if isinstance(value, tuple):
        return tuple(forked(item, seen) for item in value)
    if isinstance(value, set):
        seen[id(value)] = copy = set(value)
        return copy
    return value


def same(a: Any, b: Any) -> bool:
    """Are two values the same, as far as a program could tell?"""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, Made):
        return a.dotted == b.dotted and a.node is b.node
    return a == b


def limited(work: Callable[[], Any]) -> Any:
    """The result of arithmetic on plain values; Unknown where it fails or would be huge."""
    try:
        value = work()
    except Exception:  # whatever the program's own values make of it
        return Unknown("a value that cannot be worked out")
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        return Unknown("a huge number")
    if isinstance(value, (str, list, tuple, dict, set)) and len(value) > MOST_ITEMS:
        return Unknown("a huge value")
    return value


def too_large(operator: ast.operator, left: Any, right: Any) -> bool:
    """Would this power, shift or product take more room than a script's values do?"""
    if isinstance(operator, (ast.Pow, ast.LShift)):
        sizes = [abs(one) if isinstance(one, (int, float)) else MOST_BITS for one in (left, right)]
        return sizes[1] > MOST_BITS or sizes[0] > 1e15
    if isinstance(operator, ast.Mult):
        counts = [one for one in (left, right) if isinstance(one, int)]
        lengths = [len(one) for one in (left, right) if isinstance(one, (str, bytes, list, tuple))]
        return bool(counts and lengths) and max(counts) * max(lengths) > MOST_ITEMS
    if isinstance(operator, ast.Mod):
        return isinstance(left, (str, bytes))  # a format can ask for any width
    return False


def items_of(value: Any) -> Iterable[Any] | None:
    """What a loop over the value would give; None of what is not known."""
    if isinstance(value, (list, tuple, set, dict, str, range)) and len(value) <= MOST_ITEMS:
        return list(value)
    return None
