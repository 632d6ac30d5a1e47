"""Pipelines over gloo under NCCL's rule: two ranks' first calls on a group wait for each other.

A send or receive on NCCL connects its two ranks in their first call on a group, and that call does
not return before the peer has made its own first call there (pytorch issues 108378 and 136248).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
import torch
import torch.distributed as dist

from helpers.engine.parallelize import parallelize
from helpers.engine.pipeline import messages
from helpers.engine.plan import ParallelPlan
from helpers.engine.trainer import Trainer
from tests.support import tiny
from tests.support.ranks import mesh_of, pool

WAIT_S, IN_VAIN_S = 15, 5
RUNS = count()  # the same on every rank
CALLS = ("send", "recv", "isend", "irecv")
SCHEDULES = ("gpipe", "1f1b", "zero-bubble", "interleaved", "zero-bubble-v", "naive")


@contextmanager
def nccls_rule(wait_s: float) -> Iterator[set]:
    """Each first call of two ranks on a group waits until the other has made one. The pairs."""
    store = dist.distributed_c10d._get_default_store()
    connected: set[tuple] = set()
    run = next(RUNS)
    plain = {name: getattr(dist, name) for name in CALLS}

    def connect(group: dist.ProcessGroup | None, peer: int) -> None:
        group = group or dist.group.WORLD
        pair = (run, group.group_name, *sorted((group.rank(), peer)))
        if pair in connected:
            return
        connected.add(pair)
        store.set(f"{pair} {group.rank()}", "here")
        store.wait([f"{pair} {peer}"], timedelta(seconds=wait_s))

    def under_the_rule(name: str) -> Any:
        def call(tensor, *given, group=None, group_dst=None, group_src=None, **more):
            peer = group_dst if name.endswith("send") else group_src
            assert not given and peer is not None, "by the rank in the group"
            connect(group, peer)
            where = {"group_dst" if name.endswith("send") else "group_src": peer}
            return plain[name](tensor, group=group, **where, **more)

        return call

    for name in CALLS:
        setattr(dist, name, under_the_rule(name))
    try:
        yield connected
    finally:
        for name in CALLS:
            setattr(dist, name, plain[name])


def losses(plan: ParallelPlan, connects: bool = True) -> list[float]:
    """Of two steps under the rule, over groups that nothing has connected before, and that have no
    mailboxes, as on GPUs."""
    messages._made.clear()
    plain, boxes = messages._connect, messages.open_mailboxes
    messages.open_mailboxes = lambda _: None
    if not connects:
        messages._connect = lambda *_: None
    try:
        with nccls_rule(WAIT_S if connects else IN_VAIN_S):
            model = parallelize(tiny.fresh("gpt2", torch.float64, layers=8), plan, mesh_of(plan))
            trainer = Trainer(model, plan, mesh_of(plan), lr=tiny.LR)
            return [trainer.step(*tiny.batch(step)).loss for step in range(2)]
    finally:
        messages._connect, messages.open_mailboxes = plain, boxes
        messages._made.clear()


def plan_of(schedule: str, **degrees: int) -> ParallelPlan:
    virtual = {"virtual_stages": 2} if schedule == "interleaved" else {}
    return ParallelPlan(schedule=schedule, microbatches=4, **virtual, **degrees)


@pytest.fixture(scope="module")
def expected() -> list[float]:
    [found] = pool(1).run(losses, ParallelPlan())
    return found


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("degrees", [{"pp": 2}, {"pp": 4}], ids=["pp2", "pp4"])
def test_every_schedule(expected, schedule: str, degrees: dict[str, int]) -> None:
    plan = plan_of(schedule, **degrees)
    for found in pool(plan.world_size).run(losses, plan):
        assert found == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("beside", ["tp", "dp_shard"])
@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble-v"])
def test_beside_other_axes(expected, schedule: str, beside: str) -> None:
    plan = plan_of(schedule, pp=2, **{beside: 2})
    for found in pool(4).run(losses, plan):
        assert found == pytest.approx(expected, rel=1e-10)


@pytest.mark.slow
def test_without_a_first_message_they_hang() -> None:
    with pytest.raises(AssertionError, match="Wait timeout"):
        pool(2).run(losses, plan_of("1f1b", pp=2), False)
