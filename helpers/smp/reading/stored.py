"""Which names a piece of a program binds or changes, wherever it may leave off."""

import ast
from collections.abc import Iterable, Iterator

CHANGES = {
    *("append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse"),
    *("update", "setdefault", "popitem", "add", "discard", "put"),
}


def bound(nodes: Iterable[ast.AST]) -> set[str]:
    """Names that are bound in these statements."""
    return {
        one.id
        for node in nodes
        for one in ast.walk(node)
        if isinstance(one, ast.Name) and not isinstance(one.ctx, ast.Load)
    }


def changed(nodes: Iterable[ast.AST]) -> set[str]:
    """Names whose lists, dictionaries or objects are changed in these statements."""
    return {owner.id for owner in _owners(nodes) if isinstance(owner, ast.Name)}


def shared(tree: ast.AST) -> set[str]:
    """Names that a function binds outside of itself: every call may give them another value."""
    declared = (one for one in ast.walk(tree) if isinstance(one, (ast.Global, ast.Nonlocal)))
    return {name for one in declared for name in one.names}


def captured(pattern: ast.AST) -> set[str]:
    """Names that a pattern of `match` binds."""
    parts = list(ast.walk(pattern))
    found = {getattr(one, field, None) for one in parts for field in ("name", "rest")}
    return {name for name in found if isinstance(name, str)}


def _owners(nodes: Iterable[ast.AST]) -> Iterator[ast.expr]:
    for node in nodes:
        for one in ast.walk(node):
            if isinstance(one, (ast.Subscript, ast.Attribute)):
                called = isinstance(one, ast.Attribute) and one.attr in CHANGES
                if called or not isinstance(one.ctx, ast.Load):
                    yield one.value
