"""`%%ranks`: a cell on every rank, its results side by side.

    %load_ext helpers.lab
    ranks = Ranks(2)

    %%ranks
    x = torch.full((2,), float(rank))
    dist.all_reduce(x)
    x

Each cell runs in processes of its own, forked from the warm ones: nothing of it is left afterwards.
It knows `rank`, `ranks` (how many), `torch` and `dist`, and what it is handed by name from the
notebook: `%%ranks weights step` hands over two. `%%ranks 4` takes another number of ranks.
"""

import ast
import contextlib
import io
import linecache
from typing import Any

from helpers.engine.errors import UserError
from helpers.lab.calls.on_ranks import on_ranks
from helpers.lab.calls.side_by_side import side_by_side
from helpers.lab.figures.display import show_table
from helpers.lab.launch.warm.ranks import Ranks

FILE = "<the cell>"


def register(shell: Any) -> None:
    """Make `%%ranks` known to IPython."""

    def ranks(line: str, cell: str) -> None:
        run_cell(line, cell, shell.user_ns)

    shell.register_magic_function(ranks, "cell", "ranks")


def run_cell(line: str, cell: str, names: dict[str, Any]) -> None:
    """Run `cell` on every rank and show what each printed, and the value of its last line.

    Args:
        line: what stands behind `%%ranks`: a number of ranks, and names to hand over.
        names: the notebook's.

    Raises:
        UserError: no warm ranks, no such name, or no Python.
        CallFailed: a rank raised, or the ranks wait for each other.
    """
    warm = names.get("ranks")
    if not isinstance(warm, Ranks):
        raise UserError("%%ranks runs on warm ranks: make them first, ranks = Ranks(2)")
    nproc, given = _words(line, warm.count, names)
    try:
        ast.parse(cell)
    except SyntaxError as error:
        raise UserError(f"line {error.lineno} of the cell: {error.msg}") from None
    linecache.cache[FILE] = len(cell), None, cell.splitlines(keepends=True), FILE  # for its errors
    printed, values = zip(*on_ranks(_run, cell, given, nproc=nproc, ranks=warm))
    table = side_by_side(values, printed)
    if len(table):
        show_table(table, f"On {nproc} ranks")


def _words(line: str, count: int, names: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    given = {}
    for word in line.split():
        if word.isascii() and word.isdigit():
            count = int(word)
        elif word in names:
            given[word] = names[word]
        else:
            raise UserError(f"%%ranks {word}: the notebook has no such name")
    return count, given


def _run(cell: str, given: dict[str, Any]) -> tuple[str, Any]:
    """In a rank: what the cell prints, and the value of its last line where that has one."""
    import torch
    import torch.distributed as dist
    from torch.utils._pytree import tree_map_only

    place = {"rank": dist.get_rank(), "ranks": dist.get_world_size()}
    names = {"__name__": "__main__", "torch": torch, "dist": dist, **given, **place}
    tree, printed, value = ast.parse(cell), io.StringIO(), None
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, FILE, "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), FILE, "eval"), names)
    return printed.getvalue(), tree_map_only(torch.Tensor, lambda x: x.detach().cpu(), value)
