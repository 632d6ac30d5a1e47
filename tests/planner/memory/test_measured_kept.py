"""What blocks of models with no table keep, and their peaks, against dry runs of other sizes than
those that it was seen in."""

import sys
from statistics import mean
from typing import Any

import pytest

pytest.importorskip("transformers")
import transformers

from helpers.engine.models.overrides import fewer_layers
from helpers.engine.plan import ParallelPlan
from helpers.planner.dry_run.dry_run import dry_run
from helpers.planner.dry_run.kept_by_blocks import kept_by_blocks
from helpers.planner.memory.activations import block_bytes
from helpers.planner.memory.peak import fullest
from helpers.planner.model.block_tensors import program_of
from helpers.planner.model.training_job import make_job
from helpers.planner.shape.families import model_shape
from helpers.planner.shape.parameters import blocks_parameters
from tests.support.matrix import each

BATCH, SEQ_LEN = 2, 1024
# capped scores in memory, norms of whole projections and of heads, low ranks, experts in some
# blocks, attention that tp leaves whole
TYPES = ("gemma2", "olmo2", "qwen3", "minicpm3", "glm4_moe", "codegen")
PLANS = {
    "none": ParallelPlan(precision="bf16", microbatches=1),
    "selective": ParallelPlan(precision="bf16", activation="selective", microbatches=1),
    "tp=2": ParallelPlan(tp=2, microbatches=1),
    "tp=4, split": ParallelPlan(tp=4, sequence_parallel=True, precision="bf16", microbatches=1),
}
WHOLE_ATTENTION = ("minicpm3", "codegen")  # there is no sequence parallelism


def published(model_type: str) -> Any:
    """The type's own widths, with few layers; of experts, one layer in 24 has none."""
    config = transformers.AutoConfig.for_model(model_type)
    if model_type == "glm4_moe":
        config.num_hidden_layers = 24
    else:
        fewer_layers(config, 3)
    return config


@pytest.mark.parametrize(
    ("model_type", "plan"),
    [
        case
        for case in each(TYPES, PLANS)
        if not (case.values[1] == "tp=4, split" and case.values[0] in WHOLE_ATTENTION)
    ],
)
def test_what_blocks_keep_at_another_length(model_type: str, plan: str) -> None:
    config, plan = published(model_type), PLANS[plan]
    job = make_job(config, plan, BATCH, SEQ_LEN)
    seen = kept_by_blocks(config, plan, BATCH, SEQ_LEN, "cpu")
    sizes = [sum(held.elements for held in block) for block in blocks_parameters(job.shape, 1)]
    assert block_bytes(job) == pytest.approx(mean(seen[size] for size in sizes), rel=0.02)


@pytest.mark.parametrize("activation", ["none", "selective", "full"])
@pytest.mark.parametrize("model_type", ("gemma2", "olmo2", "minicpm3", "xglm"))
def test_the_fullest_moment_of_a_counted_model(model_type: str, activation: str) -> None:
    """On an accelerator, four rows of 2,048 tokens; of xglm dropout of scores is in memory."""
    config = published(model_type)
    plan = ParallelPlan(precision="bf16", activation=activation, microbatches=1)
    job = make_job(config, plan, 4, 2048, device="cuda")
    seen = dry_run(config, plan, batch=4, seq_len=2048, device="meta").peak_bytes
    assert fullest(job, context_bytes=0).allocated == pytest.approx(seen, rel=0.05)


def test_a_model_of_one_layer_has_its_own() -> None:
    config = published("qwen3")
    config.num_hidden_layers, config.layer_types = 1, config.layer_types[:1]
    plan = PLANS["none"]
    seen = dry_run(config, plan, batch=BATCH, seq_len=SEQ_LEN).peak_bytes
    said = fullest(make_job(config, plan, BATCH, SEQ_LEN), context_bytes=0).allocated
    assert said == pytest.approx(seen, rel=0.02)


def test_a_dry_run_leaves_what_python_says_of_errors() -> None:
    before = sys.excepthook
    kept_by_blocks(published("qwen3"), PLANS["none"], 2, 64, "cpu")
    assert sys.excepthook is before


def test_a_family_with_a_table_is_not_run() -> None:
    shape = model_shape(transformers.LlamaConfig())
    assert program_of(shape, "bf16", "cuda").name == "Llama in 16 bits"
    assert program_of(shape, "bf16", "cuda").kept["none"].query == 2
