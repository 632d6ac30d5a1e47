"""Every use of the service's libraries in a program, each once, with its place.

A use is an import, a look-up of something imported or of an object that a library made, an argument
that only the service has, or a word that names one of its parts (backend "smddp"). What the tables
do not know of the closed libraries is a use, too: it is reported, and refused.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from helpers.smp.reading.catalogue import ANYWHERE, LEFT_OUT, Call, catalogue
from helpers.smp.reading.names import Names, text_of
from helpers.smp.reading.sources import Place, Program

OPEN = ("estimator", "transformers")  # libraries with parts that are no part of the service's
LONGEST = 80
BY_WORD = ("import_module", "__import__", "getattr")  # what they look up is a word of their call
INSTALLED = re.compile(r"\b(smdebug\w*|smdistributed\w*|smppy|torch_xla|smprof)\b")


@dataclass(frozen=True)
class Use:
    """One use. `name` is the catalogue's, `text` as it is written, `row` what is known of it."""

    place: Place
    library: str
    name: str
    text: str
    row: Call | None = field(compare=False)
    node: ast.AST | None = field(default=None, compare=False, repr=False)


def uses(program: Program, names: Names) -> list[Use]:
    """All uses of a program that its syntax shows, in its order; of what a line does twice, one."""
    found = dict.fromkeys([*every_use(program, names), *_installed(program)])
    return sorted(found, key=lambda use: (use.place, use.name))


def every_use(program: Program, names: Names) -> list[Use]:
    """Each place of the syntax, though a line does the same twice."""
    finder = _Finder(program, names)
    finder.visit(program.tree)
    return sorted(finder.found, key=lambda use: (use.place, use.name))


class _Finder(ast.NodeVisitor):
    def __init__(self, program: Program, names: Names) -> None:
        self.program, self.names = program, names
        self.found: list[Use] = []
        shorts = filter(None, map(catalogue().short, names.imported.values()))
        self.imported = {catalogue().library(short) for short in shorts}

    def add(self, line: int, name: str, text: str, node: ast.AST) -> None:
        row, library = catalogue().find(name), catalogue().library(name)
        if not self._is_known(name):
            return
        text = " ".join(text.split())[:LONGEST]
        self.found.append(Use(self.program.place(line), library, name, text, row, node))

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if short := catalogue().short(alias.name):
                self.add(alias.lineno, short, f"import {alias.name}", node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names if node.module and not node.level else ():
            dotted = node.module if alias.name == "*" else f"{node.module}.{alias.name}"
            if short := catalogue().short(dotted):
                self.add(alias.lineno, short, f"from {node.module} import {alias.name}", node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        name = self.names.name(node)
        if name is None or not self._is_known(name):
            name = self._distinct(node.attr) or name
        if name is not None:
            self.add(node.end_lineno or node.lineno, name, ast.unparse(node), node)
        if name is None or self.names.short(node) is None:
            self.generic_visit(node)  # below it another object may be looked up

    def _is_known(self, name: str) -> bool:
        return bool(catalogue().find(name)) or catalogue().library(name) not in ("", *OPEN)

    def _distinct(self, method: str) -> str | None:
        """The name of a method that is known on any object."""
        name = catalogue().distinct.get(method)
        if name is None or catalogue().rows[name].distinct == ANYWHERE:
            return name
        return name if catalogue().library(name) in self.imported else None

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load) and (short := self.names.short(node)):
            self.add(node.lineno, short, node.id, node)

    def visit_Call(self, node: ast.Call) -> None:
        by_word = text_of(node.func).rpartition(".")[2] in BY_WORD
        if by_word and (short := self.names.short(node)):
            self.add(node.lineno, short, ast.unparse(node), node)
        called = self.names.name(node.func)
        for keyword in node.keywords:
            self._argument(called, keyword)
        self.generic_visit(node)

    def _argument(self, called: str | None, keyword: ast.keyword) -> None:
        of_service = bool(called) and (catalogue().find(called) or called.startswith("sagemaker."))
        made = catalogue().gives(called) if called else None
        for name in (f"{made}({keyword.arg})", f"{called}({keyword.arg})"):
            if made != "estimator()" and catalogue().find(name):
                self.add(keyword.lineno, name, ast.unparse(keyword), keyword)
                return
        name = f"argument({keyword.arg})"
        if name in catalogue().rows and (of_service or keyword.arg != "rules"):
            self.add(keyword.lineno, name, ast.unparse(keyword), keyword)
        elif made == "estimator()" and keyword.arg and (row := f"estimator({keyword.arg})"):
            self.add(keyword.lineno, row, ast.unparse(keyword), keyword)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and f'"{node.value}"' in catalogue().rows:
            self.add(node.lineno, f'"{node.value}"', f'"{node.value}"', node)


def _installed(program: Program) -> Iterator[Use]:
    """Shell lines of a notebook that name a library: they install it."""
    for place, line in program.shell:
        if found := INSTALLED.search(line):
            short = catalogue().short(found[1]) or "smdistributed.modelparallel"
            row = Call(short, LEFT_OUT, "nothing of the service needs to be installed")
            yield Use(place, catalogue().library(short), short, line[:LONGEST], row)
