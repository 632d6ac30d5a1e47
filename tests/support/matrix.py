"""Products of families, layouts and schedules as test cases: all of them, or a part that covers.

    @pytest.mark.parametrize(("family", "layout"), product(FAMILIES, LAYOUTS))
    @pytest.mark.parametrize(("family", "layout"), each(FAMILIES, LAYOUTS))      # of long tests
    @pytest.mark.parametrize(("family", "layout"), each(FAMILIES, LAYOUTS, every=3))
    @pytest.mark.parametrize("family", part(("gptj", "gpt2"), ("llama", "neox")))

In the whole suite (`--whole`) of a `product` the first name of each list meets everything, and of
the other combinations every 36th runs, shifted from row to row so that long lists meet each other
too; of `each` as many cases run as the longest list has names, each name at least once, or with
`every` every so-many-th of these; of a `part` the first ones. The rest are marked `exhaustive` and
run with `--exhaustive`. The part that runs by default is chosen in tests/conftest.py.
"""

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import pytest

EVERY = 36


def product(*names: Iterable[str]) -> list[Any]:
    """The cases of a product, those beyond the covering part marked."""
    return _cases(names, lambda places, sizes: in_part(places))


def each(*names: Iterable[str], every: int = 1) -> list[Any]:
    """The same, all marked but one for each name of the longest list, or every so-many-th."""
    return _cases(names, lambda places, sizes: in_turn(places, sizes, every))


def part(first: Iterable[Any], rest: Iterable[Any]) -> list[Any]:
    """Cases of one list; those that are tuples are of several names."""
    marked = [one if isinstance(one, tuple) else (one,) for one in rest]
    return [*first, *(pytest.param(*one, marks=pytest.mark.exhaustive) for one in marked)]


def _cases(names: Iterable[Iterable[str]], runs: Callable[..., bool]) -> list[Any]:
    lists = [list(one) for one in names]
    sizes = tuple(map(len, lists))
    cases = []
    for places in itertools.product(*map(range, sizes)):
        chosen = [one[place] for one, place in zip(lists, places)]
        marks = () if runs(places, sizes) else (pytest.mark.exhaustive,)
        cases.append(pytest.param(*chosen, id="-".join(chosen), marks=marks))
    return cases


def in_part(places: tuple[int, ...]) -> bool:
    """At most one name is not the first of its list, or the turn is this combination's."""
    others = sum(place > 0 for place in places)
    return others <= 1 or sum(places) % EVERY == 0


def in_turn(places: tuple[int, ...], sizes: tuple[int, ...], every: int = 1) -> bool:
    """Do the names stand beside each other where all lists are gone through together, the shorter
    ones again and again; and is it the turn of one that runs?"""
    turn = places[sizes.index(max(sizes))]
    return turn % every == 0 and all(place == turn % size for place, size in zip(places, sizes))
