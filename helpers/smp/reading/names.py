"""What the names of a program stand for: modules and functions that are imported, objects made.

    names = Names(program.tree)
    names.dotted(node)       # "smdistributed.modelparallel.torch.rank", of `smp.rank`
    names.made(node)         # "smp.DistributedModel()", of `model`, which a call of it made

A name means the same everywhere in a program. So `model` is known in a function that gets it as an
argument, as long as something in the program makes it under that name.
"""

import ast
from collections.abc import Iterator

from helpers.smp.reading.catalogue import catalogue

MODEL = "smp.DistributedModel()"
ROUNDS = 3  # of assignments from names that are assigned further down


class Names:
    """Of one program."""

    def __init__(self, tree: ast.Module) -> None:
        self.imported: dict[str, str] = {}  # a name's text -> what it is imported as
        self.objects: dict[str, str] = {}  # a name's text -> the object that it holds
        self.step_gives: dict[str, str] = {}  # functions that a decorator wraps -> what they give
        nodes = list(ast.walk(tree))
        for node in nodes:
            self._import(node)
        for node in nodes:
            self._decorated(node)
        for _ in range(ROUNDS):
            before = dict(self.imported), dict(self.objects)
            for node in nodes:
                for target, value in bindings(node):
                    self._bind(target, value)
            if before == (self.imported, self.objects):
                break

    def dotted(self, node: ast.AST) -> str | None:
        """What an expression is imported as; None of what no import brought."""
        if isinstance(node, ast.Name):
            return self.imported.get(node.id)
        if isinstance(node, ast.Attribute):
            text = text_of(node)
            if text in self.imported:
                return self.imported[text]
            base = self.dotted(node.value)
            return f"{base}.{node.attr}" if base else None
        if not isinstance(node, ast.Call):
            return None
        called, words = text_of(node.func), [_word(one) for one in node.args]
        if called == "getattr" and len(words) >= 2 and words[1]:
            base = self.dotted(node.args[0])
            return f"{base}.{words[1]}" if base else None
        if words and words[0] and called.rpartition(".")[2] in ("import_module", "__import__"):
            return words[0]
        return None

    def short(self, node: ast.AST) -> str | None:
        """The catalogue's name of an expression; None of what is no library's."""
        dotted = self.dotted(node)
        return catalogue().short(dotted) if dotted else None

    def made(self, node: ast.AST) -> str | None:
        """The catalogue's name of the object that an expression is."""
        text = text_of(node)
        if text in self.objects:
            return self.objects[text]
        if isinstance(node, ast.Call):
            called = text_of(node.func)
            if called.rpartition(".")[2] in self.step_gives:
                return self.step_gives[called.rpartition(".")[2]]
            name = self.name(node.func)
            return catalogue().gives(name) if name else None
        if isinstance(node, ast.Attribute) and (name := self.name(node)):
            return catalogue().gives(name)
        if isinstance(node, ast.Subscript):
            return self.made(node.value)
        return None

    def name(self, node: ast.AST) -> str | None:
        """The catalogue's name of what is looked up: of a library, or of an object of one."""
        if short := self.short(node):
            return short
        if isinstance(node, ast.Attribute) and (owner := self.made(node.value)):
            name = f"{owner}.{node.attr}"
            return name if catalogue().find(name) else None
        return None

    def _import(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.split(".")[0]
                self.imported[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                if alias.name == "*":
                    for name in _names_below(node.module):
                        self.imported[name] = f"{node.module}.{name}"
                else:
                    self.imported[alias.asname or alias.name] = f"{node.module}.{alias.name}"

    def _decorated(self, node: ast.AST) -> None:
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return
        for decorator in node.decorator_list:
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            name = self.short(called)
            gives = catalogue().gives(name) if name else None
            if gives:
                self.step_gives[node.name] = gives
                self._takes_gradients(node)

    def _takes_gradients(self, function: ast.FunctionDef) -> None:
        """In a step the object whose backward gets a loss is the model."""
        given = {argument.arg for argument in function.args.args}
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                owner = text_of(node.func.value)
                if node.func.attr == "backward" and owner in given:
                    self.objects.setdefault(owner, MODEL)

    def _bind(self, target: ast.AST, value: ast.AST) -> None:
        text = text_of(target)
        if not text:
            return
        if (dotted := self.dotted(value)) and catalogue().short(dotted):
            self.imported.setdefault(text, dotted)
        elif made := self.made(value):
            self.objects.setdefault(text, made)


def bindings(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Targets and what is assigned to them."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield from zip(target.elts, node.value.elts)
            else:
                yield target, node.value
    elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
        yield node.target, node.value
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield node.optional_vars, node.context_expr
    elif isinstance(node, ast.For) and isinstance(node.target, ast.Name):
        yield node.target, ast.Subscript(node.iter, ast.Constant(0))


def text_of(node: ast.AST) -> str:
    """A name or a chain of them as it is written, `self.model`; empty of all else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (base := text_of(node.value)):
        return f"{base}.{node.attr}"
    return ""


def takes_gradients(function: ast.AST) -> bool:
    """Does it call a backward?"""
    calls = (text_of(node.func) for node in ast.walk(function) if isinstance(node, ast.Call))
    return any(name.endswith(".backward") for name in calls)


def _names_below(module: str) -> Iterator[str]:
    """What `from module import *` brings, as far as the tables know."""
    short = catalogue().short(module)
    for name in catalogue().rows if short else ():
        first = name.removeprefix(f"{short}.").split(".")[0].split("(")[0]
        if name.startswith(f"{short}.") and first.isidentifier():
            yield first


def _word(node: ast.AST) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
