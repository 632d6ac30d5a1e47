"""The ladder of sharded data parallelism: what each rung should hold and send, and what it did.

report = json.loads((run.path / "ladder.json").read_text())       # scripts/measure/zero_stages.py
table = compare_rungs(report, shape)
"""

from collections.abc import Mapping
from statistics import median
from typing import TYPE_CHECKING, Any

from helpers.engine.errors import UserError, need
from helpers.engine.plan import ParallelPlan
from helpers.planner.cost import parameters, state_bytes
from helpers.planner.model.training_job import make_job
from helpers.planner.shape.shape import Shape
from helpers.planner.time.data_messages import data_messages
from helpers.planner.time.messages import SENT

if TYPE_CHECKING:
    import pandas as pd

MB = 1e6
SENT_COLUMN = "sent per step, from counted messages, MB"  # by the ring's factor, SENT


def sent_bytes(shape: Shape, plan: ParallelPlan) -> float:
    """What the planner says that a rank sends in a step to share gradients and parameters."""
    job = make_job(shape, plan, batch=plan.dp * plan.microbatches, seq_len=1)
    return sum(message.sent_bytes for message in data_messages(job, rank=0))


def counted_bytes(message_bytes: Mapping[str, int], plan: ParallelPlan) -> float:
    """What a rank sent, from the whole sizes of the messages that it took part in: all-reduces are
    over dp_replicate, the others over dp_shard."""
    return sum(
        size * SENT[kind](plan.dp_replicate if kind == "all_reduce" else plan.dp_shard)
        for kind, size in message_bytes.items()
    )


def compare_rungs(report: Mapping[str, Any], shape: Shape) -> "pd.DataFrame":
    """A row per rung: state and traffic of a rank, predicted and measured, and the median,
    shortest and longest step.

    Raises:
        UserError: the report has a rung in another precision than float32, whose bytes differ.
    """
    pandas = need("pandas", "notebooks")
    rows = {}
    for name, rung in report.items():
        plan = ParallelPlan.from_dict(rung["plan"])
        if plan.precision != "fp32":
            raise UserError(f"{name!r} is not in float32: leave it out of this comparison")
        state = state_bytes(parameters(shape), dp_shard=plan.dp_shard, zero_stage=plan.zero)
        fullest = max(sum(states.values()) for states in rung["state_bytes"])
        rows[name] = {
            "state, predicted MB": state.total / MB,
            "state, measured MB": fullest / MB,
            "sent per step, predicted MB": sent_bytes(shape, plan) / MB,
            SENT_COLUMN: counted_bytes(rung["message_bytes"], plan) / MB,
            "step, ms": 1000 * median(rung["step_s"]),
            "shortest, ms": 1000 * min(rung["step_s"]),
            "longest, ms": 1000 * max(rung["step_s"]),
        }
    return pandas.DataFrame.from_dict(rows, orient="index").rename_axis("rung")
