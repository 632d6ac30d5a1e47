"""Tables that answer "what if" about plans on paper: what a GPU holds, and what a plan costs."""

from typing import TYPE_CHECKING, Any

from helpers.engine.errors import UserError, need
from helpers.engine.models.configurations import load_config
from helpers.engine.plan import ParallelPlan
from helpers.lab.figures.tables import table_of
from helpers.planner.hardware.catalog import GIB
from helpers.planner.hardware.cluster import make_cluster
from helpers.planner.hardware.devices import Cluster
from helpers.planner.hardware.lookup import find_gpu, find_instance
from helpers.planner.memory.peak import fullest
from helpers.planner.model.training_job import make_job
from helpers.planner.search.planned import Choice
from helpers.planner.time.step_time import step_time

if TYPE_CHECKING:
    import pandas as pd

# the values of each slider of a table's arguments
MEMORY_SLIDERS = {
    "tp": (1, 2, 4, 8),
    "dp_shard": (1, 2, 4, 8, 16, 64, 256),
    "cp": (1, 2, 4, 8, 16),
    "zero_stage": (1, 2, 3),
    "activation": ("none", "selective", "full"),
    "samples": (1, 2, 4, 8),
    "seq_len": (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072),
}
PLAN_SLIDERS = {
    "nodes": (8, 16, 32, 64, 128),
    "tp": (1, 2, 4, 8),
    "pp": (1, 2, 4, 8, 16),
    "cp": (1, 2, 4, 8),
    "batch": (512, 1024, 2048),
    "samples": (1, 2, 4),
    "activation": ("none", "selective", "full"),
}


def memory_table(
    model: str,
    instance: str,
    tp: int = 1,
    dp_shard: int = 1,
    cp: int = 1,
    zero_stage: int = 3,
    activation: str = "none",
    samples: int = 1,
    seq_len: int = 2048,
) -> "pd.DataFrame":
    """What one GPU of `instance` holds at its fullest moment, in GiB, a row a category.

    Args:
        samples: of one micro-batch on a rank.

    Raises:
        UserError: one line: the plan is none for the model.
    """
    pandas = need("pandas", "notebooks")
    plan = ParallelPlan(
        tp=tp,
        dp_shard=dp_shard,
        cp=cp,
        zero_stage=zero_stage,
        activation=activation,
        sequence_parallel=tp > 1,
        precision="bf16",
    )
    shape, batch = _long_enough(model, seq_len), samples * dp_shard
    memory = fullest(make_job(shape, plan, batch, seq_len, device="cuda"))
    gpu_bytes = find_gpu(find_instance(instance).gpu).memory_bytes
    rows = {
        **memory.by_category,
        "libraries and allocator": memory.total - memory.allocated,
        "all": memory.total,
        "the GPU has": gpu_bytes,
        "free": gpu_bytes - memory.total,
    }
    return pandas.DataFrame({"GiB": rows}).rename_axis("on the fullest GPU") / GIB


def plan_table(
    model: str,
    instance: str,
    nodes: int,
    tp: int = 1,
    pp: int = 1,
    cp: int = 1,
    batch: int = 512,
    seq_len: int = 2048,
    samples: int = 1,
    activation: str = "none",
) -> "pd.DataFrame":
    """A row for each way to spread the state over the ranks that tp and pp leave, of which cp split
    each row of tokens: does it fit, how fast, and what does it cost?

    Args:
        batch: samples of a step, over all ranks.
        samples: of one micro-batch on a rank.

    Raises:
        UserError: one line: tp x pp x cp does not divide the devices, the batch is smaller than the
            data ranks, or the plan is none for the model.
    """
    cluster = make_cluster(instance, nodes)
    dp, left = divmod(cluster.devices, tp * pp * cp)
    if left:
        degrees = f"tp={tp} x pp={pp}" + (f" x cp={cp}" if cp > 1 else "")
        raise UserError(f"{degrees} does not divide {cluster.devices} devices")
    if dp > batch:
        raise UserError(
            f"{dp} data ranks want a batch of at least {dp}, not {batch}: more tp, pp or cp"
        )
    common = {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "sequence_parallel": tp > 1,
        "activation": activation,
        "precision": "bf16",
        "microbatches": -(-batch // dp // samples),
    }
    rows = {
        name: _row(model, ParallelPlan(**common, **degrees), cluster, batch, seq_len)
        for name, degrees in _ways_to_share(dp, cp, cluster.devices_per_node // tp // cp).items()
    }
    return table_of(rows, "the state is")


def _ways_to_share(dp: int, cp: int, in_node: int) -> dict[str, dict[str, int]]:
    """Fields of a plan by name: how `dp` ranks, and the `cp` that each has beside it, can share the
    state."""
    if dp * cp == 1:
        return {"whole: one copy": {}}
    ways = {"copied (DDP)": {"dp_replicate": dp}} if cp == 1 else {}
    for stage in (1, 2, 3):
        ways[f"over all {dp * cp}, ZeRO-{stage}"] = {"dp_shard": dp, "zero_stage": stage}
    if 1 < in_node < dp and dp % in_node == 0:
        ways[f"over {in_node * cp} of a node (HSDP)"] = {
            "dp_shard": in_node,
            "dp_replicate": dp // in_node,
        }
    return ways


def _row(
    model: str, plan: ParallelPlan, cluster: Cluster, batch: int, seq_len: int
) -> dict[str, Any]:
    job = make_job(_long_enough(model, seq_len), plan, batch, seq_len, device=cluster.device)
    # the closed form of the pipeline: a slider should not wait for the simulator
    choice = Choice(job, cluster, fullest(job), step_time(job, cluster, "quick"))
    utilisation = choice.mfu(choice.peak_flops)
    price = choice.usd_per_token
    return {
        "GiB per GPU": choice.memory.total / GIB,
        "fits": choice.fits,
        "step, s": choice.time.total_s,
        "tokens/s": choice.tokens_per_s,
        "MFU, %": None if utilisation is None else 100 * utilisation,
        "data messages, % of the step": 100 * choice.time.data_s / choice.time.total_s,
        "dollars per million tokens": None if price is None else 1e6 * price,
    }


def _long_enough(model: str, seq_len: int) -> Any:
    """A model's configuration, with more positions where a question about lengths needs them."""
    config = load_config(model)
    config.max_position_embeddings = max(config.max_position_embeddings, seq_len)
    return config
