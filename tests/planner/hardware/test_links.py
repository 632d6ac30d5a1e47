"""Over how many nodes a group of ranks lies, against all groups written out."""

from collections import Counter
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.engine.plan import ParallelPlan
from helpers.planner.hardware.cluster import make_cluster
from helpers.planner.hardware.links import axes_span
from helpers.planner.search.estimate import estimate
from tests.planner.shapes import gpt


@st.composite
def grids(draw):
    """Degrees of axes, the innermost first; those that a group lies along; a node's ranks."""
    degrees = draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4))
    chosen = draw(st.sets(st.sampled_from(range(len(degrees))), min_size=1, max_size=2))
    return degrees, sorted(chosen), draw(st.sampled_from([1, 2, 4, 8]))


def strides_of(degrees):
    strides, apart = [], 1
    for degree in degrees:
        strides.append(apart)
        apart *= degree
    return strides, apart


def written_out(degrees, chosen, in_node):
    """(nodes, fewest ranks in one of them) of each group."""
    strides, _ = strides_of(degrees)
    others = [range(n) if i not in chosen else range(1) for i, n in enumerate(degrees)]
    for base in product(*others):
        first = sum(place * stride for place, stride in zip(base, strides))
        steps = product(*(range(degrees[i]) for i in chosen))
        nodes = Counter(
            (first + sum(step * strides[i] for step, i in zip(each, chosen))) // in_node
            for each in steps
        )
        yield len(nodes), min(nodes.values())


@given(grids())
@settings(max_examples=300, deadline=None)
def test_the_worst_group(grid):
    """Of one axis, or of two that stand beside each other, exactly; of others never too well."""
    degrees, chosen, in_node = grid
    strides, devices = strides_of(degrees)
    axes = [(degrees[i], strides[i]) for i in chosen]
    span = axes_span(axes, in_node, devices)
    worst = max(written_out(degrees, chosen, in_node), key=lambda found: (found[0], -found[1]))
    apart = len(chosen) == 2 and any(n > 1 for n in degrees[chosen[0] + 1 : chosen[1]])
    if apart:
        assert span.nodes >= worst[0]
        if span.nodes == worst[0] > 1:
            assert span.least <= worst[1]
    else:
        assert (span.nodes, span.least) == worst


def test_few_gpus_of_a_mesh_have_few_of_its_wires():
    """Of a V100's six NVLinks one goes to its neighbour; a switch gives two what it gives all."""
    mesh, switched = make_cluster("p3.16xlarge"), make_cluster("p4d.24xlarge")
    pace = {n: mesh.link_over([(n, 1)]).bytes_per_s / mesh.intra.bytes_per_s for n in (2, 3, 4, 8)}
    assert pace == pytest.approx({2: 1 / 6, 3: 4 / 6, 4: 4 / 6, 8: 1})
    assert mesh.link_over([(4, 1)], "send") == mesh.link_over([(2, 1)])
    assert switched.link_over([(2, 1)]) == switched.link_over([(8, 1)])


def test_two_tensor_ranks_of_a_mesh_wait_for_their_one_wire():
    """Megatron-LM's GPT of 345M, recomputed, 256 rows for every two V100: 13.9 to 14.0 s as
    published with LiBai, where 9.1 were predicted."""
    plan = {"precision": "fp16", "reduce_dtype": "fp16", "activation": "full", "microbatches": 8}
    ask = {"cluster": make_cluster("p3.16xlarge"), "seq_len": 1024, "program": "megatron-2021"}
    model = gpt(1024, 24, 16, 50304, 1024)
    two = estimate(model, ParallelPlan(dp_replicate=4, tp=2, **plan), batch=1024, **ask)
    eight = estimate(model, ParallelPlan(tp=8, **plan), batch=256, **ask)
    assert two.time.tensor_s > 2.5 * eight.time.tensor_s
    assert 0.75 < two.time.total_s / 13.99 < 1
