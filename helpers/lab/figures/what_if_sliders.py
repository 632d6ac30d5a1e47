"""Tables that answer "what if", and sliders that ask it.

    explore(memory_table, "Memory of a GPU", choices={"tp": (1, 2, 4, 8)}, model="llama2-7b", ...)

The table for the starting values is shown first and stays, also where nothing runs. Where a kernel
and widgets are, sliders and a second table follow it.
"""

import html
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helpers.engine.errors import UserError, need
from helpers.engine.files.weights import load_config
from helpers.engine.plan import ParallelPlan
from helpers.lab.figures.display import (
    display_bundle,
    in_notebook,
    show_table,
    show_text,
    table_html,
)
from helpers.planner.hardware.cluster import Cluster, make_cluster
from helpers.planner.hardware.lookup import find_gpu, find_instance
from helpers.planner.memory.peak import fullest
from helpers.planner.model.training_job import make_job
from helpers.planner.search.search import Choice
from helpers.planner.time.step_time import step_time

if TYPE_CHECKING:
    import pandas as pd

GIB = 2**30
WIDGET = "application/vnd.jupyter.widget-view+json"
STILL = (
    "Sliders stand here while the notebook runs in JupyterLab; the table above is where they start."
)
MEMORY_SLIDERS = {
    "tp": (1, 2, 4, 8),
    "dp_shard": (1, 2, 4, 8, 16, 64, 256),
    "zero_stage": (1, 2, 3),
    "activation": ("none", "selective", "full"),
    "samples": (1, 2, 4, 8),
    "seq_len": (1024, 2048, 4096, 8192, 16384, 32768),
}
PLAN_SLIDERS = {
    "nodes": (8, 16, 32, 64, 128),
    "tp": (1, 2, 4, 8),
    "pp": (1, 2, 4, 8, 16),
    "batch": (512, 1024, 2048),
    "samples": (1, 2, 4),
    "activation": ("none", "selective", "full"),
}
CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "logits", "transients")


def memory_table(
    model: str,
    instance: str,
    tp: int = 1,
    dp_shard: int = 1,
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
        zero_stage=zero_stage,
        activation=activation,
        sequence_parallel=tp > 1,
        precision="bf16",
    )
    memory = fullest(make_job(load_config(model), plan, samples * dp_shard, seq_len))
    has = find_gpu(find_instance(instance).gpu).memory_bytes
    rows = {name: getattr(memory, name) / GIB for name in CATEGORIES}
    rows["libraries and allocator"] = (memory.total - memory.allocated) / GIB
    rows["all"] = memory.total / GIB
    rows["the GPU has"] = has / GIB
    rows["free"] = (has - memory.total) / GIB
    return pandas.DataFrame({"GiB": rows}).rename_axis("on the fullest GPU")


