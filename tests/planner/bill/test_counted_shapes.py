"""Models with no formula: counted right, or refused in one line."""

import os
import pickle
import subprocess
import sys

import pytest
import torch
import transformers

from helpers.engine.errors import UserError
from helpers.engine.models.architecture import candidates
from helpers.engine.models.overrides import fewer_layers
from helpers.engine.parallelize import parallelize
from helpers.engine.pipeline.stages import auto_partition
from helpers.engine.plan import ParallelPlan
from helpers.engine.tensor.shards import local
from helpers.planner import cost
from helpers.planner.dry_run.dry_run import dry_run, pretended
from helpers.planner.dry_run.forward_products import forward_products
from helpers.planner.memory.states import rank_states
from helpers.planner.model.shared_gradients import shared_gradient_bytes, shared_parameters
from helpers.planner.model.stage_layers import balanced_layers
from helpers.planner.model.training_job import make_job
from helpers.planner.shape import counted
from helpers.planner.shape.counted import shape_of
from helpers.planner.shape.families import model_shape
from helpers.planner.shape.shape import Shape, token_flops
from tests.planner.shapes import SMALL
from tests.support import tiny
from tests.support.matrix import each
from tests.support.scripts import script

small_config = script("docs/small_models").small_config
# as their authors say: billions of parameters of the configuration that transformers has by default
PUBLISHED = {
    "mixtral": 46.7,  # Jiang et al. 2024, Mixtral of Experts, section 2: 47 B
    "gpt_oss": 116.8,  # OpenAI 2025, gpt-oss model card, table 1
    "deepseek_v3": 671.0,  # DeepSeek-AI 2024, DeepSeek-V3, section 4.2
}


@pytest.mark.parametrize("model_type", PUBLISHED)
def test_published_mixtures_of_experts_have_their_published_size(model_type: str) -> None:
    config = transformers.AutoConfig.for_model(model_type)
    billions = cost.parameters(model_shape(config)) / 1e9
    assert billions == pytest.approx(PUBLISHED[model_type], abs=0.05)


def test_a_shape_that_comes_from_another_process_is_the_same() -> None:
    """Which has another hash for the words in it."""
    made = "import pickle, sys; from tests.planner.shapes import SMALL as shape; hash(shape); "
    line = made + "sys.stdout.buffer.write(pickle.dumps(shape))"
    other = os.environ | {"PYTHONHASHSEED": "1"}
    sent = subprocess.run([sys.executable, "-c", line], env=other, capture_output=True, check=True)
    assert pickle.loads(sent.stdout) in {SMALL}


@pytest.mark.parametrize("model_type", ("gpt_oss", "mixtral", "qwen3", "olmo2", "xglm", "youtu"))
def test_small_ones_are_counted_to_the_last_parameter(model_type: str) -> None:
    config = small_config(model_type)
    counted = cost.parameters(model_shape(config))
    whole = sum(p.numel() for p in build_on_meta(config).parameters())
    assert counted == whole


REFUSED = {
    "mamba": "mamba has no attention heads: dry_run",
    "nemotron_h": "times the FLOPs of attention",
    "gemma4_text": "is a per-layer attribute",
    "blt": "has no embedding and list of blocks to count",
    "bart": "its loss is not the shifted cross-entropy of its logits",  # as the engine says
    "gemma3": "gemma3 has model.vision_tower, which is in no part of a language model that is",
    "electra": "electra has generator_predictions.LayerNorm.weight, which is in no part of a",
    "llama4_text": "times the FLOPs of attention, an MLP and a head",  # all experts, of every token
    "falcon_h1": "times the FLOPs of attention",  # a state space in each block
    "mllama": "times the FLOPs of attention",  # blocks that no text goes through
    "jetmoe": "jetmoe cannot be run without values: split_with_sizes expects",
}


@pytest.mark.parametrize("model_type", REFUSED)
def test_what_cannot_be_priced_is_refused_in_one_line(model_type: str) -> None:
    with pytest.raises(UserError) as caught:
        model_shape(small_config(model_type))
    assert REFUSED[model_type] in str(caught.value) and "\n" not in str(caught.value)


# fused layers and parts, norms of whole projections and of heads, an MLM's head, experts; attention
# with numbers of its own, which stays whole; a base that transformers calls by another name
CUT = ("phi3", "olmo2", "glm", "bert", "glm4", "bitnet", "granitemoehybrid", "qwen3", "opt")
CUT += ("diffllama", "llama4_text", "gpt_oss", "youtu")  # sinks, low ranks
LAYOUTS = {
    "tp=2": ParallelPlan(tp=2),
    "tp=4": ParallelPlan(tp=4),
    "zero-3": ParallelPlan(dp_shard=2, zero_stage=3),
    "both": ParallelPlan(tp=2, pp=2, microbatches=2, dp_shard=2, zero_stage=1),
}


@pytest.mark.parametrize(("model_type", "layout"), each(CUT, LAYOUTS))
def test_a_rank_holds_what_the_engine_leaves_it(model_type: str, layout: str) -> None:
    config, plan = small_config(model_type), LAYOUTS[layout]
    held = dry_run(config, plan, batch=4, seq_len=16).states
    states = rank_states(make_job(shape_alone(config), plan, 4, 16), 0)
    assert sum(held.values()) == states.parameters + states.gradients + states.optimizer


def shape_alone(config) -> Shape:
    """Also of a model whose products are not priced."""
    return shape_of(build_on_meta(config))


def build_on_meta(config) -> torch.nn.Module:
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config)


