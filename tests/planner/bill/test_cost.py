"""The planner's formulas against transformers, torch's FLOP counter and published runs."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.engine.errors import UserError
from helpers.planner import cost
from helpers.planner.shape.families import model_shape
from helpers.planner.shape.shape import token_flops
from helpers.planner.time.tensor_messages import tensor_traffic

transformers = pytest.importorskip("transformers")
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

gptj, gpt2, neox = transformers.GPTJConfig, transformers.GPT2Config, transformers.GPTNeoXConfig
falcon, llama = transformers.FalconConfig, transformers.LlamaConfig

SMALL_J = {"n_embd": 48, "n_layer": 3, "n_head": 4, "vocab_size": 131, "rotary_dim": 4}
SMALL_2 = {"n_embd": 48, "n_layer": 3, "n_head": 4, "vocab_size": 131, "n_positions": 40}
SMALL = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 131,
}
F40 = {
    "hidden_size": 8192,
    "num_hidden_layers": 60,
    "num_attention_heads": 128,
    "num_kv_heads": 8,
    "new_decoder_architecture": True,
}
LLAMA_70B = {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
}

CONFIGS = {
    "gptj small": gptj(**SMALL_J),
    "gptj n_inner": gptj(**SMALL_J, n_inner=100),
    "gptj tied": gptj(**SMALL_J, tie_word_embeddings=True),
    "gpt2 small": gpt2(**SMALL_2),
    "gpt2 untied": gpt2(**SMALL_2, tie_word_embeddings=False),
    "neox small": neox(**SMALL, intermediate_size=96),
    "neox no bias": neox(**SMALL, intermediate_size=96, attention_bias=False),
    "falcon multi-query": falcon(**SMALL),
    "falcon bias": falcon(**SMALL, bias=True, ffn_hidden_size=60),
    "falcon multi-head": falcon(**SMALL, multi_query=False, tie_word_embeddings=False),
    "falcon serial": falcon(**SMALL, parallel_attn=False),
    "falcon grouped": falcon(**SMALL, num_kv_heads=2, new_decoder_architecture=True),
    "falcon one norm": falcon(
        **SMALL, num_kv_heads=2, new_decoder_architecture=True, num_ln_in_parallel_attn=1
    ),
    "llama small": llama(**SMALL, intermediate_size=96),
    "llama grouped": llama(**SMALL, intermediate_size=96, num_key_value_heads=2),
    "llama bias": llama(**SMALL, intermediate_size=96, attention_bias=True, mlp_bias=True),
    "llama tied, own head_dim": llama(
        **SMALL, intermediate_size=96, head_dim=16, tie_word_embeddings=True
    ),
    "gptj-6b": gptj(),
    "gpt2": gpt2(),
    "gpt2-xl": gpt2(n_embd=1600, n_layer=48, n_head=25),
    "neox-20b": neox(),
    "falcon-7b": falcon(),
    "falcon-40b": falcon(**F40),
    "llama2-7b": llama(),
    "llama2-70b": llama(**LLAMA_70B),
}


def on_meta(config):
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, attn_implementation="eager")


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_are_transformers_own_count(name):
    model = on_meta(CONFIGS[name])
    shape = model_shape(CONFIGS[name])
    assert cost.parameters(shape) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "published"),
    [("gptj-6b", 6_050_882_784), ("gpt2", 124_439_808), ("llama2-7b", 6_738_415_616)],
)
def test_parameters_of_published_models(name, published):
    assert cost.parameters(model_shape(CONFIGS[name])) == published


@pytest.mark.parametrize(
    "name",
    [
        "gptj small",
        "gpt2 small",
        "neox small",
        "falcon multi-query",
        "falcon grouped",
        "llama grouped",
        "llama tied, own head_dim",
    ],
)
def test_forward_flops_are_torchs_own_count(name):
    config = CONFIGS[name]
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    batch, seq_len = 2, 24
    tokens = torch.zeros(batch, seq_len, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        model(input_ids=tokens, use_cache=False)
    ours = batch * seq_len * token_flops(model_shape(config), seq_len)
    assert ours == counter.get_total_flops()


def test_training_is_three_forwards_and_the_embedding():
    """6N counts the embedding table as if it were multiplied; that is all that 6N + 12LHS adds to
    three forwards, up to norms and biases."""
    shape = model_shape(CONFIGS["gptj-6b"])
    by_rule = cost.train_flops_per_token(shape, 1024)
    by_matrix = 3 * token_flops(shape, 1024)
    embedding = 6 * shape.vocab * shape.hidden
    assert by_rule - by_matrix == pytest.approx(embedding, rel=0.01)


def test_train_flops_per_token_is_the_rule():
    shape = model_shape(CONFIGS["gptj-6b"])
    scores = 12 * 28 * 4096 * 1024
    assert cost.train_flops_per_token(shape, 1024) == 6 * 6_050_882_784 + scores
    causal = cost.train_flops_per_token(shape, 1024, attention="causal")
    assert causal == 6 * 6_050_882_784 + scores / 2
    with pytest.raises(UserError, match="full"):
        cost.train_flops_per_token(shape, 1024, attention="half")


@settings(deadline=None)
@given(
    tokens_per_s=st.floats(1, 1e7),
    flops=st.floats(1e3, 1e13),
    devices=st.integers(1, 10_000),
    peak=st.floats(1e9, 1e16),
)
def test_mfu_is_between_0_and_1_or_refused(tokens_per_s, flops, devices, peak):
    try:
        utilisation = cost.mfu(tokens_per_s, flops, devices, peak)
    except UserError:
        assert tokens_per_s * flops > devices * peak
    else:
        assert 0 < utilisation <= 1


def test_mfu_of_an_unknown_device_is_none():
    assert cost.mfu(1000, 1e9, 2, None) is None


# Memory


def test_twenty_bytes_a_parameter():
    """SageMaker's rule: 10 billion parameters need at least 200 GB."""
    assert cost.state_bytes(10_000_000_000, "smp").total == 200e9
    assert cost.state_bytes(10_000_000_000, "fp32").total == 160e9


