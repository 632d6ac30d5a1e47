"""A whole script, rewritten: its text with the calls replaced, and the diff to it."""

import ast
import difflib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helpers.smp.reading.names import Names
from helpers.smp.reading.sources import Place, Program
from helpers.smp.reading.uses import Use, every_use
from helpers.smp.rewriting.calls import CannotReplace, Replacer
from helpers.smp.rewriting.edits import Edit, Removed, Text
from helpers.smp.rewriting.imports import (
    CLOSED,
    SESSION,
    SHARED,
    Imports,
    brings_all,
    has_torch,
    imported_names,
)
from helpers.smp.rewriting.steps import Steps
from helpers.smp.rewriting.undefined import binds, first_read, undefined

__all__ = ["SHARED", "Rewritten", "diff", "rewritten"]
FOREIGN = ("smp_tf", "smddp.tensorflow", "smdebug.tensorflow", "smdebug.mxnet", "smdebug.xgboost")


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
    found = [use for use in every_use(program, names) if use.library in CLOSED]
    if not found:
        return Rewritten(path, reasons=["nothing of the closed libraries is in it"])
    foreign = next((use for use in found if use.name.startswith(FOREIGN)), None)
    if foreign is not None:
        return Rewritten(path, reasons=[f"line {foreign.place.line}: {foreign.row.became}"])
    script = _Script(program, names, found, given, shared)
    try:
        text = script.text_after()
    except CannotReplace as error:
        return Rewritten(path, reasons=[*script.reasons, str(error)])
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
    """Uses that are still there."""
    tree, count = ast.parse(text), text.count("\n") + 2
    program = Program(tree, text, [Place(str(path), 0, n) for n in range(1, count)])
    found = (use for use in every_use(program, Names(tree)) if use.library in CLOSED)
    return [f"{use.text}: nothing takes its place where it stands" for use in found]


class _Script:
    def __init__(
        self,
        program: Program,
        names: Names,
        found: Sequence[Use],
        given: dict[str, Any] | None,
        shared: bool,
    ) -> None:
        self.program, self.tree = program, program.tree
        self.names, self.found, self.given = names, found, given
        self.text = Text(program.text)
        self.parents = {
            child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)
        }
        self.steps = Steps(self.tree, self.text, names, self.parents)
        self.imports = Imports(self.tree, self.text, self.parents, shared)
        self.imported = imported_names(self.tree)
        self.reasons: list[str] = []
        self.removed = Removed(self.text, self.parents)
        self.parallel = any(use.library == "SMP v1" for use in found)

    def text_after(self) -> str:
        """The text with all edits, and with the imports of what they read.

        Raises:
            CannotReplace: something has no replacement, or a name would be left undefined.
        """
        edits = list(self._edits())
        if self.reasons:
            return ""
        self._check_name_of_session(edits)
        lacks = self._lacks(self._applied(edits, ()))
        text = self._applied(edits, lacks)
        self._check_defined(self._lacks(text))
        return text

    def _edits(self) -> Iterator[Edit]:
        yield from self._uses()
        if self.parallel:
            yield from self.steps.step_edits()
            yield from self.steps.making()
            yield from self.steps.devices(self.removed)
            yield from self.steps.clipping()
            yield from self.steps.ending()
            yield from self._starts()
        yield from self.removed.edits()

    def _applied(self, edits: Sequence[Edit], needed: Collection[str]) -> str:
        return self.text.applied([*edits, *self.imports.edits(edits, needed)])

    def _lacks(self, text: str) -> set[str]:
        """Names that the edits have made undefined."""
        ours, others = brings_all(self.tree)
        before = set() if ours and not others else undefined(self.program.text)
        try:
            return undefined(text) - before
        except SyntaxError as error:
            words = f"its calls' replacements would be no Python where they stand ({error.msg})"
            raise CannotReplace(f"{words}: replace them by hand, as the report says") from None

    def _check_name_of_session(self, edits: Sequence[Edit]) -> None:
        reads = any(f"{SESSION}." in edit.text for edit in edits)
        if reads and binds(self.program.text, SESSION):
            words = f"the script has a name {SESSION} of its own, and --write gives it to the"
            raise CannotReplace(f"{words} session: call it otherwise")

    def _check_defined(self, lacks: set[str]) -> None:
        for name in sorted(lacks):
            line = first_read(self.tree, name)
            where = f"line {line}: " if line else ""
            words = "would be undefined, since what gives it its value goes with the library"
            raise CannotReplace(f"{where}{name} {words}: give it another by hand")

    def _uses(self) -> Iterator[Edit]:
        replacer = Replacer(self.text, self.parents, self.removed)
        for use in self.found:
            if isinstance(use.node, ast.Name) and self._keeps_name(use, use.node.id):
                continue
            try:
                yield from replacer.edits(use)
            except CannotReplace as error:
                self.reasons.append(f"line {use.place.line}: {error}")

    def _keeps_name(self, use: Use, name: str) -> bool:
        """Is the name imported anew, or the script's own, whose value was replaced where it was
        given? Another branch may have given it another."""
        return has_torch(use.name) or name not in self.imported

    def _starts(self) -> Iterator[Edit]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and self.names.short(node.func) == "smp.init":
                if not node.args and not node.keywords and not self.given:
                    raise CannotReplace(
                        f"line {node.lineno}: smp.init() takes its configuration from the job: "
                        "give the notebook that starts it, too"
                    )
                yield from self.steps.start_arguments(node, self.given)
