"""On every rank of random layouts of random small models: states to the byte."""

import pytest

pytest.importorskip("transformers")
import transformers
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

from helpers.engine.errors import UserError
from helpers.engine.plan import ParallelPlan
from helpers.planner.dry_run.dry_run import dry_run
from helpers.planner.memory.states import rank_states
from helpers.planner.model.training_job import make_job

SEQ_LEN = 128


def config(family, heads, kv_heads, layers):
    """Wide enough that a block is more than its smallest tensors."""
    widths = {"vocab_size": 512, "hidden_size": 512, "num_hidden_layers": layers}
    widths |= {"num_attention_heads": heads, "max_position_embeddings": SEQ_LEN}
    if family == "llama":
        return transformers.LlamaConfig(
            **widths, intermediate_size=1408, num_key_value_heads=kv_heads
        )
    if family == "neox":
        return transformers.GPTNeoXConfig(**widths, intermediate_size=2048)
    if family == "falcon":
        del widths["max_position_embeddings"]
        return transformers.FalconConfig(
            **widths, ffn_hidden_size=2048, num_kv_heads=kv_heads, new_decoder_architecture=True
        )
    names = {"n_embd": 512, "n_head": heads, "n_layer": layers, "n_inner": 2048, "vocab_size": 512}
    names |= {"n_positions": SEQ_LEN, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
    names |= {"bos_token_id": 0, "eos_token_id": 0}
    if family == "gptj":
        return transformers.GPTJConfig(**names, rotary_dim=16)
    return transformers.GPT2Config(**names)


@st.composite
def questions(draw):
    family = draw(st.sampled_from(("llama", "neox", "falcon", "gptj", "gpt2")))
    heads = draw(st.sampled_from((4, 8)))
    kv_heads = draw(st.sampled_from([n for n in (1, 2, 4, 8) if heads % n == 0]))
    pp = draw(st.sampled_from((1, 2)))
    layers = draw(st.integers(2, 5))
    first = draw(st.integers(1, layers - 1))
    plan = {
        "tp": draw(st.sampled_from((1, 2))),
        "pp": pp,
        "dp_shard": draw(st.sampled_from((1, 2))),
        "zero_stage": draw(st.sampled_from((1, 2, 3))),
        "activation": draw(st.sampled_from(("none", "selective", "full"))),
        "precision": draw(st.sampled_from(("fp32", "bf16"))),
        "microbatches": draw(st.sampled_from((2, 4))),
        "partition": f"{first},{layers - first}" if pp == 2 else "auto",
    }
    return config(family, heads, kv_heads, layers), ParallelPlan(**plan)


@settings(deadline=None, max_examples=8, derandomize=True, phases=[Phase.generate])
@given(questions())
def test_every_rank_holds_what_the_formulas_say(question):
    model, plan = question
    batch = 2 * plan.dp * plan.microbatches
    try:
        job = make_job(model, plan, batch, SEQ_LEN)
    except UserError:
        assume(False)
    for rank in range(plan.world_size):
        stage, tensor = rank // plan.tp % plan.pp, rank % plan.tp
        shard = rank // (plan.tp * plan.pp)
        dry = dry_run(model, plan, rank, batch=batch, seq_len=SEQ_LEN)
        assert vars(rank_states(job, stage, tensor, shard)) == dry.states
