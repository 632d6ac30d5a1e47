"""Ranks and groups are counted as the closed library counts them; a mistake is one line."""

import subprocess
import sys

import pytest

from helpers.engine.errors import UserError
from helpers.engine.plan import ParallelPlan
from helpers.smp.configuration import read_smp_config
from helpers.smp.running.groups import AXES, Groups, ranks_over

ALL_TWO = {"pipeline_parallel_degree": 2, "tensor_parallel_degree": 2, "ddp": True}
# the library's documentation of ranks, 8 processes with all degrees 2
GROUPS = {
    "tp": [[0, 1], [2, 3], [4, 5], [6, 7]],
    "pp": [[0, 2], [1, 3], [4, 6], [5, 7]],
    "rdp": [[0, 4], [1, 5], [2, 6], [3, 7]],
    "dp": [[0, 1, 4, 5], [2, 3, 6, 7]],
    "mp": [[0, 1, 2, 3], [4, 5, 6, 7]],
}


@pytest.mark.parametrize("kind", GROUPS)
def test_the_documented_groups(kind):
    plan = read_smp_config(ALL_TWO, 8).plan
    assert sorted(ranks_over(plan, AXES[kind])) == GROUPS[kind]


def test_data_ranks_have_the_tensor_ranks_among_them():
    plan = ParallelPlan(tp=4, dp_replicate=2)
    assert ranks_over(plan, AXES["dp"]) == [list(range(8))]
    assert sorted(ranks_over(plan, AXES["rdp"])) == [[0, 4], [1, 5], [2, 6], [3, 7]]


@pytest.mark.parametrize("kind", AXES)
@pytest.mark.parametrize(
    "degrees", [{"tp": 2, "pp": 2, "dp_shard": 2}, {"tp": 3}, {"dp_replicate": 2, "dp_shard": 3}]
)
def test_every_rank_is_in_one_group_of_each_kind(kind, degrees):
    plan = ParallelPlan(**degrees)
    ranks = [rank for group in ranks_over(plan, AXES[kind]) for rank in group]
    assert sorted(ranks) == list(range(plan.world_size))


def test_a_question_before_the_start_and_a_group_that_is_none():
    with pytest.raises(UserError, match="not met yet"):
        Groups().rank()
    with pytest.raises(UserError, match="no group is called 'row'"):
        Groups().group("row")


MISTAKEN = """
from helpers.engine.errors import UserError
from helpers.smp.running import Session

def main():
    raise UserError("no such thing")

Session().leave_after(main)
"""


def test_a_mistake_of_a_converted_script_is_one_line():
    done = subprocess.run([sys.executable, "-c", MISTAKEN], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "error: no such thing\n")
