"""On every rank of random layouts of random small models: states to the byte, and the fullest
moment."""

import itertools

import pytest

pytest.importorskip("transformers")
import transformers
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

from helpers.engine.errors import UserError
from helpers.engine.plan import ParallelPlan
from helpers.planner.dry_run.dry_run import dry_run
from helpers.planner.memory.peak import rank_memory
from helpers.planner.memory.states import rank_states
from helpers.planner.model.training_job import make_job

EXAMPLES, WITHIN = 10, 0.15
FAMILIES = ("llama", "neox", "falcon", "gptj", "gpt2")


def config(family, hidden, heads, kv_heads, layers, ffn, vocab, seq_len):
    widths = {"vocab_size": vocab, "hidden_size": hidden, "num_hidden_layers": layers}
    widths |= {"num_attention_heads": heads, "max_position_embeddings": seq_len}
    if family == "llama":
        return transformers.LlamaConfig(
            **widths, intermediate_size=ffn, num_key_value_heads=kv_heads
        )
    if family == "neox":
        return transformers.GPTNeoXConfig(**widths, intermediate_size=ffn)
    if family == "falcon":
        del widths["max_position_embeddings"]
        return transformers.FalconConfig(
            **widths, ffn_hidden_size=ffn, num_kv_heads=kv_heads, new_decoder_architecture=True
        )
    names = {"n_embd": hidden, "n_head": heads, "n_layer": layers, "n_inner": ffn}
    names |= {"vocab_size": vocab, "n_positions": seq_len}
    names |= {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
    names |= {"bos_token_id": 0, "eos_token_id": 0}
    if family == "gptj":
        return transformers.GPTJConfig(**names, rotary_dim=min(16, hidden // heads))
    return transformers.GPT2Config(**names)


@st.composite
def questions(draw):
    family, heads = draw(st.sampled_from(FAMILIES)), draw(st.sampled_from((4, 8)))
    kv_heads = draw(st.sampled_from([n for n in (1, 2, 4, 8) if heads % n == 0]))
    hidden = draw(st.sampled_from((64, 128, 256, 512)))
    layers, ffn = draw(st.integers(1, 8)), hidden * draw(st.sampled_from((2, 3, 4)))
    vocab, seq_len = draw(st.sampled_from((256, 8192, 32000))), draw(st.sampled_from((32, 512)))
    pp = draw(st.sampled_from([n for n in (1, 2, 4) if n <= layers]))
    tp = draw(st.sampled_from((1, 2)))
    plan = {
        "tp": tp,
        "sequence_parallel": tp > 1 and draw(st.booleans()),
        "pp": pp,
        "schedule": draw(st.sampled_from(("1f1b", "gpipe"))),
        "dp_shard": draw(st.sampled_from((1, 2, 4))),
        "zero_stage": draw(st.sampled_from((1, 2, 3))),
        "activation": draw(st.sampled_from(("none", "selective", "full"))),
        "precision": draw(st.sampled_from(("fp32", "bf16"))),
        "microbatches": draw(st.sampled_from((1, 2, 4))),
    }
    if 1 < pp < layers and draw(st.booleans()):
        first = draw(st.integers(1, layers - pp + 1))
        even = [first, *[1] * (pp - 2), layers - first - (pp - 2)]
        plan["partition"] = ",".join(map(str, even))
    model = config(family, hidden, heads, kv_heads, layers, ffn, vocab, seq_len)
    return model, ParallelPlan(**plan), seq_len, draw(st.sampled_from((1, 2, 4)))


@settings(deadline=None, max_examples=EXAMPLES, derandomize=True, phases=[Phase.generate])
@given(questions())
def test_every_rank_holds_what_the_formulas_say(question):
    """Of each pipeline rank the first of its tensor and data ranks, which hold the most, and the
    last."""
    model, plan, seq_len, rows = question
    batch = rows * plan.dp * plan.microbatches
    try:
        job = make_job(model, plan, batch, seq_len)
    except UserError:
        assume(False)
    first, last = (0, 0), (plan.tp - 1, plan.dp_shard - 1)
    for stage, (tensor, shard) in itertools.product(range(plan.pp), {first, last}):
        rank = (shard * plan.pp + stage) * plan.tp + tensor
        dry = dry_run(model, plan, rank, batch=batch, seq_len=seq_len)
        assert vars(rank_states(job, stage, tensor, shard)) == dry.states
        if (tensor, shard) == first:
            assert rank_memory(job, stage).allocated == pytest.approx(dry.peak_bytes, rel=WITHIN)
