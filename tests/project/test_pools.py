"""The pools of ranks that the other tests use."""

import torch.distributed as dist

from tests.support.ranks import MOST_GROUPS, pool


def groups_made(count: int) -> int:
    for _ in range(count):
        dist.new_group()
    return dist.get_pg_count()


def test_ranks_with_many_groups_are_started_anew():
    one = pool(2)
    before = max(one.run(groups_made, 0))
    one.run(groups_made, 1)
    if before < MOST_GROUPS:
        assert pool(2) is one
    pool(2).run(groups_made, MOST_GROUPS)
    other = pool(2)
    assert other is not one
    assert max(other.run(groups_made, 0)) < MOST_GROUPS
    assert not any(process.is_alive() for process in one.processes)
