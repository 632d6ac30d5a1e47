"""Experts that data ranks deal out, or whose gradients come at once where others come later: a
rank's memory and messages, against a dry run of it."""

from typing import Any

import pytest

pytest.importorskip("transformers")
import transformers

from helpers.engine.errors import UserError
from helpers.engine.plan import ParallelPlan
from helpers.planner.model.block_tensors import program
from helpers.planner.model.training_job import make_job
from helpers.planner.model.units import units_of
from helpers.planner.shape.families import model_shape
from helpers.planner.shape.parameters import experts_of
from tests.planner.dry_run.test_experts import same_work
from tests.planner.memory.test_kinds import mixture
from tests.support.matrix import each
from tests.support.tiny import config as tiny_config

IN_LOW = {"precision": "bf16", "microbatches": 1}
PLANS = {
    "ep": {"dp_shard": 4, "ep": 4},
    "blocks computed again": {"dp_shard": 2, "ep": 2, "activation": "group_3"},
    "stages and replicas": {"dp_shard": 2, "ep": 2, "dp_replicate": 2, "pp": 2, "microbatches": 3},
    "tp": {"dp_shard": 4, "ep": 4, "tp": 2, "sequence_parallel": True},
    "several stages": {
        "dp_shard": 2,
        "ep": 2,
        "pp": 2,
        "schedule": "interleaved",
        "virtual_stages": 2,
        "microbatches": 4,
    },
    "float32": {"dp_shard": 8, "ep": 8, "precision": "fp32"},
    "halves": {"pp": 2, "dp_shard": 4, "ep": 4, "schedule": "zero-bubble", "microbatches": 4},
    "gathered, halves": {
        "pp": 2,
        "dp_shard": 4,
        "schedule": "zero-bubble-v",
        "activation": "full",
        "microbatches": 4,
    },
    "many ranks": {"dp_shard": 32, "ep": 32, "activation": "full"},
    "cp": {"dp_shard": 2, "cp": 4, "ep": 8, "cp_attention": "gather"},
}


def narrow(**sizes: int) -> dict[str, Any]:
    return {
        "num_hidden_layers": 4,
        "vocab_size": 8192,
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
    } | sizes


MODELS = {
    "mixtral": lambda: transformers.MixtralConfig(**narrow(), num_local_experts=32),
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(
        **narrow(head_dim=64), moe_intermediate_size=256, num_experts=64, num_experts_per_tok=4
    ),
    "glm4_moe": lambda: _with_shared_experts(),
}


def _with_shared_experts() -> Any:
    """Of which the first two blocks have no experts."""
    config = mixture("glm4_moe")
    config.n_routed_experts = config.num_local_experts = 32
    return config


@pytest.mark.long
@pytest.mark.parametrize(("model", "layout"), each(MODELS, PLANS, every=2))
def test_a_rank_holds_and_sends_what_a_dry_run_of_it_does(model: str, layout: str) -> None:
    plan, config = ParallelPlan(**(IN_LOW | PLANS[layout])), MODELS[model]()
    most = 1.2 if "halves" in layout else 1.11  # beside narrow shared experts and dense blocks
    for share in same_work(config, plan, seq_len=1024):
        assert 0.95 < share < most


def test_experts_are_in_no_message_of_parameters() -> None:
    plan = ParallelPlan(dp_shard=4, ep=4, **IN_LOW)
    job = make_job(MODELS["glm4_moe"](), plan, 8, 64, program("torchtitan"))
    units = units_of(job, 0)
    dense, sparse = (kind.elements for kind in job.shape.kinds)
    assert units.parameters == [sparse] * 4 + [dense] * 2
    experts = 32 * 3 * 512 * 256
    assert units.gathered == [sparse - experts] * 4 + [dense] * 2
    assert job.own_experts == pytest.approx(4 / 6 * experts / 4)


def test_only_experts_can_be_dealt_out_and_as_many_to_each() -> None:
    mixtral = MODELS["mixtral"]()
    assert experts_of(model_shape(mixtral)) == 32
    assert experts_of(model_shape(tiny_config("llama"))) == 0
    with pytest.raises(UserError, match=r"^llama has no experts that ep could deal out"):
        make_job(tiny_config("llama"), ParallelPlan(dp_shard=2, ep=2), 4, 8)
    with pytest.raises(UserError, match=r"^no formula knows ranks with more experts than others"):
        make_job(mixtral, ParallelPlan(dp_shard=3, ep=3), 6, 8)
