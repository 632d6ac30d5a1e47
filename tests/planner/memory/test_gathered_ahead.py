"""What ZeRO-3 gathers ahead for a rank's stages, against fully_shard itself in a dry run."""

import re

import pytest

pytest.importorskip("transformers")
import transformers
from torch.distributed.fsdp._fully_shard import _fsdp_param_group

from helpers.engine.pipeline.schedules import rank_actions
from helpers.engine.plan import ParallelPlan
from helpers.planner.dry_run.dry_run import dry_run
from helpers.planner.memory.gathered_ahead import GatheredAhead, several_units
from helpers.planner.memory.turns import _walk
from helpers.planner.model.training_job import make_job
from tests.planner.dry_run.test_every_rank import SCHEDULES
from tests.support.matrix import each


@pytest.mark.parametrize(("schedule", "blocks"), each(SCHEDULES, ("1", "2"), every=2))
def test_it_is_what_fully_shard_gathers(schedule, blocks, monkeypatch):
    """In the same order, on a rank without a part that is in no block and on both that have one."""
    stages = 6 if schedule in ("interleaved", "zero-bubble-v") else 3
    layers, partition = int(blocks) * stages, ",".join([blocks] * stages)
    plan = ParallelPlan(
        dp_shard=2, pp=3, microbatches=6, partition=partition, schedule=schedule,
        virtual_stages=2 if schedule == "interleaved" else 0,
    )  # fmt: skip
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_attention_heads=4,
        num_hidden_layers=layers,
    )  # fmt: skip
    job = make_job(config, plan, 12, 8)
    for rank in range(plan.pp):
        with monkeypatch.context() as patched:
            gathered = record(patched)
            dry_run(config, plan, rank, batch=12, seq_len=8)
        ends = {sum(job.layers[: stage + 1]) - 1: stage for stage in job.stages_of(rank)}
        places = {stage: place for place, stage in enumerate(job.stages_of(rank))}
        assert [places[ends[block]] for block in gathered if block in ends] == said(job, rank)


def record(monkeypatch):
    """The blocks that fully_shard gathers ahead in backwards, as it does. What is in no block comes
    first in the last stage's, and gathers the block that is used next: that is not ahead."""
    gathered, begun = [], []
    group = _fsdp_param_group.FSDPParamGroup
    prefetch = group.__dict__["_prefetch_unshard"].__func__

    def recorded(target, kind):
        block = re.fullmatch(r"model\.layers\.(\d+)", target._module_fqn)
        new = target._sharded_state.name == "SHARDED" and target._all_gather_result is None
        if kind == "backward" and block and new and any(begun):
            gathered.append(int(block[1]))
        return prefetch(target, kind)

    def noted(name, change):
        method = getattr(group, name)

        def called(self, *args, **kwargs):
            change(self._module_fqn)
            return method(self, *args, **kwargs)

        monkeypatch.setattr(group, name, called)

    monkeypatch.setattr(group, "_prefetch_unshard", staticmethod(recorded))
    noted("pre_backward", begun.append)
    for name in ("post_forward", "post_backward"):
        noted(name, lambda _: begun.clear())
    return gathered


def said(job, rank):
    """The places of the stages whose last units are."""
    rooted = bool(job.end_parameters(rank))
    ahead = GatheredAhead(several_units(job, rank, rooted), rooted)
    virtual = len(job.stages_of(rank))
    actions = rank_actions(job.plan.schedule, rank, job.plan.pp, job.microbatches, virtual)
    walked = _walk(actions, job.rank_of, rank, ahead)
    return [turn.gathers for turn in walked if turn.gathers >= 0]