def test_zero_stages_shard_one_part_more_each():
    whole = cost.state_bytes(1000, "fp32", dp_shard=1)
    assert (whole.parameters, whole.gradients, whole.optimizer) == (4000, 4000, 8000)
    by_stage = [cost.state_bytes(1000, "fp32", dp_shard=4, zero_stage=s) for s in range(4)]
    assert by_stage[0] == whole
    assert [s.total for s in by_stage] == [16000, 10000, 7000, 4000]


def test_state_bytes_of_the_tensor_parallel_share():
    assert cost.state_bytes(1000, "fp32", tp=2) == cost.state_bytes(500, "fp32")
    # an odd count is rounded up: a rank cannot hold half a parameter
    assert cost.state_bytes(1001, "bf16", tp=2).parameters == 2 * 501


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"precision": "int3"}, "precision is one of"),
        ({"zero_stage": 4}, "zero_stage is 0, 1, 2 or 3"),
        ({"tp": 0}, "tp must be a whole number of at least 1"),
    ],
)
def test_state_bytes_refuses_nonsense(arguments, words):
    with pytest.raises(UserError, match=words):
        cost.state_bytes(1000, **arguments)


def test_real_adam_state_is_the_formula():
    model = torch.nn.Linear(30, 20)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 30)).sum().backward()
    optimizer.step()
    moments = sum(
        value.nbytes
        for state in optimizer.state.values()
        for name, value in state.items()
        if name != "step"
    )
    expected = cost.state_bytes(30 * 20 + 20, "fp32")
    assert expected.parameters == sum(p.nbytes for p in model.parameters())
    assert expected.gradients == sum(p.grad.nbytes for p in model.parameters())
    assert expected.optimizer == moments


# Tensor parallelism


@pytest.mark.parametrize(
    ("name", "tp"),
    [(name, tp) for name in CONFIGS for tp in (2, 4) if model_shape(CONFIGS[name]).heads % tp == 0],
)
def test_tensor_shares_add_up_to_the_model(name, tp):
    shape = model_shape(CONFIGS[name])
    shares = [cost.tensor_parallel_share(shape, tp, rank) for rank in range(tp)]
    total = sum(share.total for share in shares)
    assert total == cost.parameters(shape) + (tp - 1) * shares[0].replicated
    assert shares[0].total == max(share.total for share in shares)


def test_tensor_share_of_gptj_counts_what_stays_whole():
    """On every rank: the two vectors of each norm, and the bias of the MLP's second layer."""
    shape = model_shape(CONFIGS["gptj-6b"])
    share = cost.tensor_parallel_share(shape, tp=8)
    assert share.replicated == 28 * 3 * 4096 + 2 * 4096
    assert share.sharded == (cost.parameters(shape) - share.replicated) / 8
    assert cost.tensor_parallel_share(shape, tp=1).total == cost.parameters(shape)


def test_vocabulary_that_tp_does_not_divide_leaves_the_last_rank_less():
    shape = model_shape(CONFIGS["gptj small"])  # 131 rows over 4 ranks: 33, 33, 33, 32
    totals = [cost.tensor_parallel_share(shape, 4, rank).total for rank in range(4)]
    assert totals[0] == totals[2] == totals[3] + (2 * 48 + 1)
    with pytest.raises(UserError, match="rank must be 0 to 3"):
        cost.tensor_parallel_share(shape, 4, 4)


def test_parallel_residual_needs_half_the_messages():
    assert model_shape(CONFIGS["gptj-6b"]).reductions == 1
    assert model_shape(CONFIGS["llama2-7b"]).reductions == 2
    assert model_shape(neox(**SMALL, use_parallel_residual=False)).reductions == 2
    assert [
        model_shape(CONFIGS[name]).reductions for name in ("falcon serial", "falcon grouped")
    ] == [2, 1]


def test_one_rank_sends_nothing():
    shape = model_shape(CONFIGS["gptj small"])
    assert tensor_traffic(shape, 8, 16, tp=1).total == 0


def test_a_family_without_a_formula_is_counted_from_its_class():
    config = transformers.OPTConfig(num_hidden_layers=2)
    whole = sum(parameter.numel() for parameter in on_meta(config).parameters())
    assert cost.parameters(model_shape(config)) == whole


def test_what_is_no_causal_language_model_is_refused_by_name():
    with pytest.raises(UserError, match="t5 is no causal language model"):
        model_shape(transformers.T5Config())
