"""Products of families, layouts and schedules as test cases: all of them, or a part that covers.

    @pytest.mark.parametrize(("family", "layout"), product(FAMILIES, LAYOUTS))

The first name of each list meets everything. Of the other combinations every twelfth runs by
default, shifted from row to row so that long lists meet each other too; the rest are marked
`exhaustive` and run with `pytest --exhaustive`.
"""

import itertools
from collections.abc import Iterable
from typing import Any

import pytest

EVERY = 12


def product(*names: Iterable[str]) -> list[Any]:
    """The cases of a product, those beyond the covering part marked."""
    lists = [list(each) for each in names]
    cases = []
    for places in itertools.product(*(range(len(each)) for each in lists)):
        chosen = [each[place] for each, place in zip(lists, places)]
        marks = () if in_part(places) else (pytest.mark.exhaustive,)
        cases.append(pytest.param(*chosen, id="-".join(chosen), marks=marks))
    return cases


def in_part(places: tuple[int, ...]) -> bool:
    """At most one name is not the first of its list, or the turn is this combination's."""
    others = sum(place > 0 for place in places)
    return others <= 1 or sum(places) % EVERY == 0
