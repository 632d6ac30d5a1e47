"""Will it fit, how fast, what does it cost: one plan on one cluster, before anything is started.

estimate(config, plan, cluster, batch=256, seq_len=2048).time.total_s
estimate(config, plan, cluster, 256, 2048, program="megatron")       # by another program
"""

from typing import Any

from helpers.engine.errors import UserError
from helpers.engine.models.configurations import check_counts
from helpers.engine.plan import ParallelPlan
from helpers.planner.hardware.cluster import check_cluster
from helpers.planner.hardware.devices import Cluster
from helpers.planner.memory.peak import fullest
from helpers.planner.model.adapters import Adapters
from helpers.planner.model.block_tensors import Program, program_for
from helpers.planner.model.job_checks import check_timed
from helpers.planner.model.training_job import Job, make_job
from helpers.planner.search.planned import Choice
from helpers.planner.shape.families import model_shape
from helpers.planner.time.step_time import step_time


def estimate(
    model: Any,
    plan: ParallelPlan,
    cluster: Cluster,
    batch: int,
    seq_len: int,
    program: str | Program = "engine",
    adapters: Adapters | None = None,
    optimizer: str = "adamw",
) -> Choice:
    """Memory of the fullest rank, seconds of a step by part, tokens/s and dollars per token.

    Whether it fits is `estimate(...).fits`.

    Args:
        model: a transformers configuration, or a Shape.
        batch: samples of a step, over all ranks.
        program: who computes it: `engine`, `engine-compiled`, `megatron`, `torchtitan`,
            `llm-foundry` or another of model/programs.json; or a Program of your own. Memory is the
            program's where its row says what it holds; else the engine's, but for what blocks keep.
        optimizer: `adamw`, or `adamw8bit` as `--optimizer adamw8bit`.
        adapters: LoRA or QLoRA beside a frozen model, Adapters(rank=64, quantize="nf4").

    Raises:
        UserError: the plan does not fit the model or the cluster's number of devices, there is no
            such program, or no formula knows the seconds of the model's layers.
    """
    job = planned_job(model, plan, cluster, batch, seq_len, program, adapters, optimizer)
    memory = fullest(job, context_bytes=cluster.context_bytes)
    return Choice(job, cluster, memory, step_time(job, cluster))


def planned_job(
    model: Any,
    plan: ParallelPlan,
    cluster: Cluster,
    batch: int,
    seq_len: int,
    program: str | Program = "engine",
    adapters: Adapters | None = None,
    optimizer: str = "adamw",
) -> Job:
    """The job that a question is about, once it makes sense.

    Raises:
        UserError: as estimate.
    """
    check_cluster(cluster)
    shape = model_shape(model)
    check_timed(shape)
    way = None
    check_counts(batch, seq_len)
    if isinstance(plan, ParallelPlan):
        way = program_for(program, shape, plan, cluster, seq_len)
    job = make_job(shape, plan, batch, seq_len, way, adapters, optimizer, cluster.device)
    if plan.world_size != cluster.devices:
        raise UserError(
            f"the plan has {plan.world_size} ranks ({plan.describe()}), but {cluster.nodes} x "
            f"{cluster.name} has {cluster.devices} devices"
        )
    cluster.rate(plan.precision)
    return job