# routed experts, gates, low ranks, sinks, a norm before the attention in the list of modules
PRICED = ("gpt_oss", "youtu", "mixtral", "qwen3_moe", "doge", "gpt_neox_japanese")
PRICED += ("minicpm3", "olmoe", "moshi", "qwen2_moe", "gemma2", "codegen", "flex_olmo", "mellum")


@pytest.mark.parametrize("model_type", PRICED)
def test_a_forward_has_the_flops_that_torch_counts(model_type: str) -> None:
    """Of the type's own configuration, with few layers."""
    config = transformers.AutoConfig.for_model(model_type)
    fewer_layers(config, 2)
    formula = 64 * token_flops(shape_alone(config), 64)
    model = build_on_meta(config)
    assert formula == pytest.approx(forward_products(model, 1, 64), rel=0.01)


# active parameters as their authors say, in billions, and is the table of vectors among them?
ACTIVE = {
    "mixtral": (12.9, True),  # Jiang et al. 2024, section 2
    "gpt_oss": (5.13, False),  # OpenAI 2025, table 1
    "deepseek_v3": (37.0, True),  # DeepSeek-AI 2024, section 4.2
}


@pytest.mark.parametrize("model_type", ACTIVE)
def test_training_counts_the_parameters_that_a_token_goes_through(model_type: str) -> None:
    shape = model_shape(transformers.AutoConfig.for_model(model_type))
    scores = 12 * shape.layers * shape.heads * shape.head_dim * 1024
    billions = (cost.train_flops_per_token(shape, 1024) - scores) / 6e9
    published, table = ACTIVE[model_type]
    billions -= 0 if table else shape.vocab * shape.hidden / 1e9
    assert billions == pytest.approx(published, rel=0.02)


def test_a_class_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = model_shape(small_config("mixtral"))
    monkeypatch.setattr(counted, "shape_of", None)
    assert model_shape(small_config("mixtral")) is first
    for field, value in (("vocab_size", 2), ("_experts_implementation", "batched_mm")):
        other = small_config("mixtral")
        setattr(other, field, value)
        with pytest.raises(UserError):  # it is counted anew, and nothing is there to count
            model_shape(other)


# kinds of blocks that differ by a few percent
DIFFERENT = {"minimax": ("zero-3", "stages"), "olmo_hybrid": ("tp=2", "zero-3", "both")}
LAYOUTS["stages"] = ParallelPlan(pp=2, microbatches=2)


@pytest.mark.parametrize("model_type", DIFFERENT)
def test_each_rank_holds_the_kinds_of_its_own_blocks(model_type: str) -> None:
    config = small_config(model_type)
    for plan in map(LAYOUTS.get, DIFFERENT[model_type]):
        job = make_job(shape_alone(config), plan, 4, 16)
        for pipeline_rank in range(plan.pp):
            rank = pipeline_rank * plan.tp  # the first of those that share its states
            held = dry_run(config, plan, rank, batch=4, seq_len=16).states
            assert vars(rank_states(job, pipeline_rank)) == held


@pytest.mark.parametrize("model_type", ("olmo_hybrid", "qwen3", "olmo2", "deepseek_v3", "cohere"))
def test_layers_are_dealt_out_as_the_engine_deals_them(model_type: str) -> None:
    config = transformers.AutoConfig.for_model(model_type)
    model = build_on_meta(config)
    shape = shape_of(model)
    for stages in (2, 3, 5, 8):
        assert balanced_layers(shape, stages) == auto_partition(model, stages)


def test_a_dry_run_refuses_what_the_engine_refuses() -> None:
    """Of a token's vectors some go past the stages in between."""
    with pytest.raises(UserError) as caught:
        dry_run(small_config("nanochat"), ParallelPlan(pp=2), batch=4, seq_len=16)
    assert str(caught.value).startswith("nanochat would not be exact under pp=2: its loss would be")


def test_a_dry_run_says_in_a_line_what_transformers_cannot_build() -> None:
    with pytest.raises(UserError) as caught:
        dry_run(transformers.AutoConfig.for_model("dbrx"), ParallelPlan(), batch=2, seq_len=8)
    assert str(caught.value).startswith("transformers cannot build this dbrx: ")


SHARING = ("llama", "falcon-mqa", "olmo2", "phi3-grouped", "qwen3", "gemma3", "bloom", "neox")


@pytest.mark.parametrize(("family", "tp", "flag"), each(SHARING, ("2", "4"), ("", "sequence")))
def test_what_tensor_ranks_sum_is_what_the_engine_sums(family: str, tp: str, flag: str) -> None:
    """Parameters of which each has a part of the gradient, on both ranks of a pipeline."""
    plan = ParallelPlan(tp=int(tp), pp=2, microbatches=2, sequence_parallel=bool(flag))
    config = tiny.config(family)
    for rank in range(2):
        model = build_on_meta(config)
        way = candidates(model, plan.tp, 1)[0]
        with pretended(plan.world_size, rank * plan.tp):
            parallelize(model, plan, plan.mesh("cpu"), family=way)
            here = dict(model.named_parameters())
            names = model.partial_gradients & here.keys()
            held = sum(local(here[name]).numel() for name in names)
        assert held == shared_parameters(make_job(config, plan, 4, 16), rank)


def test_what_tensor_ranks_sum_is_float32_with_sums_in_16_bits() -> None:
    plan = ParallelPlan(tp=4, precision="bf16", reduce_dtype="bf16")
    job = make_job(tiny.config("llama"), plan, 4, 16)
    assert shared_gradient_bytes(job, 0) == 4 * shared_parameters(job, 0) > 0
