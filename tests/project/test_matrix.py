"""The part of a product that runs by default leaves no name out."""

from hypothesis import given
from hypothesis import strategies as st

from tests.support.matrix import EVERY, in_part, product

SIZES = st.lists(st.integers(1, 8), min_size=1, max_size=3)


@given(SIZES)
def test_every_name_meets_the_first_of_each_other_list(sizes):
    lists = [[f"{axis}{place}" for place in range(size)] for axis, size in enumerate(sizes)]
    cases = product(*lists)
    part = [case.values for case in cases if not case.marks]
    assert len({case.values for case in cases}) == len(cases)
    for axis, names in enumerate(lists):
        for name in names:
            expected = [each[0] for each in lists]
            expected[axis] = name
            assert tuple(expected) in part


def test_a_part_of_the_others_runs_in_every_row():
    for row in range(1, 10):
        assert sum(in_part((row, column)) for column in range(1, 2 * EVERY + 1)) == 2
