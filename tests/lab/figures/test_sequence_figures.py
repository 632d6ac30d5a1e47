"""Drawings and plots of long sequences."""

import pytest

from helpers.engine.context.balance import deal, work
from helpers.engine.errors import UserError
from helpers.engine.models.documents import Document
from helpers.lab.drawings.sequence_parts import draw_ring, draw_shares
from helpers.lab.figures.sharding_plots import plot_by_length

pandas = pytest.importorskip("pandas")
patches = pytest.importorskip("matplotlib.patches")


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_rank_meets_every_pair_once(ranks):
    _, table, alt = draw_ring(ranks)
    for rank in table:
        assert sorted(table[rank]) == [f"k{owner}, v{owner}" for owner in range(ranks)]
    assert list(table.iloc[0]) == [f"k{rank}, v{rank}" for rank in range(ranks)] and "Grey" in alt


@pytest.mark.parametrize("lengths", [[1024], [300, 40, 500, 100, 84]])
def test_what_is_drawn_of_a_rank_is_its_work(lengths):
    """The area of each colour, in pairs of a query and a key."""
    fig, table, _ = draw_shares(lengths, ranks=4)
    ends = [sum(lengths[: place + 1]) for place in range(len(lengths))]
    documents = [Document(i, end - n, end) for i, (n, end) in enumerate(zip(lengths, ends))]
    for axes, split in zip(fig.axes, table.index):
        area = {}
        for patch in axes.patches:
            if isinstance(patch, patches.Rectangle):
                size = patch.get_width() * patch.get_height()
            else:
                x, y = patch.get_xy()[:-1].T
                size = abs(sum(x[i - 1] * y[i] - x[i] * y[i - 1] for i in range(len(x)))) / 2
            colour = patch.get_facecolor()
            area[colour] = area.get(colour, 0) + size
        drawn = sorted(area.values())
        own = [
            sum(work(documents, b) for b in blocks) for blocks in deal(documents, 1024, 4, split)
        ]
        assert drawn == pytest.approx(sorted(own), rel=0.02)


def test_too_many_ranks_for_a_picture_are_refused():
    for draw in (draw_ring, lambda ranks: draw_shares([64], ranks)):
        with pytest.raises(UserError, match="a picture shows 2 to 7 ranks, not 8"):
            draw(ranks=8)


def test_lines_by_length_are_compared_at_the_longest():
    table = pandas.DataFrame({"one": {64: 10.0, 128: 20.0}, "four": {64: 2.5, 128: 5.0}})
    fig, shown, sentence = plot_by_length(table.rename_axis("tokens"), "activations, MB")
    assert shown is table or shown.equals(table)
    assert sentence == "At 128 tokens four holds 0.25 of what one holds."
    assert len(fig.axes[0].lines) == 2
