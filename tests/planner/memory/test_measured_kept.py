"""What blocks of models with no table keep, and their peaks, against dry runs of other sizes than
those that it was seen in."""

import logging
import sys
from statistics import mean
from typing import Any

import pytest

pytest.importorskip("transformers")
import transformers

from helpers.engine.errors import UserError
from helpers.engine.models.configurations import load_config
from helpers.engine.models.overrides import fewer_layers
from helpers.engine.plan import ParallelPlan
from helpers.planner.dry_run.dry_run import dry_run
from helpers.planner.dry_run.kept_by_blocks import kept_by_blocks, kinds_of
from helpers.planner.memory.activations import kept_bytes
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
    seen = kept_by_blocks(config, plan, BATCH, SEQ_LEN, "cpu").of_block
    sizes = [sum(held.elements for held in block) for block in blocks_parameters(job.shape, 1)]
    kept = mean(seen[kind] for kind in kinds_of(config, sizes))
    assert kept_bytes(job, 1) == pytest.approx(kept, rel=0.02)


@pytest.mark.parametrize(
    ("model_type", "activation"),
    each(("gemma2", "olmo2", "minicpm3", "xglm"), ("none", "selective", "full")),
)
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


# of families with a table, what it does not say: dropout, which on a CPU keeps scores; ALiBi's
# masks of all heads, which blocks share; norms one after the other; an MLP with another activation
WIDE = {"hidden_size": 512, "num_attention_heads": 8}
VARIANTS = {
    "gpt2, as published": ("gpt2", {}),
    "gpt2, relu": ("gpt2", {"activation_function": "relu", "attn_pdrop": 0.0}),
    "gptj, dropout": ("gptj", {"n_embd": 512, "n_head": 8, "attn_pdrop": 0.1}),
    "gpt_neox, sequential": ("gpt_neox", {**WIDE, "use_parallel_residual": False}),
    "falcon, alibi": ("falcon", {**WIDE, "alibi": True}),
    "llama, dropout": ("llama", {**WIDE, "num_key_value_heads": 2, "attention_dropout": 0.1}),
    "nemotron": ("nemotron", {**WIDE, "num_key_value_heads": 2, "intermediate_size": 2048}),
}


@pytest.mark.parametrize(("variant", "device"), each(VARIANTS, ("cpu", "cuda")))
def test_a_family_with_a_table_keeps_more_in_variants(variant: str, device: str) -> None:
    model_type, fields = VARIANTS[variant]
    fields = {"num_hidden_layers": 4, "vocab_size": 8192} | fields
    fields |= {"bos_token_id": 0, "eos_token_id": 0}
    config, plan = transformers.AutoConfig.for_model(model_type, **fields), PLANS["none"]
    near(config, plan, device, rel=0.03)


# tp leaves their attention whole, and with it the scores that dropout keeps
@pytest.mark.parametrize("model_type", ("xglm", "roformer"))
def test_scores_that_every_tensor_rank_has(model_type: str) -> None:
    near(published(model_type), ParallelPlan(tp=2, precision="bf16"), "cuda", rel=0.03)


@pytest.mark.parametrize("activation", ("none", "selective"))
def test_logits_with_a_softcap_stand_beside_their_gradient(activation: str) -> None:
    plan = ParallelPlan(tp=2, activation=activation, precision="bf16")
    near(published("nanochat"), plan, "cuda", rel=0.03)


def test_a_row_as_long_as_its_window_has_a_mask_and_a_shorter_one_none() -> None:
    """Of Gemma 3's 4,096 tokens, which is also the longest row that what it keeps is seen in."""
    config = published("gemma3_text")
    assert model_shape(config).window == 4096
    for seq_len in (1024, 4096):
        near(config, PLANS["none"], "cuda", rel=0.02, seq_len=seq_len)


@pytest.mark.parametrize("seq_len", (126, 128, 1024))
def test_a_window_asks_for_a_mask_where_rows_are_longer(seq_len: int) -> None:
    """Of granite's 128 tokens. With it an accelerator's kernels for fewer heads of keys keep
    scores, and layers without a window do not."""
    config = published("granite_swa")
    assert model_shape(config).window == 128
    near(config, PLANS["none"], "cuda", rel=0.01, seq_len=seq_len)


def near(config: Any, plan: ParallelPlan, device: str, rel: float, seq_len: int = 512) -> None:
    """Is the planner's peak the dry run's? Eight rows on each rank."""
    said = fullest(make_job(config, plan, 8, seq_len, device=device), context_bytes=0).allocated
    on = "cpu" if device == "cpu" else "meta"
    seen = dry_run(config, plan, batch=8, seq_len=seq_len, device=on).peak_bytes
    assert said == pytest.approx(seen, rel=rel)


def test_a_family_with_a_table_is_not_run() -> None:
    for preset in ("llama2-7b", "gptj-6b", "neox-20b", "falcon-40b", "gpt3-175b"):
        shape = model_shape(load_config(preset))
        assert shape.source is None and program_of(shape, "bf16", "cuda").shared is None
    shape = model_shape(transformers.LlamaConfig())
    assert program_of(shape, "bf16", "cuda").name == "Llama in 16 bits"
    assert program_of(shape, "bf16", "cuda").kept["none"].query == 2


def test_a_way_that_fails_leaves_no_log() -> None:
    """nanochat's rotary tables are not split with its tokens, and torch logs what then fails."""
    said: list[logging.LogRecord] = []
    log = logging.getLogger("torch._subclasses.fake_tensor")
    handler = logging.Handler()
    handler.emit = said.append
    log.addHandler(handler)
    try:
        model_shape(published("nanochat"))
        make_job(published("nanochat"), PLANS["none"], BATCH, 256)
    finally:
        log.removeHandler(handler)
    assert not said and not log.disabled


def test_positions_that_begin_after_padding_are_fewer() -> None:
    config = transformers.AutoConfig.for_model("roberta")
    with pytest.raises(UserError, match="seq_len 512 is longer than the model's 510 positions"):
        make_job(config, PLANS["none"], BATCH, 512)
