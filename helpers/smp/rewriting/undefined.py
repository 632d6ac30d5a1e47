"""Names that a program reads and nothing in it binds, by Python's own tables of symbols.

A rewriting compares them before and after: what it has made undefined is not written.
"""

import ast
import builtins
import symtable
from collections.abc import Iterator

OF_MODULES = {"__file__", "__path__", "__annotations__", "__builtins__"}
KNOWN = {*dir(builtins), *OF_MODULES}


def undefined(text: str) -> set[str]:
    """Names that are looked up in the module or Python's own, and are in neither.

    What `from x import *` brings is not known, and so counts as undefined.

    Raises:
        SyntaxError: the text is no Python.
    """
    top = symtable.symtable(text, "script", "exec")
    bound, read = set(KNOWN), set()
    for table in _tables(top):
        for symbol in table.get_symbols():
            if table is not top and not symbol.is_global():
                continue
            binds = symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()
            bound |= {symbol.get_name()} if binds else set()
            read |= {symbol.get_name()} if symbol.is_referenced() else set()
    return read - bound


def binds(text: str, name: str) -> bool:
    """Does a program give this name to something of its own, at whatever depth?"""
    for table in _tables(symtable.symtable(text, "script", "exec")):
        if name in table.get_identifiers():
            symbol = table.lookup(name)
            if symbol.is_assigned() or symbol.is_imported() or symbol.is_parameter():
                return True
    return False


def first_read(tree: ast.Module, name: str) -> int:
    """The line on which a program first reads a name; 0 where it does not."""
    nodes = (n for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id == name)
    return min((n.lineno for n in nodes if isinstance(n.ctx, ast.Load)), default=0)


def _tables(top: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield top
    for inner in top.get_children():
        yield from _tables(inner)
