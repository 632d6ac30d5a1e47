"""Moments of AdamW in 8 bits against the state of the engine's own optimizer, counted."""

import pytest

pytest.importorskip("bitsandbytes")
pytest.importorskip("peft")
import torch
import transformers

from helpers.engine.adapters.qlora import Adapting, load_adapted
from helpers.engine.errors import UserError
from helpers.engine.parallelize import parallelize
from helpers.engine.plan import ParallelPlan
from helpers.engine.trainer import Trainer
from helpers.planner.dry_run.dry_run import pretended
from helpers.planner.hardware.cluster import make_cluster
from helpers.planner.memory.states import rank_states
from helpers.planner.model.adapters import Adapters
from helpers.planner.model.training_job import make_job
from helpers.planner.search.estimate import estimate
from tests.planner.shapes import GPTJ_6B

PLANS = {
    "one process": {},
    "bf16": {"precision": "bf16"},
    "ZeRO-1": {"dp_shard": 2, "zero_stage": 1, "precision": "bf16"},
    "ZeRO-2": {"dp_shard": 2, "zero_stage": 2},
    "ZeRO-3": {"dp_shard": 2},
    "tp": {"tp": 2},
}


def config():
    """With matrices of more than 4,096 numbers, parts of which have fewer, and norms."""
    return transformers.LlamaConfig(
        vocab_size=96, hidden_size=64, intermediate_size=160, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2,
    )  # fmt: skip


def counted(plan, adapting=None):
    """State of a real trainer after its first update, on a first rank that sends nothing."""
    with pretended(plan.world_size):
        mesh = plan.mesh("cpu")
        if adapting:
            made = {"config": config(), "from_scratch": True}
            model = load_adapted("llama-tiny", plan, mesh, adapting, **made)
        else:
            whole = transformers.AutoModelForCausalLM.from_config(config())
            model = parallelize(whole, plan, mesh, check=False)
        trainer = Trainer(model, plan, mesh, lr=1e-3, optimizer="adamw8bit")
        trainer.update({part.name: torch.zeros_like(part.tensor) for part in trainer.parts})
        return trainer.state_bytes()["optimizer"]


@pytest.mark.parametrize("name", PLANS)
def test_they_are_the_engines_to_the_byte(name):
    plan = ParallelPlan(**PLANS[name])
    job = make_job(config(), plan, 2, 16, optimizer="adamw8bit")
    plain = make_job(config(), plan, 2, 16)
    assert rank_states(job, 0).optimizer == counted(plan) < rank_states(plain, 0).optimizer


def test_of_adapters():
    plan = ParallelPlan(precision="bf16")
    job = make_job(config(), plan, 2, 16, adapters=Adapters(64, "nf4"), optimizer="adamw8bit")
    found = counted(plan, Adapting(rank=64, quantize="nf4"))
    assert rank_states(job, 0).optimizer == found


def test_a_question_with_it():
    """A quarter of the moments' bytes, and fewer to read in the update."""
    cluster, plan = make_cluster("p4d.24xlarge"), ParallelPlan(dp_shard=8, precision="bf16")
    low, plain = (
        estimate(GPTJ_6B, plan, cluster, 8, 1024, optimizer=kind) for kind in ("adamw8bit", "adamw")
    )
    assert low.memory.optimizer == pytest.approx(plain.memory.optimizer / 4, rel=0.02)
    assert low.time.optimizer_s < plain.time.optimizer_s
    with pytest.raises(UserError, match="optimizer is one of adamw, adamw8bit, not 'sgd'"):
        estimate(GPTJ_6B, plan, cluster, 8, 1024, optimizer="sgd")
