"""Lines of the project's own code, read from the file when they are shown, so never out of date.

show_source("helpers/engine/tensor/collectives.py", "_CopyIn", "_ReduceOut")
show_source("helpers/engine/pipeline/runner.py", "_Step.forward")
"""

import ast
from pathlib import Path
from textwrap import dedent

from helpers.engine.errors import UserError, as_path
from helpers.lab.figures.display import show_code
from helpers.lab.paths import ROOT, shown

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def show_source(path: str | Path, *names: str) -> None:
    """Show functions, classes or top-level assignments of a Python file, with their line numbers.

    Args:
        path: relative to the project root.
        names: in the order in which to show them; `Class.method` is a method.

    Raises:
        UserError: there is no such file, it is no Python, or it defines no such name.
    """
    title, code = read_source(path, *names)
    show_code(title, code, shown(ROOT / path))


def read_source(path: str | Path, *names: str) -> tuple[str, str]:
    """The title (`file, lines 3-9, 12-20`) and the code that `show_source` shows."""
    file = ROOT / as_path(path)
    try:
        text = file.read_text(encoding="utf-8")
        places = _places(ast.parse(text))
    except (UnicodeDecodeError, SyntaxError):
        raise UserError(f"{shown(file)} is no Python file") from None
    except (OSError, ValueError):  # a name that no file can have is a ValueError
        raise UserError(f"there is no file {shown(file)}") from None
    lines, spans, parts = text.splitlines(), [], []
    for name in names:
        if name not in places:
            raise UserError(f"{shown(file)} defines no {name!r}; it has: {', '.join(places)}")
        first, last = places[name]
        spans.append(f"{first}-{last}")
        parts.append(dedent("\n".join(lines[first - 1 : last])))
    return f"{shown(file)}, lines {', '.join(spans)}", "\n\n\n".join(parts)


def _places(tree: ast.Module) -> dict[str, tuple[int, int]]:
    """First and last line of each top-level definition and method, its decorators included."""
    places = {}
    for node in tree.body:
        if isinstance(node, Definition):
            places[node.name] = _lines(node)
        if isinstance(node, ast.ClassDef):
            methods = (member for member in node.body if isinstance(member, ast.FunctionDef))
            places |= {f"{node.name}.{method.name}": _lines(method) for method in methods}
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = (target.id for target in targets if isinstance(target, ast.Name))
            places |= dict.fromkeys(names, (node.lineno, node.end_lineno))
    return places


def _lines(node: Definition) -> tuple[int, int]:
    starts = [node.lineno, *(decorator.lineno for decorator in node.decorator_list)]
    return min(starts), node.end_lineno