def plan_table(
    model: str,
    instance: str,
    nodes: int,
    tp: int = 1,
    pp: int = 1,
    batch: int = 512,
    seq_len: int = 2048,
    samples: int = 1,
    activation: str = "none",
) -> "pd.DataFrame":
    """A row for each way to spread the state over the ranks that tp and pp leave: does it fit, how
    fast, and what does it cost?

    Args:
        batch: samples of a step, over all ranks.
        samples: of one micro-batch on a rank.

    Raises:
        UserError: one line: tp x pp does not divide the devices, the batch is smaller than the data
            ranks, or the plan is none for the model.
    """
    pandas = need("pandas", "notebooks")
    cluster = make_cluster(instance, nodes)
    dp, rest = divmod(cluster.devices, tp * pp)
    if rest:
        raise UserError(f"tp={tp} x pp={pp} does not divide {cluster.devices} devices")
    if dp > batch:
        raise UserError(
            f"{dp} data ranks want a batch of at least {dp}, not {batch}: more tp or pp"
        )
    common = {
        "tp": tp,
        "pp": pp,
        "sequence_parallel": tp > 1,
        "activation": activation,
        "precision": "bf16",
        "microbatches": -(-batch // dp // samples),
    }
    rows = {
        name: _row(model, ParallelPlan(**common, **way), cluster, batch, seq_len)
        for name, way in _ways(dp, cluster.devices_per_node // tp).items()
    }
    return pandas.DataFrame.from_dict(rows, orient="index").rename_axis("the state is")


def _ways(dp: int, in_node: int) -> dict[str, dict[str, int]]:
    """Fields of a plan by name: how `dp` ranks can share the state."""
    if dp == 1:
        return {"whole: one copy": {}}
    ways = {"copied (DDP)": {"dp_replicate": dp}}
    for stage in (1, 2, 3):
        ways[f"over all {dp}, ZeRO-{stage}"] = {"dp_shard": dp, "zero_stage": stage}
    if 1 < in_node < dp and dp % in_node == 0:
        ways[f"over {in_node} of a node (HSDP)"] = {
            "dp_shard": in_node,
            "dp_replicate": dp // in_node,
        }
    return ways


def _row(
    model: str, plan: ParallelPlan, cluster: Cluster, batch: int, seq_len: int
) -> dict[str, Any]:
    job = make_job(load_config(model), plan, batch, seq_len)
    # the closed form of the pipeline: a slider should not wait for the simulator
    found = Choice(job, cluster, fullest(job), step_time(job, cluster, exact=False))
    peak = find_gpu(find_instance(cluster.name).gpu).peak_flops["bf16"]
    price = found.usd_per_token
    return {
        "GiB a GPU": found.memory.total / GIB,
        "fits": found.memory.total <= cluster.memory_bytes,
        "step, s": found.time.total_s,
        "tokens/s": found.tokens_per_s,
        "MFU, %": 100 * found.mfu(peak),
        "data messages, % of the step": 100 * found.time.data_s / found.time.total_s,
        "dollars a million tokens": None if price is None else 1e6 * price,
    }


def explore(
    table_of: Callable[..., "pd.DataFrame"],
    caption: str,
    choices: Mapping[str, Sequence[Any]],
    save_to: str | Path | None = None,
    **start: Any,
) -> None:
    """Show the table for `start`; in a notebook also sliders, and a table that follows them.

    Args:
        table_of: takes the names of `start`.
        choices: by name the values of its slider, among them the one to start with.
        save_to: as in show_table, for the first table.
    """
    show_table(table_of(**start), _caption(caption, choices, start), save_to=save_to)
    if not in_notebook():
        show_text(STILL)
        return
    box = sliders(table_of, caption, choices, start)
    view = {"model_id": box.model_id, "version_major": 2, "version_minor": 0}
    display_bundle({WIDGET: view, "text/html": f"<p>{STILL}</p>", "text/plain": STILL})


def sliders(
    table_of: Callable[..., "pd.DataFrame"],
    caption: str,
    choices: Mapping[str, Sequence[Any]],
    start: Mapping[str, Any],
) -> Any:
    """The widget: a slider a name, and under them the table. What cannot be is said in its place.

    Raises:
        UserError: a slider does not have the value to start with.
    """
    widgets = need("ipywidgets", "notebooks")
    for name, values in choices.items():
        if start[name] not in values:
            raise UserError(f"the slider {name} starts at {start[name]!r}, which it does not have")
    made = {
        name: widgets.SelectionSlider(
            options=list(values),
            value=start[name],
            description=name,
            continuous_update=False,
            style={"description_width": "7em"},
        )
        for name, values in choices.items()
    }
    shown = widgets.HTML()

    def follow(_: Any = None) -> None:
        asked = {**start, **{name: slider.value for name, slider in made.items()}}
        try:
            shown.value = table_html(table_of(**asked), _caption(caption, choices, asked))
        except UserError as error:
            shown.value = f"<p>{html.escape(str(error))}</p>"

    for slider in made.values():
        slider.observe(follow, names="value")
    follow()
    return widgets.VBox([*made.values(), shown])


def _caption(caption: str, choices: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    return f"{caption}: {', '.join(f'{name} {asked[name]}' for name in choices)}"
