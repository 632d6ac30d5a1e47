"""What an expression of a program comes to, worked out without running anything of the program.

Literals, names, arithmetic, f-strings, subscripts, and calls of a few pure functions and methods of
plain values, which functions.py lists. All else is Unknown, or Made by its arguments.
"""

import ast
import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from helpers.smp.reading import functions
from helpers.smp.reading.names import text_of
from helpers.smp.reading.values import (
    Imported,
    Keyed,
    Local,
    Made,
    Namespace,
    Unknown,
    hashes,
    is_known,
    items_of,
    limited,
    too_large,
    unknown_in,
)

if TYPE_CHECKING:
    from helpers.smp.reading.interpreter import Interpreter

Names = dict[str, Any]
BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
}
UNARY = {
    ast.Not: operator.not_,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
}
COMPARED: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}


class Expressions:
    """Evaluates expressions for an interpreter, which knows the program's own functions."""

    def __init__(self, program: "Interpreter") -> None:
        self.program = program

    def value(self, node: ast.expr | None, names: Names) -> Any:
        if node is None:
            return None
        self.program.spend()
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        return method(node, names) if method else self._rest(node, names)

    def _rest(self, node: ast.expr, names: Names) -> Any:
        for child in ast.iter_child_nodes(node):  # calls in it are still of interest
            if isinstance(child, ast.expr):
                self.value(child, names)
        return Unknown(_shown(node))

    def _asked(self, value: Any) -> Any:
        """What was answered for a value that branches or loops have left unknown."""
        return self.program.unknown(value.name, value) if isinstance(value, Unknown) else value

    def _constant(self, node: ast.Constant, names: Names) -> Any:
        return node.value

    def _name(self, node: ast.Name, names: Names) -> Any:
        if node.id in names:
            return self._asked(names[node.id])
        if node.id in functions.BUILTINS:
            return Imported(f"builtins.{node.id}")
        return self.program.unknown(node.id)

    def _attribute(self, node: ast.Attribute, names: Names) -> Any:
        text = text_of(node)
        if text in names:
            return names[text]
        owner = self.value(node.value, names)
        if isinstance(owner, Imported):
            return Imported(f"{owner.dotted}.{node.attr}")
        if isinstance(owner, Namespace):
            if node.attr == "__dict__":
                return owner
            return (
                owner[node.attr]
                if node.attr in owner
                else self.program.unknown(f"{owner.name}.{node.attr}")
            )
        return self.program.unknown(text or _shown(node))

    def _subscript(self, node: ast.Subscript, names: Names) -> Any:
        owner, key = self.value(node.value, names), self.value(node.slice, names)
        text = f"{_shown(node.value)}[{key!r}]" if is_known(key) else _shown(node)
        if isinstance(owner, Imported) and owner.dotted == "os.environ":
            return self.program.unknown(str(key))
        if isinstance(owner, (dict, list, tuple, str)) and is_known(key):
            try:
                return self._asked(owner[key])
            except (KeyError, IndexError, TypeError, ValueError):
                return self.program.unknown(text)
        return self.program.unknown(text)

    def _slice(self, node: ast.Slice, names: Names) -> Any:
        parts = [self.value(part, names) for part in (node.lower, node.upper, node.step)]
        return unknown_in(*parts) or limited(lambda: slice(*parts))

    def _list(self, node: ast.List, names: Names) -> Any:
        return list(self._elements(node.elts, names))

    def _tuple(self, node: ast.Tuple, names: Names) -> Any:
        return tuple(self._elements(node.elts, names))

    def _set(self, node: ast.Set, names: Names) -> Any:
        items = list(self._elements(node.elts, names))
        return unknown_in(*items) or limited(lambda: set(items))

    def _elements(self, nodes: list[ast.expr], names: Names) -> Iterator[Any]:
        for node in nodes:
            if isinstance(node, ast.Starred):
                inner = self.value(node.value, names)
                items = items_of(inner)
                yield from [Unknown(_shown(node))] if items is None else items
            else:
                yield self.value(node, names)

    def _dict(self, node: ast.Dict, names: Names) -> Any:
        found = Keyed()
        for key, value in zip(node.keys, node.values):
            item = self.value(value, names)
            if key is None:
                if isinstance(item, dict):
                    found.take(item)
                else:
                    found.put(Unknown(f"**{_shown(value)}"), item, value.lineno)
                continue
            name = self.value(key, names)
            if not is_known(name):
                name = Unknown(_shown(key))
            elif not hashes(name):
                return Unknown(_shown(node))
            found.put(name, item, key.lineno)
        return found

    def _joinedstr(self, node: ast.JoinedStr, names: Names) -> Any:
        parts = []
        for part in node.values:
            if isinstance(part, ast.Constant):
                parts.append(str(part.value))
                continue
            value = self.value(part.value, names)
            if not is_known(value) or part.format_spec is not None or part.conversion != -1:
                return unknown_in(value) or Unknown(_shown(node))
            parts.append(str(value))
        return limited(lambda: "".join(parts))

    def _binop(self, node: ast.BinOp, names: Names) -> Any:
        left, right = self.value(node.left, names), self.value(node.right, names)
        if found := unknown_in(left, right):
            return found
        work = BINARY.get(type(node.op))
        if work is None or too_large(node.op, left, right):
            return Unknown(_shown(node))
        return limited(lambda: work(left, right))

    def _unaryop(self, node: ast.UnaryOp, names: Names) -> Any:
        value = self.value(node.operand, names)
        return unknown_in(value) or limited(lambda: UNARY[type(node.op)](value))

    def _boolop(self, node: ast.BoolOp, names: Names) -> Any:
        """Short circuits hold though some operand is unknown: False and x is False."""
        unsure: Unknown | None = None
        value: Any = None
        for part in node.values:
            value = self.value(part, names)
            if found := unknown_in(value):
                unsure = unsure or found
            elif bool(value) is isinstance(node.op, ast.Or):
                return unsure or value
        return unsure or value

    def _compare(self, node: ast.Compare, names: Names) -> Any:
        values = [self.value(one, names) for one in (node.left, *node.comparators)]
        if found := unknown_in(*values):
            return found
        pairs = zip(node.ops, values, values[1:])
        return limited(lambda: all(COMPARED[type(op)](a, b) for op, a, b in pairs))

    def _ifexp(self, node: ast.IfExp, names: Names) -> Any:
        test = self.value(node.test, names)
        if is_known(test):
            return self.value(node.body if test else node.orelse, names)
        yes, no = self.value(node.body, names), self.value(node.orelse, names)
        return yes if is_known(yes) and is_known(no) and yes == no else unknown_in(test)

    def _namedexpr(self, node: ast.NamedExpr, names: Names) -> Any:
        names[node.target.id] = self.value(node.value, names)
        return names[node.target.id]

    def _lambda(self, node: ast.Lambda, names: Names) -> Any:
        return Local(node, names)

    def _listcomp(self, node: ast.ListComp, names: Names) -> Any:
        if len(node.generators) > 1 or node.generators[0].is_async:
            return self._rest(node, names)
        loop, found = node.generators[0], []
        items = items_of(self.value(loop.iter, names))
        if items is None:
            return Unknown(_shown(node))
        for item in items:
            inner = dict(names)
            self.program.assign(loop.target, item, inner)
            tests = [self.value(test, inner) for test in loop.ifs]
            if unsure := unknown_in(*tests):
                return unsure
            if all(tests):
                found.append(self.value(node.elt, inner))
        return found

    def _starred(self, node: ast.Starred, names: Names) -> Any:
        return self.value(node.value, names)

    def _call(self, node: ast.Call, names: Names) -> Any:
        args = list(self._elements(node.args, names))
        kwargs = Keyed()
        for keyword in node.keywords:
            value = self.value(keyword.value, names)
            if keyword.arg is not None:
                kwargs.put(keyword.arg, value, keyword.lineno)
            elif isinstance(value, dict):
                kwargs.take(value)
            else:
                kwargs.put(Unknown(f"**{_shown(keyword.value)}"), value, keyword.lineno)
        if isinstance(node.func, ast.Attribute) and not isinstance(
            names.get(text_of(node.func)), Local
        ):
            owner = self.value(node.func.value, names)
            if not isinstance(owner, (Imported, Unknown)):
                return self._method(node, node.func.attr, owner, args, kwargs)
        called = self.value(node.func, names)
        if isinstance(called, Local):
            return self.program.call(called, args, kwargs)
        if isinstance(called, Imported):
            made = Made(called.dotted, args, kwargs, node)
            self.program.noted(made)
            return functions.call(made, self.program)
        return Unknown(f"{_shown(node.func)}()")

    def _method(self, node: ast.Call, name: str, owner: Any, args: list[Any], kwargs: Keyed) -> Any:
        if isinstance(owner, Made):
            owner.told.append((name, args, kwargs))
            made = Made(f"{owner.dotted}.{name}", args, kwargs, node)
            self.program.noted(made)
            return functions.told(owner, name, made, self.program)
        return functions.method(owner, name, args, kwargs, node.lineno)


def _shown(node: ast.AST) -> str:
    """An expression as it may be asked for, short."""
    try:
        text = ast.unparse(node)
    except (ValueError, RecursionError):
        text = type(node).__name__
    return text if len(text) <= 60 else f"{text[:57]}..."
