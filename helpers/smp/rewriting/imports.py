"""What a rewritten script imports: the library's imports go, and what replacements read comes."""

import ast
import re
from collections.abc import Collection, Iterator, Sequence

from helpers.smp.reading.catalogue import catalogue
from helpers.smp.rewriting.calls import replacement_of
from helpers.smp.rewriting.edits import Edit, Text, block_of

CLOSED = ("SMP v1", "SMP v2", "SMDDP", "Profiler", "Debugger", "Training Compiler", "transformers")
SHARED = "leaving_run"  # the module with the session of a project of several scripts
OWN = "from helpers.smp.running import Session"
SESSION = "run"  # the name of the session in every script
MODULES = {"torch": "import torch", "logging": "import logging"}  # that replacements read
OF_TORCH = "torch.nn."  # a class that torch has: imported under the name that the script uses
Import = ast.Import | ast.ImportFrom


class Imports:
    """Of one program.

    Args:
        parents: of each node of its tree.
        shared: the session is that of the project's module.
    """

    def __init__(
        self, tree: ast.Module, text: Text, parents: dict[ast.AST, ast.AST], shared: bool
    ) -> None:
        self.tree, self.text, self.parents = tree, text, parents
        self.session = f"from {SHARED} import {SESSION}" if shared else OWN
        self.makes = () if shared else ("", f"{SESSION} = Session()")

    def edits(self, others: Sequence[Edit], needed: Collection[str]) -> Iterator[Edit]:
        """The library's imports go; those of the names in `needed` come.

        Args:
            others: the script's other edits: the session is made ahead of the first that reads it.
        """
        after = self._after_imports()
        at = min(after, self._first_read(others)) if SESSION in needed else after
        first = SESSION in needed and at == after  # its import may stand where the first one stood
        for node in sorted(self._nodes(), key=lambda one: one.lineno):
            kept, anew, gone = sorted_aliases(node)
            if not gone:
                continue
            lines = [_import_line(node, kept)] if kept else []
            lines += [f"from torch.nn import {alias}" for alias in anew]
            if first and node in self.tree.body:
                lines.append(self.session)
                first = False
            yield self._instead(node, lines)
        lacks = SESSION in needed and (first or at < after)
        if SESSION in needed and (lacks or self.makes):
            lines = [*([self.session] if lacks else []), *self.makes]
            yield Edit(at, at, "\n".join(lines) + "\n")
        modules = [line for name, line in MODULES.items() if name in needed]
        if modules:
            at = self._before_imports()
            yield Edit(at, at, "\n".join(modules) + "\n")

    def _nodes(self) -> Iterator[Import]:
        return (n for n in ast.walk(self.tree) if isinstance(n, Import))

    def _instead(self, node: Import, lines: list[str]) -> Edit:
        if lines:
            return self.text.replace(node, f"\n{' ' * node.col_offset}".join(lines))
        if self._is_alone(node):
            return self.text.replace(node, "pass")
        end = self.text.line_start(node.end_lineno + 1)
        return Edit(self.text.line_start(node.lineno), end, "")

    def _is_alone(self, node: ast.stmt) -> bool:
        inside = not isinstance(self.parents.get(node), ast.Module)
        return inside and len(block_of(node, self.parents)) == 1

    def _after_imports(self) -> int:
        """Below the program's last import, but for those inside of something."""
        ahead = [n.end_lineno for n in self.tree.body if isinstance(n, Import)]
        return self.text.line_start((ahead[-1] if ahead else 0) + 1)

    def _before_imports(self) -> int:
        """Above the first import, below what the program says of itself and of the future."""
        body = [n for n in self.tree.body if not _is_head(n)]
        first = next((n for n in body if isinstance(n, Import)), body[0] if body else None)
        return self.text.line_start(_first_line(first)) if first else len(self.text.data)

    def _first_read(self, others: Sequence[Edit]) -> int:
        """Where the first statement of the program begins in which an edit reads the session."""
        places = [edit.start for edit in others if re.search(rf"\b{SESSION}\.", edit.text)]
        for node in self.tree.body:
            start, end = self.text.line_start(_first_line(node)), self.text.end(node)
            if any(start <= place < end for place in places):
                return start
        return len(self.text.data)


def sorted_aliases(node: Import) -> tuple[list[ast.alias], list[str], list[ast.alias]]:
    """Aliases of others; of the libraries' those that torch has, as it calls them; and all of the
    libraries."""
    kept, anew, gone = [], [], []
    for alias in node.names:
        module = node.module if isinstance(node, ast.ImportFrom) else None
        dotted = f"{module}.{alias.name}" if module else alias.name
        short = catalogue().short(dotted) if not getattr(node, "level", 0) else None
        if not short or catalogue().library(short) not in CLOSED or not catalogue().find(short):
            kept.append(alias)
            continue
        gone.append(alias)
        if has_torch(short):
            name, bound = replacement_of(short).text.removeprefix(OF_TORCH), _bound(alias)
            anew.append(name if name == bound else f"{name} as {bound}")
    return kept, anew, gone


def has_torch(short: str) -> bool:
    """Is what the library has under this name a class of torch's?"""
    row = replacement_of(short)
    return row is not None and row.how == "name" and row.text.startswith(OF_TORCH)


def imported_names(tree: ast.Module) -> set[str]:
    """The names that imports give, wherever they stand."""
    nodes = (n for n in ast.walk(tree) if isinstance(n, Import))
    return {_bound(alias) for node in nodes for alias in node.names}


def brings_all(tree: ast.Module) -> tuple[bool, bool]:
    """Is there `import *` of the libraries, and of others?"""
    nodes = [n for n in ast.walk(tree) if isinstance(n, Import)]
    stars = [n for n in nodes if n.names[0].name == "*"]
    ours = [n for n in stars if sorted_aliases(n)[2]]
    return bool(ours), len(ours) < len(stars)


def _bound(alias: ast.alias) -> str:
    return alias.asname or alias.name.split(".")[0]


def _import_line(node: Import, aliases: list[ast.alias]) -> str:
    words = ", ".join(
        f"{alias.name} as {alias.asname}" if alias.asname else alias.name for alias in aliases
    )
    if isinstance(node, ast.Import):
        return f"import {words}"
    return f"from {'.' * node.level}{node.module or ''} import {words}"


def _is_head(node: ast.stmt) -> bool:
    """A docstring, or an import from the future, which nothing may stand above."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def _first_line(node: ast.stmt) -> int:
    lines = [one.lineno for one in getattr(node, "decorator_list", [])]
    return min([node.lineno, *lines])
