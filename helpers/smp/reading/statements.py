"""The statements of a program, gone through one after another: branches, loops, blocks.

Where a test is known its branch is taken; else all are, and what they leave different is Unknown. A
loop over what is known goes round; of another one, and of one that may leave off or go on early,
what it binds is Unknown.
"""

import ast
from typing import Any

from helpers.smp.reading.expressions import Expressions
from helpers.smp.reading.joining import all_same, blur, merged, put, refilled
from helpers.smp.reading.names import text_of
from helpers.smp.reading.stored import bound, captured, changed
from helpers.smp.reading.values import (
    Imported,
    Keyed,
    Local,
    Unknown,
    forked,
    hashes,
    is_known,
    items_of,
    limited,
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
    """Goes through statements; expressions are another's (expressions.py). The interpreter has the
    count of steps (`spend`), names without a value (`unknown`) and other files (`elsewhere`).

    shared: names that functions bind outside of themselves.
    returns: of each function under way, what it gives where it may return early.
    unsure: may the loop under way have been left, or have gone on early?
    """

    expressions: Expressions
    shared: set[str]
    returns: list[list[Any]]
    unsure: bool

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
            if isinstance(target, ast.Subscript):
                owner = self.expressions.value(target.value, names)
                key = self.expressions.value(target.slice, names)
                if isinstance(owner, (list, dict)) and is_known(key):
                    limited(lambda owner=owner, key=key: owner.__delitem__(key))

    def _if(self, node: ast.If, names: Names) -> None:
        test = self.expressions.value(node.test, names)
        if is_known(test):
            self.run(node.body if test else node.orelse, names)
        else:
            self._either([node.body, node.orelse], names)

    def _match(self, node: ast.Match, names: Names) -> None:
        self.expressions.value(node.subject, names)
        for case in node.cases:
            for name in captured(case.pattern):
                names[name] = Unknown(name)
        bodies = [case.body for case in node.cases]
        last = node.cases[-1]
        takes_all = isinstance(last.pattern, ast.MatchAs) and last.pattern.pattern is None
        self._either(bodies if takes_all and last.guard is None else [*bodies, []], names)

    def _either(self, bodies: list[list[ast.stmt]], names: Names) -> None:
        """One of these is run, and it is not known which."""
        before, ways, exits, returned = dict(names), [], [], []
        copies: list[dict[int, Any]] = []  # of each branch, by what they are copies of
        for body in bodies:
            copies.append({})
            branch = self._fork(before, copies[-1])
            try:
                self.run(body, branch)
                ways.append(branch)
            except Returned as result:
                returned.append(result.value)
            except Left as left:
                ways.append(branch)
                exits.append(left.goes_on)
        kept = refilled(before, copies)
        if not ways:
            raise Returned(all_same(returned))
        self.returns[-1] += returned
        self._join([{n: kept.get(id(v), v) for n, v in way.items()} for way in ways], names)
        if len(exits) == len(ways) and len(set(exits)) == 1:
            raise Left(exits[0])
        self.unsure = self.unsure or bool(exits)

    def _join(self, ways: list[Names], names: Names) -> None:
        """What is known of names however one came here."""
        names.clear()
        names.update(ways[0])
        for branch in ways[1:]:
            for name in [*names, *(name for name in branch if name not in names)]:
                other = branch.get(name, names.get(name))
                names[name] = merged(name, names.get(name, other), other)

    def _for(self, node: ast.For, names: Names) -> None:
        items = items_of(self.expressions.value(node.iter, names))
        self._loop(node, names, None if items is None else list(items)[: MOST_ROUNDS + 1])

    def _asyncfor(self, node: ast.AsyncFor, names: Names) -> None:
        self._loop(node, names, None)

    def _while(self, node: ast.While, names: Names) -> None:
        self.expressions.value(node.test, names)
        self._loop(node, names, None)

    def _loop(self, node: Any, names: Names, items: list[Any] | None) -> None:
        """A loop over these items, or of which nobody knows how often it goes round."""
        outer, self.unsure = self.unsure, False
        try:
            if items is None or len(items) > MOST_ROUNDS:
                self._maybe(node, names)
                ended = None
            else:
                ended = self._rounds(node, names, items)
            if ended is None or self.unsure:
                self._either([node.orelse, []], names)
            elif ended:
                self.run(node.orelse, names)
            if self.unsure:
                self._forget([node], names)
        finally:
            self.unsure = outer

    def _rounds(self, node: Any, names: Names, items: list[Any]) -> bool:
        """False where the loop breaks off."""
        for item in items:
            self.assign(node.target, item, names)
            if not self._round(node.body, names):
                return False
        return True

    def _round(self, body: list[ast.stmt], names: Names) -> bool:
        """One round of a loop; False where it breaks out of it."""
        try:
            self.run(body, names)
        except Left as left:
            return left.goes_on
        return True

    def _maybe(self, node: Any, names: Names) -> None:
        """One round, before which others may have been, or none."""
        for name in bound([node]) & names.keys():
            names[name] = Unknown(name)
        if isinstance(node, (ast.For, ast.AsyncFor)):
            self.assign(node.target, Unknown(text_of(node.target) or "an item"), names)
        self._either([[Once(node.body)], []], names)

    def _forget(self, nodes: list[ast.AST], names: Names) -> None:
        for name in changed(nodes) & names.keys():
            blur(names[name], name)
        for name in bound(nodes) & names.keys():
            names[name] = Unknown(name)

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

    def _fork(self, names: Names, seen: dict[int, Any] | None = None) -> Names:
        """Names for a branch to change."""
        seen = {} if seen is None else seen
        copy = {name: forked(value, seen) for name, value in names.items()}
        self.spend(len(names) + sum(map(len, seen.values())))
        return copy

    def assign(self, target: ast.AST, value: Any, names: Names) -> None:
        """Bind a target; what is inside an unknown object is kept by its text, `self.model`."""
        if isinstance(target, ast.Name):
            names[target.id] = self.unknown(target.id) if target.id in self.shared else value
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
            if isinstance(owner, Keyed) and is_known(key) and hashes(key):
                owner.put(key, value, target.lineno)
            elif isinstance(owner, list):
                put(owner, key, value)
        elif isinstance(target, ast.Attribute) and (text := text_of(target)):
            names[text] = value
