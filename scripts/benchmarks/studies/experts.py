"""What tp and ep make of a mixture's experts: steps of a small Mixtral in turn, on two ranks."""

import sys
from dataclasses import replace
from statistics import median
from typing import Any, NamedTuple

import cloudpickle
import torch
import transformers

from helpers.commands import markdown
from helpers.engine.memory.cpu_allocator import keep_freed_memory
from helpers.engine.models.architecture import family_of
from helpers.engine.parallelize import parallelize
from helpers.engine.plan import ParallelPlan
from helpers.engine.trainer import Trainer
from helpers.lab.calls.on_ranks import on_ranks

SIZES = {
    "vocab_size": 4096,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_local_experts": 8,
}
WARM = 2


class Way(NamedTuple):
    """A plan's degrees; `whole` leaves the experts whole on each rank of tp."""

    degrees: dict[str, int]
    whole: bool = False


WAYS = {
    "tp=2, experts whole": Way({"tp": 2}, whole=True),
    "tp=2": Way({"tp": 2}),
    "ZeRO-3": Way({"dp_shard": 2}),
    "ep=2": Way({"dp_shard": 2, "ep": 2}),
}
CASES = ((4, 64), (4, 256), (8, 512))  # rows and tokens of each


def measure(rounds: int) -> list[dict[str, Any]]:
    """Of each case the median seconds of a step by each way, all of which hold a model and take
    turns."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # scripts are no package
    return [
        {"rows": rows, "seq_len": seq}
        | on_ranks(seconds, rows, seq, rounds, nproc=2, timeout_s=600)[0]
        for rows, seq in CASES
    ]


def seconds(rows: int, seq: int, rounds: int) -> dict[str, float]:
    """On a rank: the median seconds of a step by each way."""
    torch.set_num_threads(1)
    keep_freed_memory()  # as `distributed` does
    trainers = {name: _trainer(way) for name, way in WAYS.items()}
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(SIZES["vocab_size"], (rows, seq), generator=generator)
    taken: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(WARM + rounds):
        for name, trainer in trainers.items():
            taken[name].append(trainer.step(ids, ids.clone()).step_s)
    return {name: median(each[WARM:]) for name, each in taken.items()}


def _trainer(way: Way) -> Trainer:
    plan = ParallelPlan(**way.degrees)
    mesh = plan.mesh("cpu")
    torch.manual_seed(0)
    model = transformers.MixtralForCausalLM(transformers.MixtralConfig(**SIZES))
    family = replace(family_of(model), experts=()) if way.whole else None
    return Trainer(parallelize(model, plan, mesh, family=family), plan, mesh, lr=1e-4)


def table(found: list[dict[str, Any]]) -> str:
    """As Markdown."""
    rows = (
        (f"{one['rows']} × {one['seq_len']}", *(f"{one[name]:.2f}" for name in WAYS))
        for one in found
    )
    return markdown(("rows", *(f"{name}, s" for name in WAYS)), rows)
