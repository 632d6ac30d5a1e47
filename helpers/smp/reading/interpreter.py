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
from helpers.smp.reading.joining import all_same
from helpers.smp.reading.statements import MOST_ROUNDS, Left, Names, Returned, Statements
from helpers.smp.reading.stored import shared
from helpers.smp.reading.values import Imported, Keyed, Local, Made, Namespace, Unknown, forked

BUDGET = 300_000  # steps, so that no program holds us up
DEPTH = 12  # of calls


class OutOfBudget(Exception):
    """The program is too long to be followed to its end."""


class Interpreter(Statements):
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
        self.expressions = Expressions(self)
        self.shared, self.returns, self.unsure = shared(tree), [[]], False
        self._spent, self._depth = 0, 0
        self._followed: set[ast.AST] = set()

    def walk(self) -> "Interpreter":
        for part in (lambda: self.run(self.tree.body, self.names), self._uncalled):
            self._spent = 0
            try:
                part()
            except (OutOfBudget, RecursionError):
                self.finished = False
            except (Returned, Left):  # outside of what they belong to
                continue
        return self

    def spend(self, steps: int = 1) -> None:
        self._spent += steps
        if self._spent > BUDGET:
            raise OutOfBudget

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
            parent = self.expressions.value(base, kind.names)
            parent = self.elsewhere(parent.dotted) if isinstance(parent, Imported) else parent
            if isinstance(parent, Local) and isinstance(parent.node, ast.ClassDef):
                yield from self.fields(parent)
        for node in kind.node.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                value = self.expressions.value(node.value, kind.names) if node.value else None
                if isinstance(value, Made) and value.dotted.endswith("field"):
                    value = value.kwargs.get("default", Unknown(node.target.id))
                yield node.target.id, value, node.lineno

    def call(self, function: Local, args: list[Any] | None, kwargs: Keyed) -> Any:
        """What one of the program's own functions returns; with args None nobody calls it."""
        node = function.node
        if isinstance(node, ast.ClassDef):
            return Unknown(f"{node.name}()")
        name = getattr(node, "name", "a lambda")
        if self._depth >= DEPTH:
            return Unknown(f"{name}()")
        inner = dict(function.names)
        self._arguments(node.args, args, kwargs, inner)
        self._followed.add(node)
        self._depth += 1
        self.returns.append([])
        try:
            value = self._result(node, inner)
        finally:
            self._depth -= 1
            early = self.returns.pop()
        return all_same([*early, value])

    def _result(self, node: Any, names: Names) -> Any:
        """What a function's body comes to at its end."""
        if isinstance(node, ast.Lambda):
            return self.expressions.value(node.body, names)
        try:
            self.run(node.body, names)
        except Returned as result:
            return result.value
        return None

    def _arguments(
        self, spec: ast.arguments, given: list[Any] | None, kwargs: Keyed, inner: Names
    ) -> None:
        positional, args = [*spec.posonlyargs, *spec.args], given or []
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
                inner[one.arg] = self.expressions.value(default, inner)
            else:
                inner[one.arg] = self.unknown(one.arg)
        if spec.vararg is not None:
            rest = Unknown(spec.vararg.arg) if given is None else tuple(args[len(positional) :])
            inner[spec.vararg.arg] = rest
        if spec.kwarg is not None:
            named = {one.arg for one in (*positional, *spec.kwonlyargs)}
            inner[spec.kwarg.arg] = (
                Unknown(spec.kwarg.arg) if given is None else kwargs.without(named)
            )

    def _uncalled(self) -> None:
        """Functions that nothing has called, those of classes too: they leave nothing behind."""
        names, self.names = self.names, self._fork(self.names)
        for node in ast.walk(self.tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                if node in self._followed:
                    continue
                try:
                    self.call(Local(node, names), None, Keyed())
                except Left:
                    continue
