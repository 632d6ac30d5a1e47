"""Every pipeline equals one process, whatever schedule, family and other axes."""

import pytest
import torch

from helpers.engine.plan import ParallelPlan
from tests.support import parity
from tests.support.matrix import each
from tests.support.ranks import pool

FAMILIES = ("gptj", "gpt2", "neox", "falcon-new", "llama", "gemma3", "opt", "bert-mlm")
FAMILIES += ("roberta-classes",)
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble")
LAYOUTS = {
    "pp2": {"pp": 2},
    "pp4": {"pp": 4},
    "pp2-tp2": {"pp": 2, "tp": 2},
    "pp2-zero1": {"pp": 2, "dp_shard": 2, "zero_stage": 1},
    "pp2-hsdp": {"pp": 2, "dp_replicate": 2, "dp_shard": 2},
    "pp2-tp2-dp2": {"pp": 2, "tp": 2, "dp_replicate": 2},
}


def layers_of(layout: dict, schedule: str) -> int:
    """A layer a stage at least."""
    return 8 if layout["pp"] == 4 and schedule == "interleaved" else 4


@pytest.mark.parametrize(("family", "schedule", "layout"), each(FAMILIES, SCHEDULES, LAYOUTS))
def test_a_pipeline_equals_one_process(family: str, schedule: str, layout: str) -> None:
    plan = ParallelPlan(**LAYOUTS[layout], schedule=schedule, microbatches=4)
    layers = layers_of(LAYOUTS[layout], schedule)
    pool(plan.world_size).run(parity.check, family, plan, torch.float64, 10, layers)


MORE = {
    "naive": {"pp": 2, "schedule": "naive"},
    "v": {"pp": 2, "schedule": "zero-bubble-v"},
    "v-zero3": {"pp": 2, "dp_shard": 2, "schedule": "zero-bubble-v"},
    "v-zero2": {"pp": 2, "dp_shard": 2, "zero_stage": 2, "schedule": "zero-bubble-v"},
    "interleaved-zero2": {"pp": 2, "dp_shard": 2, "zero_stage": 2, "schedule": "interleaved"},
    "interleaved-zero3": {"pp": 2, "dp_shard": 2, "schedule": "interleaved"},
    "zero-bubble-sp": {"pp": 2, "tp": 2, "sequence_parallel": True, "schedule": "zero-bubble"},
    "sp": {"pp": 2, "tp": 2, "sequence_parallel": True},
    "sp-zero3": {"pp": 2, "tp": 2, "sequence_parallel": True, "dp_shard": 2},
    "tp-zero3-zero-bubble": {"pp": 2, "tp": 2, "dp_shard": 2, "schedule": "zero-bubble"},
    "spread": {"pp": 2, "tp": 2, "dp_shard": 2, "placement": "spread"},
    "no-layer-first": {"pp": 2, "partition": "0,4"},
    "no-layer-last": {"pp": 2, "tp": 2, "sequence_parallel": True, "partition": "4,0"},
    "no-layer-first-sp": {"pp": 2, "tp": 2, "sequence_parallel": True, "partition": "0,4"},
    "no-layer-at-both-ends": {"pp": 4, "partition": "0,3,1,0"},
    "a-stage-more-than-layers": {"pp": 5, "partition": "1,1,1,1,0"},
    "two-stages-more-than-layers": {
        "pp": 3,
        "virtual_stages": 2,
        "partition": "0,1,1,1,1,0",
        "schedule": "interleaved",
        "microbatches": 3,
    },
    "uneven": {"pp": 2, "partition": "1,3"},
    "full": {"pp": 2, "activation": "full"},
    "full-zero-bubble": {"pp": 2, "activation": "full", "schedule": "zero-bubble"},
    "selective": {"pp": 2, "activation": "selective"},
    "group": {"pp": 2, "activation": "group_2", "schedule": "interleaved"},
    "offload": {"pp": 2, "offload": True},
    "group-zero3": {"pp": 2, "dp_shard": 2, "activation": "group_2"},
    "few": {"pp": 2, "microbatches": 3},
    "one": {"pp": 4, "microbatches": 1, "schedule": "gpipe"},
    "auto": {"pp": 2, "microbatches": 0},
}


@pytest.mark.parametrize(("family", "layout"), each(("gpt2", "falcon-alibi"), MORE))
def test_what_else_a_pipeline_goes_with(family: str, layout: str) -> None:
    plan = ParallelPlan(**{"microbatches": 4} | MORE[layout])
    pool(plan.world_size).run(parity.check, family, plan, torch.float64, 3, 4)
