"""Uses of the libraries as edits, by the table replacements.csv."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from helpers.smp.reading.catalogue import below
from helpers.smp.reading.uses import Use
from helpers.smp.rewriting.edits import Edit, Removed, Text, ancestors
from helpers.tables import read_table

TABLE = Path(__file__).with_name("replacements.csv")
BRANCHES = (ast.If, ast.For, ast.While, ast.Try, ast.IfExp, ast.BoolOp, ast.Match)
LATER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.comprehension)
BACKENDS = ("nccl", "gloo")
QUOTES = ("'", '"', "\\")
SIMPLE = (ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign)


@dataclass(frozen=True)
class Replacement:
    """What takes the place of a use; `how` is explained in the table."""

    name: str
    how: str
    text: str = ""


class CannotReplace(Exception):
    """A use has no replacement; the words say why."""


@cache
def replacements() -> dict[str, Replacement]:
    return {row.name: row for row in read_table(TABLE, Replacement)}


def replacement_of(name: str) -> Replacement | None:
    """The row that fits a use's name best."""
    rows = replacements()
    return rows[name] if name in rows else below(rows, name)


class Replacer:
    """Turns uses of one program into edits.

    Args:
        parents: of each node of its tree.
        removed: takes the statements that go.
    """

    def __init__(self, text: Text, parents: dict[ast.AST, ast.AST], removed: Removed) -> None:
        self.text, self.parents, self.removed = text, parents, removed

    def edits(self, use: Use) -> Iterator[Edit]:
        """What a use becomes.

        Raises:
            CannotReplace: nothing takes its place, or not where it stands.
        """
        node, row = use.node, replacement_of(use.name)
        if isinstance(node, (ast.Import, ast.ImportFrom, ast.keyword)) or node is None:
            return  # imports are the script's; an argument goes with its call
        self._check_place(node, use)
        if row is None:  # said where it is reached: it may be on no way that is taken
            row = Replacement(use.name, "raise", use.row.became if use.row else "it is not known")
        method = getattr(self, f"_{row.how}", None)
        for edit in method(node, row.text, use) if method else ():
            self._check_quotes(edit, node, use)
            yield edit

    def _check_quotes(self, edit: Edit, node: ast.AST, use: Use) -> None:
        """Before Python 3.12 an f-string holds no quotes of its own kind."""
        if any(quote in edit.text for quote in QUOTES) and self._inside(node, (ast.JoinedStr,)):
            words = f"{use.text} stands in an f-string, where nothing can take its place"
            raise CannotReplace(f"{words}: give it a name before it")

    def _inside(self, node: ast.AST, kinds: tuple[type, ...]) -> bool:
        return any(isinstance(one, kinds) for one in ancestors(node, self.parents))

    def _check_place(self, node: ast.AST, use: Use) -> None:
        """Before Python 3.12 the places of what stands in an f-string can be wrong."""
        try:
            there = ast.unparse(ast.parse(self.text.of(node).strip(), mode="eval"))
        except (SyntaxError, UnicodeDecodeError, ValueError):
            there = ""
        if there != ast.unparse(node):
            raise CannotReplace(f"{use.text}: its place is not known; take it out of the f-string")

    def _call_of(self, node: ast.AST) -> ast.Call | None:
        parent = self.parents.get(node)
        return parent if isinstance(parent, ast.Call) and parent.func is node else None

    def _name(self, node: ast.AST, text: str, use: Use) -> Iterator[Edit]:
        if "{owner}" in text:
            owner = node.value
            yield Edit(self.text.end(owner), self.text.end(node), text.replace("{owner}", ""))
        else:
            yield self.text.replace(node, text)

    def _call(self, node: ast.AST, text: str, use: Use) -> Iterator[Edit]:
        call = self._call_of(node)
        if call is None:
            raise CannotReplace(f"{use.text} is handed on, and not called")
        kept = None
        if "{0}" in text:
            if not call.args:
                raise CannotReplace(f"{use.text} has no first argument")
            kept, mark = call.args[0], "{0}"
        elif "{owner}" in text and isinstance(call.func, ast.Attribute):
            kept, mark = call.func.value, "{owner}"
        if kept is None:
            yield self.text.replace(call, text)
            return
        before, _, after = text.partition(mark)
        yield Edit(self.text.start(call), self.text.start(kept), before)
        yield Edit(self.text.end(kept), self.text.end(call), after)

    def _owner(self, node: ast.Attribute, text: str, use: Use) -> Iterator[Edit]:
        whole = self._call_of(node) or node
        yield Edit(self.text.end(node.value), self.text.end(whole), "")

    def _statement(self, node: ast.AST, text: str, use: Use) -> Iterator[Edit]:
        around = ancestors(node, self.parents)
        statement = next(one for one in around if isinstance(one, ast.stmt))
        if not isinstance(statement, SIMPLE):
            raise CannotReplace(f"{use.text} stands in a condition")
        self.removed.add(statement)
        yield from ()

    def _raise(self, node: ast.AST, text: str, use: Use) -> Iterator[Edit]:
        if not isinstance(getattr(node, "ctx", None), (ast.Load, type(None))):
            raise CannotReplace(f"{use.text} is set, and nothing here can be set in its place")
        if not self._inside(node, (*BRANCHES, *LATER)):  # elsewhere it may be on no way taken
            raise CannotReplace(
                f"{use.text} is reached by every run, and is yours to replace: {text}"
            )
        words = f"line {use.place.line}, {use.text.split('(')[0]}: {text}"
        yield self.text.replace(self._call_of(node) or node, f"run.by_hand({words!r})")

    def _word(self, node: ast.AST, text: str, use: Use) -> Iterator[Edit]:
        row = self.parents.get(node)
        around = self.parents.get(row) if isinstance(row, (ast.List, ast.Tuple)) else None
        if isinstance(around, ast.keyword) and around.arg == "choices":  # both may be asked for
            there = {one.value for one in row.elts if isinstance(one, ast.Constant)}
            words = [word for word in BACKENDS if word not in there] or BACKENDS[:1]
            yield self.text.replace(node, ", ".join(f'"{word}"' for word in words))
            return
        yield self.text.replace(node, f"({text})")
