"""Ranks over axes and nodes: the published rank tables, and what holds of any placement."""

import re
from itertools import permutations
from math import prod

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.engine.data_parallel.axes import state_axes
from helpers.engine.errors import UserError
from helpers.engine.placement import axis_order, rank_grid
from helpers.engine.plan import ParallelPlan
from helpers.planner.dry_run.dry_run import pretended
from helpers.planner.hardware.rank_groups import coordinates, groups

AXES = ("dp_replicate", "dp_shard", "pp", "cp", "tp")
DEGREES = st.permutations(AXES).flatmap(
    lambda axes: st.fixed_dictionaries(dict.fromkeys(axes, st.integers(1, 3)))
)
PLACEMENTS = st.sampled_from(
    ["cluster", "spread", *("".join(letters) for letters in permutations("DPCT"))]
)

# The SageMaker library's documented tables (rdp, pp, tp) by rank, of 8 processes, all degrees 2
DPT = "000 001 010 011 100 101 110 111"
PTD = "000 100 001 101 010 110 011 111"


@pytest.mark.parametrize(
    ("placement", "table"),
    [("DPT", DPT), ("cluster", DPT), ("DPCT", DPT), ("PTD", PTD), ("CPTD", PTD)],
)
def test_the_documented_rank_tables(placement, table):
    places = coordinates({"dp_shard": 2, "pp": 2, "tp": 2}, placement)
    assert " ".join("".join(map(str, place.values())) for place in places) == table


def test_the_documented_groups():
    """8 processes in two partitions: mp_group and dp_group of the library's documentation."""
    degrees = {"dp_shard": 4, "pp": 2}
    assert groups(degrees, "pp", "spread") == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert groups(degrees, "dp_shard", "spread") == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert groups(degrees, "pp", "cluster") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert groups(degrees, "dp_shard", "cluster") == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_names_and_the_data_axes():
    degrees = dict.fromkeys(AXES, 2)
    assert axis_order(degrees, "cluster") == ["dp_replicate", "dp_shard", "pp", "cp", "tp"]
    assert axis_order(degrees, "spread") == ["tp", "cp", "pp", "dp_replicate", "dp_shard"]
    assert groups(degrees, "dp_shard", "spread")[0] == [0, 1]
    assert groups(degrees, "dp_replicate", "spread")[0] == [0, 2]


def test_cluster_is_the_plain_order_of_ranks():
    degrees = {"dp_replicate": 2, "dp_shard": 3, "pp": 2, "cp": 1, "tp": 4}
    assert torch.equal(rank_grid(degrees), torch.arange(48).view(2, 3, 2, 1, 4))


@settings(deadline=None)
@given(DEGREES, PLACEMENTS)
def test_every_rank_has_one_place(degrees, placement):
    grid = rank_grid(degrees, placement)
    assert list(grid.shape) == list(degrees.values())
    assert sorted(grid.flatten().tolist()) == list(range(prod(degrees.values())))
    for rank, place in enumerate(coordinates(degrees, placement)):
        assert grid[tuple(place.values())] == rank


@settings(deadline=None)
@given(DEGREES, PLACEMENTS, st.data())
def test_the_last_letter_varies_fastest(degrees, placement, data):
    """A group's ranks are as far apart as all that comes after its axis is large."""
    order = axis_order(degrees, placement)
    axis = data.draw(st.sampled_from(order))
    apart = prod(degrees[later] for later in order[order.index(axis) + 1 :])
    for group in groups(degrees, axis, placement):
        assert group == [group[0] + i * apart for i in range(degrees[axis])]


@settings(deadline=None)
@given(DEGREES, PLACEMENTS)
def test_the_order_of_the_axes_given_changes_no_place(degrees, placement):
    back = dict(reversed(degrees.items()))
    assert coordinates(degrees, placement) == coordinates(back, placement)


