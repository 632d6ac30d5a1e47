"""A group for each kind of message and direction of a pipeline, all as the pipeline's own."""

import os
from datetime import timedelta
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from helpers.engine.messages.mailboxes import mailbox
from helpers.engine.pipeline import messages
from helpers.engine.pipeline.messages import KINDS, message_groups
from helpers.engine.plan import ParallelPlan
from tests.support.ranks import mesh_of, pool

PLAN = ParallelPlan(pp=2)
WAIT_S = 77  # no default


def options_of(group: dist.ProcessGroup) -> dist.ProcessGroupGloo._Options:
    return group._get_backend(torch.device("cpu")).options


def waits() -> list[float]:
    """How long a rank waits for a message of each group, where it waits WAIT_S for others."""
    mesh = mesh_of(PLAN)
    options = options_of(mesh.get_group("pp"))
    before, options._timeout = options._timeout, timedelta(seconds=WAIT_S)
    try:
        with patch.object(messages, "_made", {}):  # groups of this test alone
            groups = message_groups(mesh)
    finally:
        options._timeout = before
    assert len({group.group_name for group in groups.values()}) == 2 * len(KINDS)
    return [options_of(group)._timeout.total_seconds() for group in groups.values()]


def test_their_messages_are_waited_for_as_long_as_others() -> None:
    assert pool(2).run(waits) == [[WAIT_S] * 4] * 2


def boxes() -> list[bool]:
    groups = message_groups(mesh_of(PLAN))
    return [mailbox(group, 1 - group.rank()) is not None for group in groups.values()]


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="boxes are of Linux")
def test_processes_of_one_machine_have_mailboxes() -> None:
    assert pool(2).run(boxes) == [[True] * 4] * 2
