"""The drawn ideas of context parallelism: keys that go round, and parts that cost the same.

fig, table, alt = draw_ring()
fig, table, alt = draw_shares([1024], ranks=4)
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from helpers.engine import shares_of_work
from helpers.engine.context.balance import SPLITS, deal, row_of
from helpers.engine.errors import UserError
from helpers.engine.models.documents import Document
from helpers.lab.figures.drawing import WAITING, box, fill, key, name_columns, name_rows, words_at
from helpers.lab.figures.style import Look, Picture, new_figure, part_look
from helpers.lab.figures.tables import in_words, table_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST = 7  # ranks that are told apart by colour


def draw_ring(ranks: int = 4) -> Picture:
    """A row per turn, a cell per rank: whose keys it computes with. Raises UserError."""
    looks = _looks(ranks)
    fig, axes = new_figure(0.62 * ranks + 1, grid=None)
    rows = {}
    for turn in range(ranks):
        held = [(rank - turn) % ranks for rank in range(ranks)]
        for rank, owner in enumerate(held):
            look = looks[owner] if owner <= rank else WAITING
            box(axes, (rank + 0.06, -turn - 0.8), 0.88, 0.66, look)
            words = f"k{owner}, v{owner}" + ("" if owner <= rank else ": masked")
            words_at(axes, (rank + 0.5, -turn - 0.47), words, label=True)
        rows[f"turn {turn}"] = {f"rank {r}": f"k{owner}, v{owner}" for r, owner in enumerate(held)}
    axes.set(xlim=(0, ranks), ylim=(-ranks, 0))
    name_columns(axes, {rank + 0.5: f"rank {rank}\nhas q{rank}" for rank in range(ranks)}, top=True)
    name_rows(axes, {-turn - 0.47: f"turn {turn}" for turn in range(ranks)})
    table = table_of(rows, "holds")
    alt = (
        f"Keys and values on {ranks} ranks that hold contiguous parts, turn by turn: each pair "
        "moves one rank to the right. Grey is what comes later in the sequence than the queries."
    )
    return fig, table, f"{alt} {in_words(table)}"


def draw_shares(lengths: Sequence[int], ranks: int = 4) -> Picture:
    """Queries down, keys across: what is computed, coloured by the rank that computes it, with
    contiguous parts and with balanced ones.

    Args:
        lengths: tokens of each document of a row, one after another.

    Raises:
        UserError: more ranks than colours, or lengths that are none.
    """
    looks = _looks(ranks)
    shares = {split: shares_of_work(lengths, ranks, split) for split in reversed(SPLITS)}
    documents, length = row_of(lengths, ranks)
    fig, panels = new_figure(4.1, grid=None, panels=len(shares))
    for axes, split in zip(panels, shares):
        for rank, own in enumerate(deal(documents, length, ranks, split)):
            for block in own:
                _queries(axes, documents, block, looks[rank])
        axes.set(xlim=(0, length), ylim=(length, 0), aspect="equal", xlabel="keys")
        axes.set_title(f"{split}: at most {ranks * max(shares[split]):.2f} fair shares")
    panels[0].set_ylabel("queries")
    named = {f"rank {rank}": look for rank, look in enumerate(looks)}
    key(fig, named, columns=ranks)
    rows = {
        split: {f"rank {rank}": f"{100 * one:.0f} %" for rank, one in enumerate(found)}
        for split, found in shares.items()
    }
    table = table_of(rows, "share of attention's work")
    many = f"{len(lengths)} document{'s' * (len(lengths) > 1)}"
    alt = (
        f"The causal triangles of {many} in a row of {sum(lengths)} tokens, "
        f"coloured by the {ranks} ranks that compute them."
    )
    return fig, table, f"{alt} {in_words(table)}"


def _looks(ranks: int) -> list[Look]:
    if not 2 <= ranks <= MOST:
        raise UserError(f"a picture shows 2 to {MOST} ranks, not {ranks}")
    return [part_look(rank) for rank in range(ranks)]


def _queries(axes: "Axes", documents: Sequence[Document], block: range, look: Look) -> None:
    """Of these queries, what lies below the diagonal of their documents."""
    for document in documents:
        first, end = max(document.first, block.start), min(document.end, block.stop)
        if first >= end:
            continue
        fill(axes, (document.first, first), first - document.first, end - first, look)
        axes.fill(
            (first, end, first),
            (first, end, end),
            facecolor=look[0],
            hatch=look[1],
            edgecolor="white",
            lw=0,
        )
