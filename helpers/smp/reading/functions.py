"""The functions and methods whose results are worked out: pure ones, of plain values, and parsers.

Nothing here touches a file, the network or the environment. What is not listed is not called.
"""

import ast
import math
import posixpath
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from helpers.smp.reading.values import (
    Imported,
    Keyed,
    Local,
    Made,
    Namespace,
    Unknown,
    is_known,
    items_of,
    limited,
    unknown_in,
)

if TYPE_CHECKING:
    from helpers.smp.reading.interpreter import Interpreter

PURE: dict[str, Callable[..., Any]] = {
    "builtins.int": int,
    "builtins.float": float,
    "builtins.str": str,
    "builtins.bool": bool,
    "builtins.len": len,
    "builtins.min": min,
    "builtins.max": max,
    "builtins.sum": sum,
    "builtins.abs": abs,
    "builtins.round": round,
    "builtins.sorted": sorted,
    "builtins.list": list,
    "builtins.tuple": tuple,
    "builtins.set": set,
    "builtins.divmod": divmod,
    "builtins.enumerate": lambda *a: list(enumerate(*a)),
    "builtins.zip": lambda *a: list(zip(*a)),
    "builtins.range": lambda *a: range(*a),
    "builtins.any": any,
    "builtins.all": all,
    "os.path.join": posixpath.join,
    "math.ceil": math.ceil,
    "math.floor": math.floor,
    "math.sqrt": math.sqrt,
}
BUILTINS = {name.rpartition(".")[2] for name in PURE} | {"dict", "vars", "print", "getattr"}
METHODS = {
    str: (
        *("split", "rsplit", "replace", "lower", "upper", "strip", "lstrip", "rstrip", "title"),
        *("startswith", "endswith", "join", "partition", "rpartition", "removeprefix", "find"),
    ),
    dict: ("get", "items", "keys", "values", "copy", "pop", "setdefault"),
    list: ("append", "extend", "insert", "copy", "index", "count", "pop", "remove"),
    tuple: ("index", "count"),
    set: ("add", "update", "union"),
}
BY_KEY = ("get", "pop", "setdefault", "index", "count", "remove")
TYPES = {"builtins.int": int, "builtins.float": float, "builtins.str": str, "builtins.bool": bool}


def call(made: Made, program: "Interpreter") -> Any:
    """What a call of something imported gives: a plain value where it is known, else `made`."""
    if made.dotted == "builtins.dict":
        found = Keyed()
        for one in made.args:
            if not isinstance(one, dict):
                return Unknown("dict()")
            found.take(one)
        found.take(made.kwargs)
        return found
    if made.dotted == "builtins.vars" and made.args and isinstance(made.args[0], Namespace):
        return made.args[0]
    if made.dotted in ("os.environ.get", "os.getenv") and made.args:
        name = str(made.args[0])
        return program.answers.get(name, made.args[1] if len(made.args) > 1 else Unknown(name))
    if made.dotted == "copy.deepcopy" and made.args:
        return made.args[0]
    if made.dotted not in PURE:
        return made
    if found := unknown_in(*made.args, *made.kwargs.values()):
        return found
    if made.dotted == "builtins.range" and any(abs(n) > 10**6 for n in made.args if n):
        return Unknown("a long range")
    return limited(lambda: PURE[made.dotted](*made.args, **made.kwargs))


def method(owner: Any, name: str, args: list[Any], kwargs: Keyed, line: int) -> Any:
    """What a method of a plain value gives; lists and dictionaries are changed as it would."""
    kind = next((kind for kind in METHODS if isinstance(owner, kind)), None)
    if isinstance(owner, dict) and name == "update":
        for one in (*args, kwargs):
            if isinstance(one, dict):
                for key, value in one.items():
                    _put(owner, key, value, getattr(one, "lines", {}).get(key, [line])[-1])
        return None
    if isinstance(owner, str) and name == "format":
        return unknown_in(*args, *kwargs.values()) or Unknown("a formatted text")
    if kind is None or name not in METHODS[kind] or kwargs:
        return Unknown(f".{name}()")
    if kind is str:
        if found := unknown_in(*args):
            return found
        if name == "replace" and len(owner) * max(len(args[1]) if len(args) > 1 else 1, 1) > 10_000:
            return Unknown("a long text")
    if name in BY_KEY and (found := unknown_in(*args[:1]) or _other_key(owner, args)):
        return found
    result = limited(lambda: getattr(owner, name)(*args))
    if isinstance(owner, dict) and name in ("items", "keys", "values"):
        return list(getattr(owner, name)())
    return result