def test_a_mesh_takes_the_grid():
    """In one process: the mesh of one rank, with the axes of the plan as names."""
    degrees = dict.fromkeys(AXES, 1)
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        mesh = torch.distributed.DeviceMesh(
            "cpu", rank_grid(degrees, "spread"), mesh_dim_names=tuple(degrees)
        )
        assert mesh["tp"].get_local_rank() == 0 and mesh.mesh_dim_names == AXES
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("degrees", "placement", "words"),
    [
        ({"tp": 2}, "DTP?", "placement must be cluster, spread or a permutation of DPCT"),
        ({"tp": 2}, "DPCTT", "not 'DPCTT'"),
        ({"tp": 2}, "dpct", "not 'dpct'"),
        ({"tp": 2, "cp": 2}, "DPT", "the placement DPT leaves out C, but cp is 2"),
        ({"dp_replicate": 1, "dp_shard": 4}, "PT", "leaves out D, but dp_shard is 4"),
        ({"mp": 2}, "cluster", "no axis is called 'mp'; there is dp_replicate, dp_shard"),
        ({"tp": 0}, "cluster", "tp must be a whole number of at least 1, not 0"),
    ],
)
def test_what_is_wrong_is_said(degrees, placement, words):
    with pytest.raises(UserError, match=re.escape(words)):
        rank_grid(degrees, placement)


def test_groups_of_an_axis_that_is_not_there():
    with pytest.raises(UserError, match="no axis 'pp' in the degrees; there is tp"):
        groups({"tp": 2}, "pp")


# --- picture ---------------------------------------------------------------------------------


def test_the_picture_says_what_stays_on_a_node():
    pytest.importorskip("matplotlib")
    pytest.importorskip("pandas")
    from matplotlib.text import Text

    from helpers.lab.drawings.rank_grid import draw_placement
    from helpers.lab.figures.display import png

    degrees = {"dp_shard": 2, "pp": 2, "tp": 4}
    fig, table, alt = draw_placement(degrees, "cluster", per_node=8, partition=(15, 13))
    assert png(fig, alt).startswith(b"\x89PNG")
    spans = table["nodes that a group spans"].to_dict()
    assert spans == {"dp_shard": 2, "pp": 1, "tp": 1}
    assert table["first group of ranks"]["dp_shard"] == "0, 8"
    words = [text.get_text() for text in fig.findobj(Text)]
    assert {"node 0", "node 1", "rank 15", "layers 15–27", "slice 3"} <= set(words)
    assert words.count("stage 1") == 8
    assert "A group of tp stays on one node." in alt and "rank 4: stage 1, layers 15–27" in alt
    _, table, _ = draw_placement(degrees, "spread", per_node=8)
    assert table["nodes that a group spans"].to_dict() == {"tp": 2, "pp": 1, "dp_shard": 1}


def test_a_picture_of_one_rank_and_ones_that_cannot_be():
    pytest.importorskip("matplotlib")
    pytest.importorskip("pandas")
    from helpers.lab.drawings.rank_grid import draw_placement

    _, table, alt = draw_placement({"tp": 1})
    assert len(table) == 0 and alt.endswith("On node 0 rank 0: all of it.")
    for arguments, words in (
        (({"tp": 128},), "at most 64 ranks, not 128"),
        (({"tp": 12}, "cluster", 8), "12 ranks do not fill nodes of 8"),
        (({"tp": 2}, "cluster", "8"), "per_node must be a whole number of at least 1, not '8'"),
        (({"pp": 2}, "cluster", 8, (1, 2, 3)), "the partition has 3 stages, pp is 2"),
    ):
        with pytest.raises(UserError, match=words):
            draw_placement(*arguments)


@pytest.mark.parametrize("placement", ["cluster", "spread", *map("".join, permutations("DPCT"))])
def test_ranks_that_share_state_are_numbered_as_their_group_numbers_them(placement):
    """Else the parts that a group deals out stand at other places in the files of a checkpoint."""
    plan = ParallelPlan(dp_replicate=2, dp_shard=2, pp=2, cp=3, tp=2, placement=placement)
    for rank in (0, 17, plan.world_size - 1):
        with pretended(plan.world_size, rank):
            shared = state_axes(plan.mesh("cpu"), plan).shard
            assert shared.mesh.tolist() == dist.get_process_group_ranks(shared.get_group())
