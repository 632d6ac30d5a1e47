"""The processes of a run: how they meet, agree, wait for each other, and leave.

with distributed(plan) as mesh:     join the process group; the plan's mesh
    on_all_ranks(work)              what fails on one rank fails on all
    over_ranks(value)               one value from each rank, on every rank
run_and_leave(main)                 the last line of a script that torchrun starts

meeting.py joins them, by a store that listens at one address; agreeing.py is what all know;
waiting.py names the rank that the others wait for; leaving.py ends them.
"""

from .agreeing import is_same_on_all, largest_over_ranks, on_all_ranks, over_ranks
from .leaving import die_with_parent, run_and_leave
from .meeting import (
    AGENT_HAS_STORE,
    DEVICES,
    check_environment,
    distributed,
    join,
    pick_device,
    start_of_a_node,
    store_at,
    store_on,
    world_size,
)

__all__ = [
    "AGENT_HAS_STORE",
    "DEVICES",
    "check_environment",
    "die_with_parent",
    "distributed",
    "is_same_on_all",
    "join",
    "largest_over_ranks",
    "on_all_ranks",
    "over_ranks",
    "pick_device",
    "run_and_leave",
    "start_of_a_node",
    "store_at",
    "store_on",
    "world_size",
]