def _other_key(owner: Any, args: list[Any]) -> Unknown | None:
    """A key of a dictionary that may be the one that is asked for."""
    if not isinstance(owner, dict) or (args and args[0] in owner):
        return None
    return unknown_in(*owner.keys())


def _put(owner: dict, key: Any, value: Any, line: int) -> None:
    if isinstance(owner, Keyed):
        owner.put(key, value, line)
    else:
        owner[key] = value


def told(owner: Made, name: str, made: Made, program: "Interpreter") -> Any:
    """What a method of an object that a call made gives: parsers are known, all else is not."""
    if owner.dotted.rpartition(".")[2] not in ("ArgumentParser", "HfArgumentParser"):
        return made
    if name in ("add_argument_group", "add_mutually_exclusive_group"):
        return owner
    if name in ("parse_args", "parse_known_args"):
        found = _namespace(owner, program)
        return found if name == "parse_args" else (found, Unknown("the other arguments"))
    if name == "parse_args_into_dataclasses":
        return tuple(_dataclass(one, program) for one in items_of((owner.args or [()])[0]) or [])
    return made


def _namespace(parser: Made, program: "Interpreter") -> Namespace:
    """The defaults of what add_argument has said, and what the job gives in their place."""
    found, defaults = Namespace(), Keyed()
    for name, args, kwargs in parser.told:
        if name == "set_defaults":
            defaults.take(kwargs)
            found.take(kwargs.without({one for one in kwargs if program.given(one) is not None}))
        if name != "add_argument" or not is_known(args) or not args:
            continue
        flags = [str(one) for one in args if str(one).startswith("-")] or [str(args[0])]
        long = next((one for one in flags if one.startswith("--")), flags[0])
        dest = kwargs.get("dest")
        dest = dest if isinstance(dest, str) and dest else long.lstrip("-").replace("-", "_")
        line = next(iter(kwargs.lines.values()), [0])[0]
        action = kwargs.get("action")
        action = action if isinstance(action, str) else None
        default = {"store_true": False, "store_false": True}.get(action)
        default = kwargs.get("default", defaults.get(dest, default))
        convert = TYPES.get(getattr(kwargs.get("type"), "dotted", ""))
        if isinstance(default, str) and convert:
            default = limited(partial(convert, default))
        given = program.given(dest, long.lstrip("-"))
        if given is not None:
            default = _read(given, action, convert)
        if isinstance(default, Unknown):
            default = program.unknown(f"args.{dest}", default)
        found.put(dest, default, line)
    program.parsed.append(found)
    return found


def _read(given: Any, action: Any, convert: Callable | None) -> Any:
    """A hyperparameter, as the parser reads the word that the job makes of it."""
    if action in ("store_true", "store_false"):
        return action == "store_true"
    text = str(given)
    return limited(lambda: convert(text)) if convert else given


def _dataclass(kind: Any, program: "Interpreter") -> Any:
    """The defaults of a dataclass of the program, as HfArgumentParser gives them."""
    if isinstance(kind, Imported):
        kind = program.elsewhere(kind.dotted)
    if not isinstance(kind, Local) or not isinstance(kind.node, ast.ClassDef):
        return Unknown("a dataclass that another file has")
    found = Namespace("args")
    for name, value, line in program.fields(kind):
        given = program.given(name, name)
        default = value if given is None else given
        if isinstance(default, Unknown):
            default = program.unknown(f"args.{name}", default)
        found.put(name, default, line)
    program.parsed.append(found)
    return found
