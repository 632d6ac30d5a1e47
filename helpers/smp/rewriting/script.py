"""A whole script, rewritten: its text with the calls replaced, and the diff to it."""

import ast
import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helpers.smp.reading.catalogue import catalogue
from helpers.smp.reading.names import Names
from helpers.smp.reading.sources import Place, Program
from helpers.smp.reading.uses import Use, uses
from helpers.smp.rewriting.calls import CannotReplace, Replacer, replacement_of
from helpers.smp.rewriting.edits import Edit, Removed, Text
from helpers.smp.rewriting.steps import Steps

CLOSED = ("SMP v1", "SMP v2", "SMDDP", "Profiler", "Debugger", "Training Compiler", "transformers")
FOREIGN = ("smp_tf", "smddp.tensorflow", "smdebug.tensorflow", "smdebug.mxnet", "smdebug.xgboost")
SHARED = "leaving_run"  # the module with the session of a project of several scripts
OWN = "from helpers.smp.running import Session"


@dataclass(frozen=True)
class Rewritten:
    """A script. `reasons` say why it was not written; `text` is empty then."""

    path: Path
    text: str = ""
    diff: str = ""
    reasons: list[str] = field(default_factory=list)


def rewritten(
    path: Path,
    program: Program,
    given: dict[str, Any] | None = None,
    shared: bool = False,
) -> Rewritten:
    """A script with its calls replaced.

    Args:
        given: the configuration of the job that starts it, which the service put over the script's.
        shared: other scripts of the project take the session from a module, leaving_run.
    """
    names = Names(program.tree)
    found = [use for use in uses(program, names) if use.library in CLOSED]
    if not found:
        return Rewritten(path, reasons=["nothing of the closed libraries is in it"])
    foreign = next((use for use in found if use.name.startswith(FOREIGN)), None)
    if foreign is not None:
        return Rewritten(path, reasons=[f"line {foreign.place.line}: {foreign.row.became}"])
    script = _Script(program, names, found, given, shared)
    try:
        text = script.text_after()
    except CannotReplace as error:
        return Rewritten(path, reasons=[str(error)])
    if script.reasons:
        return Rewritten(path, reasons=script.reasons)
    left = _left(text, path)
    if left:
        return Rewritten(path, reasons=left)
    return Rewritten(path, text, diff(path, program.text, text))


def diff(path: Path, before: str, after: str) -> str:
    """A unified diff that `patch -p1` takes in the script's folder."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True),
        after.splitlines(keepends=True),
        f"a/{path.name}",
        f"b/{path.name}",
    )
    ended = (
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )
    return "".join(ended)


def _left(text: str, path: Path) -> list[str]:
    """Uses that are still there, or that the text is no Python: both are this file's fault."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        return [f"line {error.lineno} would be no Python: {error.msg}"]
    count = text.count("\n") + 2
    program = Program(tree, text, [Place(str(path), 0, n) for n in range(1, count)])
    found = (use for use in uses(program, Names(tree)) if use.library in CLOSED)
    return [f"line {use.place.line}: {use.text} is left" for use in found]


