"""A program gone through from the top, as far as it can be told without running it.

    program = Interpreter(tree)
    program.walk()
    program.calls[node]          # each call of something imported, with its arguments as they were

Assignments, branches, loops over what is known and calls of the program's own functions are
followed. Where a test is not known both branches are, and what they leave different is Unknown.
Functions that nothing calls are gone through at the end, with unknown arguments.
"""

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from helpers.smp.reading.expressions import Expressions
from helpers.smp.reading.names import text_of
from helpers.smp.reading.values import (
    Imported,
    Keyed,
    Local,
    Made,
    Namespace,
    Unknown,
    forked,
    is_known,
    items_of,
    merged,
)

BUDGET = 300_000  # steps, so that no program holds us up
DEPTH = 12  # of calls
MOST_ROUNDS = 300  # of a loop over what is known
Names = dict[str, Any]


class OutOfBudget(Exception):
    """The program is too long to be followed to its end."""


class Returned(Exception):
    """A function's return."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Interpreter:
    """Goes through one program.

    Args:
        answers: values of what the file does not say, by the names that were asked for.
        arguments: of the job, by the names that a parser of arguments gives them.
        others: names of other files that were given, by module.

    Attributes:
        calls: of each call of something imported, what it was given, once for each time.
        parsed: what the program's parsers of arguments give.
        wanted: names whose values the program does not give.
        finished: was it gone through to its end?
    """

    def __init__(
        self,
        tree: ast.Module,
        answers: Mapping[str, Any] | None = None,
        arguments: Mapping[str, Any] | None = None,
        others: "Mapping[str, Interpreter] | None" = None,
    ) -> None:
        self.tree = tree
        self.answers, self.arguments = dict(answers or {}), dict(arguments or {})
        self.others = dict(others or {})
        self.calls: dict[ast.Call, list[Made]] = {}
        self.parsed: list[Namespace] = []
        self.wanted: set[str] = set()
        self.finished = True
        self.names: Names = {"__name__": "__main__"}
        self._expressions = Expressions(self)
        self._spent, self._depth = 0, 0
        self._followed: set[ast.AST] = set()

    def walk(self) -> "Interpreter":
        for part in (lambda: self._run(self.tree.body, self.names), self._uncalled):
            self._spent = 0
            try:
                part()
            except (OutOfBudget, RecursionError):
                self.finished = False
            except (Returned, _Break, _Continue):  # outside of what they belong to
                continue
        return self

    def spend(self, steps: int = 1) -> None:
        self._spent += steps
        if self._spent > BUDGET:
            raise OutOfBudget

    def _fork(self, names: Names) -> Names:
        """Names for a branch to change."""
        seen: dict[int, Any] = {}
        copy = {name: forked(value, seen) for name, value in names.items()}
        self.spend(len(names) + sum(map(len, seen.values())))
        return copy

    def unknown(self, name: str, value: Unknown | None = None) -> Any:
        """What was answered for a name that the file does not give a value; else Unknown."""
        self.wanted.add(name)
        return self.answers.get(name, value or Unknown(name))

    def given(self, *names: str) -> Any:
        """The job's argument under one of these names; None where it gives none."""
        return next((self.arguments[name] for name in names if name in self.arguments), None)

    def noted(self, made: Made) -> None:
        copy = Made(made.dotted, forked(made.args), forked(made.kwargs), made.node)
        if made.node is not None and len(self.calls.setdefault(made.node, [])) < MOST_ROUNDS:
            self.calls[made.node].append(copy)

    def elsewhere(self, dotted: str) -> Any:
        """What another file of those given has under this name."""
        module, _, name = dotted.rpartition(".")
        other = self.others.get(module.rpartition(".")[2])
        return other.names.get(name) if other else None

    def fields(self, kind: Local) -> Iterator[tuple[str, Any, int]]:
        """Names, defaults and lines of a dataclass, those of its bases first."""
        for base in kind.node.bases:
            parent = self._expressions.value(base, kind.names)
            parent = self.elsewhere(parent.dotted) if isinstance(parent, Imported) else parent
            if isinstance(parent, Local) and isinstance(parent.node, ast.ClassDef):
                yield from self.fields(parent)
        for node in kind.node.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                value = self._expressions.value(node.value, kind.names) if node.value else None
                if isinstance(value, Made) and value.dotted.endswith("field"):
                    value = value.kwargs.get("default", Unknown(node.target.id))
                yield node.target.id, value, node.lineno

    def call(self, function: Local, args: list[Any], kwargs: Keyed) -> Any:
        """What one of the program's own functions returns."""
        node = function.node
        if isinstance(node, ast.ClassDef):
            return Unknown(f"{node.name}()")
        name = getattr(node, "name", "a lambda")
        if self._depth >= DEPTH:
            return Unknown(f"{name}()")
        inner = dict(function.names)
        self._arguments(node.args, args, kwargs, inner, name)
        self._followed.add(node)
        self._depth += 1
        try:
            if isinstance(node, ast.Lambda):
                return self._expressions.value(node.body, inner)
            self._run(node.body, inner)
        except Returned as result:
            return result.value
        finally:
            self._depth -= 1
        return None

    def _arguments(
        self, spec: ast.arguments, args: list[Any], kwargs: Keyed, inner: Names, name: str
    ) -> None:
        positional = [*spec.posonlyargs, *spec.args]
        first = len(positional) - len(spec.defaults)
        for index, one in enumerate([*positional, *spec.kwonlyargs]):
            default: ast.expr | None = None
            if first <= index < len(positional):
                default = spec.defaults[index - first]
            elif index >= len(positional):
                default = spec.kw_defaults[index - len(positional)]
            if index < min(len(args), len(positional)):
                inner[one.arg] = args[index]
            elif one.arg in kwargs:
                inner[one.arg] = kwargs[one.arg]
            elif default is not None:
                inner[one.arg] = self._expressions.value(default, inner)
            else:
                inner[one.arg] = self.unknown(one.arg)
        for rest in (spec.vararg, spec.kwarg):
            if rest is not None:
                inner[rest.arg] = Unknown(rest.arg)

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
            owner = self._expressions.value(target.value, names)
            key = self._expressions.value(target.slice, names)
            if isinstance(owner, Keyed) and is_known(key) and not isinstance(key, (list, dict)):
                owner.put(key, value, target.lineno)
        elif isinstance(target, ast.Attribute) and (text := text_of(target)):
            names[text] = value

    def _run(self, body: list[ast.stmt], names: Names) -> None:
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
                self._expressions.value(child, names)

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
            self._expressions.value(decorator, names)
        names[node.name] = Local(node, names)

    _asyncfunctiondef = _functiondef

    def _classdef(self, node: ast.ClassDef, names: Names) -> None:
        names[node.name] = Local(node, names)

    def _return(self, node: ast.Return, names: Names) -> None:
        raise Returned(self._expressions.value(node.value, names))

    def _assign(self, node: ast.Assign, names: Names) -> None:
        value = self._expressions.value(node.value, names)
        for target in node.targets:
            self.assign(target, value, names)

    def _annassign(self, node: ast.AnnAssign, names: Names) -> None:
        if node.value is not None:
            self.assign(node.target, self._expressions.value(node.value, names), names)

    def _augassign(self, node: ast.AugAssign, names: Names) -> None:
        whole = ast.copy_location(ast.BinOp(node.target, node.op, node.value), node)
        self.assign(node.target, self._expressions.value(whole, names), names)

    def _delete(self, node: ast.Delete, names: Names) -> None:
        for target in node.targets:
            names.pop(text_of(target), None)

    def _if(self, node: ast.If, names: Names) -> None:
        test = self._expressions.value(node.test, names)
        if is_known(test):
            self._run(node.body if test else node.orelse, names)
        else:
            self._either([node.body, node.orelse], names)

    def _either(self, bodies: list[list[ast.stmt]], names: Names) -> None:
        """One of these is run, and it is not known which."""
        before, left, returned = dict(names), [], []
        for body in bodies:
            branch = self._fork(before)
            try:
                self._run(body, branch)
                left.append(branch)
            except Returned as result:
                returned.append(result)
            except (_Break, _Continue):
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
        items = items_of(self._expressions.value(node.iter, names))
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
            self._run(body, names)
        except _Break:
            return False
        except _Continue:
            return True
        return True

    def _maybe(self, node: Any, names: Names) -> None:
        """A loop of which nobody knows how often it goes round."""
        if isinstance(node, (ast.For, ast.AsyncFor)):
            self.assign(node.target, Unknown(text_of(node.target) or "an item"), names)
        self._either([[Once(node.body)], []], names)

    _asyncfor = _maybe

    def _while(self, node: ast.While, names: Names) -> None:
        self._expressions.value(node.test, names)
        self._maybe(node, names)

    def _once(self, node: "Once", names: Names) -> None:
        self._round(node.body, names)

    def _break(self, node: ast.Break, names: Names) -> None:
        raise _Break

    def _continue(self, node: ast.Continue, names: Names) -> None:
        raise _Continue

    def _with(self, node: Any, names: Names) -> None:
        for item in node.items:
            value = self._expressions.value(item.context_expr, names)
            if item.optional_vars is not None:
                self.assign(item.optional_vars, value, names)
        self._run(node.body, names)

    _asyncwith = _with

    def _try(self, node: Any, names: Names) -> None:
        self._run(node.body, names)
        self._run(node.orelse, names)
        for handler in node.handlers:  # of what could have gone wrong; it leaves nothing behind
            branch = self._fork(names)
            try:
                self._run(handler.body, branch)
            except (Returned, _Break, _Continue):
                continue
        self._run(node.finalbody, names)

    _trystar = _try

    def _uncalled(self) -> None:
        """Functions that nothing has called, those of classes too."""
        for node in ast.walk(self.tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                if node in self._followed:
                    continue
                try:
                    self.call(Local(node, self.names), [], Keyed())
                except (_Break, _Continue):
                    continue


class _Break(Exception):
    pass


class _Continue(Exception):
    pass


class Once(ast.stmt):
    """The body of a loop, as a statement."""

    _fields = ("body",)


def _all_same(values: list[Any]) -> Any:
    first = values[0]
    for value in values[1:]:
        first = merged("a result", first, value)
    return first
