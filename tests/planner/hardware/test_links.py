"""Over how many nodes a group of ranks lies, against all groups written out."""

from collections import Counter
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.planner.hardware.links import axes_span


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
    else:
        assert (span.nodes, span.least) == worst