class _Script:
    def __init__(
        self,
        program: Program,
        names: Names,
        found: Sequence[Use],
        given: dict[str, Any] | None,
        shared: bool,
    ) -> None:
        self.tree, self.names, self.found = program.tree, names, found
        self.given, self.shared = given, shared
        self.text = Text(program.text)
        self.parents = {
            child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)
        }
        self.steps = Steps(self.tree, self.text, names, self.parents)
        self.reasons: list[str] = []
        self.removed = Removed(self.text, self.parents)
        self.parallel = any(use.library == "SMP v1" for use in found)

    def text_after(self) -> str:
        edits = list(self._uses())
        if self.parallel:
            edits += self.steps.step_edits()
            edits += self.steps.making()
            edits += self.steps.devices(self.removed)
            edits += self.steps.clipping()
            edits += self.steps.ending()
            edits += self._starts()
        edits += self._imports()
        edits += self.removed.edits()
        return self.text.applied(edits)

    def _uses(self) -> Iterator[Edit]:
        replacer = Replacer(self.text, self.parents, self.removed)
        for use in self.found:
            if isinstance(use.node, ast.Name) and self._is_imported_anew(use):
                continue
            try:
                yield from replacer.edits(use)
            except CannotReplace as error:
                self.reasons.append(f"line {use.place.line}: {error}")

    def _starts(self) -> Iterator[Edit]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and self.names.short(node.func) == "smp.init":
                if not node.args and not node.keywords and not self.given:
                    raise CannotReplace(
                        f"line {node.lineno}: smp.init() takes its configuration from the job: "
                        "give the notebook that starts it, too"
                    )
                yield from self.steps.start_arguments(node, self.given)

    def _is_imported_anew(self, use: Use) -> bool:
        row = replacement_of(use.name)
        return row is not None and row.how == "name" and row.text.startswith("torch.nn.")

    def _imports(self) -> Iterator[Edit]:
        """The library's imports go; the session's comes where the first of them stood."""
        first = True
        nodes = [n for n in ast.walk(self.tree) if isinstance(n, (ast.Import, ast.ImportFrom))]
        for node in sorted(nodes, key=lambda one: one.lineno):
            kept, anew, ours = self._sorted_aliases(node)
            if not ours:
                continue
            lines = [self._import_line(node, kept)] if kept else []
            lines += [f"from torch.nn import LayerNorm{alias}" for alias in anew]
            top = node in self.tree.body
            if self.parallel and first and top:
                lines.append(f"from {SHARED} import run" if self.shared else OWN)
                first = False
            indent = " " * node.col_offset
            text = f"\n{indent}".join(lines)
            if text:
                yield self.text.replace(node, text)
            elif self._is_alone(node):
                yield self.text.replace(node, "pass")
            else:
                end = self.text.line_start(node.end_lineno + 1)
                yield Edit(self.text.line_start(node.lineno), end, "")
        if self.parallel and (first or not self.shared):
            yield self._session(first)

    def _session(self, with_import: bool) -> Edit:
        """`run = Session()`, after the program's imports."""
        body = self.tree.body
        ahead = [n for n in body if isinstance(n, (ast.Import, ast.ImportFrom))]
        after = ahead[-1].end_lineno if ahead else 0
        lines = []
        if with_import:
            lines.append(f"from {SHARED} import run" if self.shared else OWN)
        if not self.shared:
            lines += ["", "run = Session()"]
        at = self.text.line_start(after + 1)
        return Edit(at, at, "\n".join(lines) + "\n")

    def _sorted_aliases(
        self, node: ast.Import | ast.ImportFrom
    ) -> tuple[list[ast.alias], list[str], list[ast.alias]]:
        """Aliases of others, those that torch has under another name, and all of the libraries."""
        kept, anew, ours = [], [], []
        for alias in node.names:
            module = node.module if isinstance(node, ast.ImportFrom) else None
            dotted = f"{module}.{alias.name}" if module else alias.name
            short = catalogue().short(dotted) if not getattr(node, "level", 0) else None
            if (
                short is None
                or catalogue().library(short) not in CLOSED
                or not (catalogue().find(short))
            ):
                kept.append(alias)
                continue
            ours.append(alias)
            row = replacement_of(short)
            if row is not None and row.text == "torch.nn.LayerNorm":
                anew.append(
                    f" as {alias.asname}" if alias.asname not in (None, "LayerNorm") else ""
                )
        return kept, anew, ours

    def _import_line(self, node: ast.Import | ast.ImportFrom, aliases: list[ast.alias]) -> str:
        words = ", ".join(
            f"{alias.name} as {alias.asname}" if alias.asname else alias.name for alias in aliases
        )
        if isinstance(node, ast.Import):
            return f"import {words}"
        return f"from {'.' * node.level}{node.module or ''} import {words}"

    def _is_alone(self, node: ast.stmt) -> bool:
        parent = self.parents.get(node)
        for name in ("body", "orelse", "finalbody"):
            block = getattr(parent, name, None)
            if isinstance(block, list) and node in block:
                return len(block) == 1 and not isinstance(parent, ast.Module)
        return False
