"""The statements of a program, gone through one after another: branches, loops, blocks.

Where a test is known its branch is taken; else all are, and what they leave different is Unknown. A
loop over what is known goes round, another one once, and perhaps not at all.
"""

import ast
from abc import abstractmethod
from typing import Any

from helpers.smp.reading.expressions import Expressions
from helpers.smp.reading.names import text_of
from helpers.smp.reading.values import (
    Imported,
    Keyed,
    Local,
    Unknown,
    forked,
    is_known,
    items_of,
    merged,
)

MOST_ROUNDS = 300  # of a loop over what is known
Names = dict[str, Any]


class Returned(Exception):
    """A function's return."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Left(Exception):
    """A loop's break, or its continue."""

    def __init__(self, goes_on: bool) -> None:
        self.goes_on = goes_on


class Once(ast.stmt):
    """The body of a loop, as a statement."""

    _fields = ("body",)


class Statements:
    """Goes through statements; expressions are another's (expressions.py)."""

    expressions: Expressions

    @abstractmethod
    def spend(self, steps: int = 1) -> None:
        """Count steps, so that no program holds us up."""

    @abstractmethod
    def unknown(self, name: str, value: Unknown | None = None) -> Any:
        """What was answered for a name that the program does not give a value; else Unknown."""

    @abstractmethod
    def elsewhere(self, dotted: str) -> Any:
        """What another file of those given has under this name."""

    def run(self, body: list[ast.stmt], names: Names) -> None:
        for node in body:
            self.spend()
            method = getattr(self, f"_{type(node).__name__.lower()}", None)
            if method:
                method(node, names)
            else:
                self._simple(node, names)

    def _simple(self, node: ast.stmt, names: Names) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.expressions.value(child, names)

    def _import(self, node: ast.Import, names: Names) -> None:
        for alias in node.names:
            top = alias.name.split(".")[0]
            names[alias.asname or top] = Imported(alias.name if alias.asname else top)

    def _importfrom(self, node: ast.ImportFrom, names: Names) -> None:
        for alias in node.names:
            dotted = f"{node.module}.{alias.name}" if node.module else alias.name
            other = self.elsewhere(dotted)
            names[alias.asname or alias.name] = Imported(dotted) if other is None else other

    def _functiondef(self, node: Any, names: Names) -> None:
        for decorator in node.decorator_list:
            self.expressions.value(decorator, names)
        names[node.name] = Local(node, names)

    _asyncfunctiondef = _functiondef

    def _classdef(self, node: ast.ClassDef, names: Names) -> None:
        names[node.name] = Local(node, names)

    def _return(self, node: ast.Return, names: Names) -> None:
        raise Returned(self.expressions.value(node.value, names))

    def _assign(self, node: ast.Assign, names: Names) -> None:
        value = self.expressions.value(node.value, names)
        for target in node.targets:
            self.assign(target, value, names)

    def _annassign(self, node: ast.AnnAssign, names: Names) -> None:
        if node.value is not None:
            self.assign(node.target, self.expressions.value(node.value, names), names)

    def _augassign(self, node: ast.AugAssign, names: Names) -> None:
        whole = ast.copy_location(ast.BinOp(node.target, node.op, node.value), node)
        self.assign(node.target, self.expressions.value(whole, names), names)

    def _delete(self, node: ast.Delete, names: Names) -> None:
        for target in node.targets:
            names.pop(text_of(target), None)

    def _if(self, node: ast.If, names: Names) -> None:
        test = self.expressions.value(node.test, names)
        if is_known(test):
            self.run(node.body if test else node.orelse, names)
        else:
            self._either([node.body, node.orelse], names)

    def _either(self, bodies: list[list[ast.stmt]], names: Names) -> None:
        """One of these is run, and it is not known which."""
        before, left, returned = dict(names), [], []
        for body in bodies:
            branch = self._fork(before)
            try:
                self.run(body, branch)
                left.append(branch)
            except Returned as result:
                returned.append(result)
            except Left:
                left.append(branch)
        if not left:
            values = [result.value for result in returned]
            raise Returned(values[0] if len(values) == 1 else _all_same(values))
        names.clear()
        names.update(left[0])
        for branch in left[1:]:
            for name in [*names, *(name for name in branch if name not in names)]:
                other = branch.get(name, names.get(name))
                names[name] = merged(name, names.get(name, other), other)

    def _for(self, node: ast.For, names: Names) -> None:
        items = items_of(self.expressions.value(node.iter, names))
        if items is None or len(list(items)) > MOST_ROUNDS:
            self._maybe(node, names)
            return
        for item in items:
            self.assign(node.target, item, names)
            if not self._round(node.body, names):
                break

    def _round(self, body: list[ast.stmt], names: Names) -> bool:
        """One round of a loop; False where it breaks out of it."""
        try:
            self.run(body, names)
        except Left as left:
            return left.goes_on
        return True

    def _maybe(self, node: Any, names: Names) -> None:
        """A loop of which nobody knows how often it goes round."""
        if isinstance(node, (ast.For, ast.AsyncFor)):
            self.assign(node.target, Unknown(text_of(node.target) or "an item"), names)
        self._either([[Once(node.body)], []], names)

    _asyncfor = _maybe

    def _while(self, node: ast.While, names: Names) -> None:
        self.expressions.value(node.test, names)
        self._maybe(node, names)

    def _once(self, node: Once, names: Names) -> None:
        self._round(node.body, names)

    def _break(self, node: ast.Break, names: Names) -> None:
        raise Left(goes_on=False)

    def _continue(self, node: ast.Continue, names: Names) -> None:
        raise Left(goes_on=True)

    def _with(self, node: Any, names: Names) -> None:
        for item in node.items:
            value = self.expressions.value(item.context_expr, names)
            if item.optional_vars is not None:
                self.assign(item.optional_vars, value, names)
        self.run(node.body, names)

    _asyncwith = _with

    def _try(self, node: Any, names: Names) -> None:
        self.run(node.body, names)
        self.run(node.orelse, names)
        for handler in node.handlers:  # of what could have gone wrong; it leaves nothing behind
            branch = self._fork(names)
            try:
                self.run(handler.body, branch)
            except (Returned, Left):
                continue
        self.run(node.finalbody, names)

    _trystar = _try

    def _fork(self, names: Names) -> Names:
        """Names for a branch to change."""
        seen: dict[int, Any] = {}
        copy = {name: forked(value, seen) for name, value in names.items()}
        self.spend(len(names) + sum(map(len, seen.values())))
        return copy

    def assign(self, target: ast.AST, value: Any, names: Names) -> None:
        """Bind a target; what is inside an unknown object is kept by its text, `self.model`."""
        if isinstance(target, ast.Name):
            names[target.id] = value
            for text in [text for text in names if text.startswith(f"{target.id}.")]:
                del names[text]
        elif isinstance(target, (ast.Tuple, ast.List)):
            items = items_of(value) if not isinstance(value, dict) else None
            items = list(items) if items is not None else []
            for index, one in enumerate(target.elts):
                fits = len(items) == len(target.elts)
                self.assign(one, items[index] if fits else self.unknown(text_of(one)), names)
        elif isinstance(target, ast.Subscript):
            owner = self.expressions.value(target.value, names)
            key = self.expressions.value(target.slice, names)
            if isinstance(owner, Keyed) and is_known(key) and not isinstance(key, (list, dict)):
                owner.put(key, value, target.lineno)
        elif isinstance(target, ast.Attribute) and (text := text_of(target)):
            names[text] = value


def _all_same(values: list[Any]) -> Any:
    first = values[0]
    for value in values[1:]:
        first = merged("a result", first, value)
    return first
