"""The pools of ranks that the other tests use."""

import os

import torch.distributed as dist

from tests.support.ranks import MOST_GROUPS, pool


def groups_made(count: int) -> tuple[int, int]:
    """Process groups after these, and the process that has them."""
    for _ in range(count):
        dist.new_group()
    return dist.get_pg_count(), os.getpid()


def test_ranks_with_many_groups_are_started_anew_under_who_holds_them():
    ranks = pool(2)
    ranks.run(groups_made, MOST_GROUPS)
    few = ranks.run(groups_made, 0)
    some = ranks.run(groups_made, 1)
    assert [pid for _, pid in few] == [pid for _, pid in some]
    assert max(groups for groups, _ in some) < MOST_GROUPS
    many = ranks.run(groups_made, MOST_GROUPS)
    assert ranks.processes == []
    assert {pid for _, pid in ranks.run(groups_made, 0)}.isdisjoint(pid for _, pid in many)
