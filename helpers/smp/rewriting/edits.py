"""Changes of a text by spans of its syntax tree, applied at once."""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Edit:
    """Bytes from `start` up to `end` become `text`."""

    start: int
    end: int
    text: str


class Text:
    """A program's text, by the places of its syntax tree: lines from 1, columns in bytes."""

    def __init__(self, text: str) -> None:
        self.data = text.encode()
        self.starts = [0]
        for line in self.data.split(b"\n"):
            self.starts.append(self.starts[-1] + len(line) + 1)

    def start(self, node: ast.AST) -> int:
        return self.starts[node.lineno - 1] + node.col_offset

    def end(self, node: ast.AST) -> int:
        return self.starts[node.end_lineno - 1] + node.end_col_offset

    def of(self, node: ast.AST) -> str:
        return self.data[self.start(node) : self.end(node)].decode()

    def line_start(self, line: int) -> int:
        return self.starts[line - 1]

    def replace(self, node: ast.AST, text: str) -> Edit:
        return Edit(self.start(node), self.end(node), text)

    def applied(self, edits: Iterable[Edit]) -> str:
        """The text after all edits. One that lies inside another is a part of what that one takes
        away; two that only overlap cannot be. What is put in where another begins stands ahead."""
        kept: list[Edit] = []
        for edit in sorted(set(edits), key=lambda one: (one.start, one.start < one.end, -one.end)):
            if kept and edit.start < kept[-1].end:
                if edit.end > kept[-1].end:
                    raise ValueError(f"edits overlap: {kept[-1]} and {edit}")
                continue
            kept.append(edit)
        parts, at = [], 0
        for edit in kept:
            parts += [self.data[at : edit.start], edit.text.encode()]
            at = edit.end
        return b"".join([*parts, self.data[at:]]).decode()


def ancestors(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> Iterator[ast.AST]:
    """What a node stands in, the nearest first."""
    while node in parents:
        node = parents[node]
        yield node


def block_of(statement: ast.stmt, parents: dict[ast.AST, ast.AST]) -> list[ast.stmt]:
    """The statements among which one stands."""
    for name in ("body", "orelse", "finalbody", "handlers"):
        block = getattr(parents.get(statement), name, [])
        if isinstance(block, list) and statement in block:
            return block
    return [statement]


class Removed:
    """Statements that go. Where all of a block goes, so does its `if`; another keeps a `pass`."""

    def __init__(self, text: Text, parents: dict[ast.AST, ast.AST]) -> None:
        self.text, self.parents = text, parents
        self.statements: set[ast.stmt] = set()

    def add(self, statement: ast.stmt) -> None:
        self.statements.add(statement)
        parent = self.parents.get(statement)
        if isinstance(parent, ast.If) and self._goes(parent):
            self.add(parent)

    def _goes(self, branch: ast.If) -> bool:
        """All that it does is gone, and its test does nothing."""
        nodes = ast.walk(branch.test)
        does = any(isinstance(node, (ast.Call, ast.NamedExpr)) for node in nodes)
        return not does and all(one in self.statements for one in (*branch.body, *branch.orelse))

    def edits(self) -> Iterable[Edit]:
        for statement in self.statements:
            block = block_of(statement, self.parents)
            if all(one in self.statements for one in block) and statement is block[0]:
                yield self.text.replace(statement, "pass")
            elif self._has_lines(statement):
                start = self.text.line_start(statement.lineno)
                yield Edit(start, self.text.line_start(statement.end_lineno + 1), "")
            else:
                yield self.text.replace(statement, "pass")

    def _has_lines(self, statement: ast.stmt) -> bool:
        """Nothing else stands on its lines."""
        start = self.text.line_start(statement.lineno)
        end = self.text.line_start(statement.end_lineno + 1)
        before = self.text.data[start : self.text.start(statement)]
        after = self.text.data[self.text.end(statement) : end].strip()
        return not before.strip() and (not after or after.startswith(b"#"))
