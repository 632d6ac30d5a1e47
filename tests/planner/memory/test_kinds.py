"""Models whose blocks differ: a pipeline rank has the memory, and a stage the time, of its own.

The first blocks of these have no experts, and three to twenty times fewer parameters."""

import itertools
from collections.abc import Iterable
from typing import Any

import pytest

pytest.importorskip("transformers")
import transformers

from helpers.engine.errors import UserError
from helpers.engine.plan import ParallelPlan
from helpers.planner import make_cluster, search_plans
from helpers.planner.dry_run.dry_run import dry_run
from helpers.planner.memory.peak import candidates, rank_memory
from helpers.planner.model.block_tensors import program
from helpers.planner.model.training_job import Job, make_job
from helpers.planner.model.units import units_of
from helpers.planner.search.estimate import estimate
from helpers.planner.shape.families import model_shape
from helpers.planner.time.stage_time import stage_times
from tests.support.matrix import part
from tests.support.scripts import script

small_config = script("docs/small_models").small_config

PLANS = {
    "none": {},
    "full": {"activation": "full"},
    "zero-3": {"dp_shard": 4, "activation": "full"},
    "zero-1": {"dp_shard": 4, "zero_stage": 1},
    "tp=2": {"tp": 2},
    "stages": {"pp": 2, "microbatches": 4},
    "virtual stages": {"pp": 2, "microbatches": 4, "schedule": "interleaved", "virtual_stages": 2},
}
SOME = ("none", "zero-3")


def mixture(model_type: str, dense: int = 2, layers: int = 6) -> Any:
    """A narrow one of which so many blocks have no experts."""
    config = transformers.AutoConfig.for_model(
        model_type,
        num_hidden_layers=layers,
        vocab_size=8192,
        hidden_size=512,
        intermediate_size=1536,
        moe_intermediate_size=256,
        num_attention_heads=8,
        num_key_value_heads=2,
        n_routed_experts=16,
        num_experts=16,
        num_experts_per_tok=4,
        first_k_dense_replace=dense,
    )
    if getattr(config, "mlp_layer_types", None):
        config.mlp_layer_types = ["dense"] * dense + ["sparse"] * (layers - dense)
    return config


@pytest.mark.long
@pytest.mark.parametrize(
    ("model_type", "plans"), part([("glm4_moe", PLANS)], [("exaone_moe", SOME)])
)
def test_every_rank_has_the_peak_of_its_own_blocks(model_type: str, plans: Iterable[str]) -> None:
    config = mixture(model_type)
    for name in plans:
        plan = ParallelPlan(precision="bf16", **({"microbatches": 1} | PLANS[name]))
        said, seen = peaks(config, plan)
        assert (name, said) == (name, pytest.approx(seen, rel=0.05))


def peaks(config: Any, plan: ParallelPlan) -> tuple[list[float], list[int]]:
    """Of each pipeline rank, as the planner says it and as a dry run does."""
    batch = 4 * plan.dp * plan.microbatches
    job = make_job(config, plan, batch, 1024, device="cuda")
    said = [rank_memory(job, rank, context_bytes=0).allocated for rank in range(plan.pp)]
    firsts = range(0, plan.world_size, plan.world_size // plan.pp)
    work = {"batch": batch, "seq_len": 1024, "device": "meta"}
    return said, [dry_run(config, plan, first, **work).peak_bytes for first in firsts]


def unmeasured(config: Any, plan: ParallelPlan, batch: int = 4, seq_len: int = 64) -> Job:
    """With blocks that another program computes, so that no dry run is needed."""
    return make_job(config, plan, batch, seq_len, program("torchtitan"))


def two_stages(dense: int, layers: int = 4) -> Job:
    plan = ParallelPlan(pp=2, partition="2,2", microbatches=2)
    return unmeasured(mixture("glm4_moe", dense, layers), plan)


def test_a_stage_takes_what_a_model_of_its_blocks_takes() -> None:
    cluster = make_cluster("dgx-h100", nodes=1)
    several = stage_times(two_stages(dense=2), cluster)
    of_dense, of_experts = (stage_times(two_stages(dense), cluster) for dense in (4, 0))
    assert several == [of_dense[0], of_experts[1]]
    assert of_dense[0].forward_s != of_experts[0].forward_s


def test_a_rank_whose_blocks_are_others_is_looked_at() -> None:
    """The middle ranks have as many blocks, and those of the second have no experts."""
    plan = ParallelPlan(pp=4, partition="2,2,2,2", microbatches=4)
    job = unmeasured(mixture("glm4_moe", dense=4, layers=8), plan)
    assert candidates(job) == [0, 1, 2, 3]


def test_units_have_the_parameters_of_their_own_blocks() -> None:
    plan = ParallelPlan(activation="group_2", microbatches=1)
    job = unmeasured(mixture("glm4_moe", dense=2, layers=5), plan)
    dense, experts = (kind.elements for kind in model_shape(mixture("glm4_moe")).kinds)
    parameters = [experts, 2 * experts, 2 * dense]
    assert units_of(job, 0) == ([1, 2, 2], parameters, parameters)


def test_alternating_blocks_are_gathered_each_as_large_as_it_is() -> None:
    """Of ZeRO-3 the largest is there beside its neighbour, and not beside another of its size."""
    config = mixture("exaone_moe")
    config.mlp_layer_types = ["dense", "sparse"] * 3
    plan = ParallelPlan(dp_shard=4, precision="bf16", activation="full", microbatches=1)
    said, seen = peaks(config, plan)
    assert said == pytest.approx(seen, rel=0.05)
    sizes = units_of(unmeasured(config, plan), 0).parameters
    assert all(one != other for one, other in itertools.pairwise(sizes))


@pytest.mark.parametrize("tp", (2, 4))
def test_tp_must_divide_the_width_of_each_kind(tp: int) -> None:
    config = mixture("glm4_moe")
    config.moe_intermediate_size = 258
    plan = ParallelPlan(tp=tp, microbatches=1)
    if tp == 2:
        assert unmeasured(config, plan).shape.kinds
        return
    with pytest.raises(UserError, match="tp=4 does not divide 8 heads and an MLP of 258"):
        unmeasured(config, plan)


def test_the_time_of_a_recurrence_is_not_known() -> None:
    config, cluster = small_config("jamba"), make_cluster("dgx-h100", nodes=1)
    for question in (
        lambda: estimate(config, ParallelPlan(dp_shard=8), cluster, 8, 16),
        lambda: search_plans(config, cluster, batch=8, seq_len=16),
        lambda: stage_times(unmeasured(config, ParallelPlan(), 8), cluster),
    ):
        with pytest.raises(UserError) as caught:
            question()
        assert str(caught.value).startswith(
            "jamba has layers of linear attention, whose time no formula knows: dry_run"
        )
