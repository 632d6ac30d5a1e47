"""Will it fit, how fast, what does it cost: one plan on one cluster, before anything is started."""

from typing import Any

from helpers.engine.errors import UserError
from helpers.engine.plan import ParallelPlan
from helpers.planner.hardware.cluster import Cluster
from helpers.planner.memory.peak import fullest
from helpers.planner.model.training_job import make_job
from helpers.planner.search.planned import Choice
from helpers.planner.time.step_time import step_time


def estimate(model: Any, plan: ParallelPlan, cluster: Cluster, batch: int, seq_len: int) -> Choice:
    """Memory of the fullest rank, seconds of a step by part, tokens/s and dollars per token.

    Whether it fits is `estimate(...).memory.total <= cluster.memory_bytes`.

    Args:
        model: a transformers configuration, or a Shape.
        batch: samples of a step, over all ranks.

    Raises:
        UserError: the plan does not fit the model or the cluster's number of devices.
    """
    if plan.world_size != cluster.devices:
        raise UserError(
            f"the plan has {plan.world_size} ranks ({plan.describe()}), but {cluster.nodes} x "
            f"{cluster.name} has {cluster.devices} devices"
        )
    job = make_job(model, plan, batch, seq_len)
    return Choice(job, cluster, fullest(job), step_time(job, cluster))
