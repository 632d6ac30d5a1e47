"""On every rank of random layouts of random small models: states to the byte, and the fullest
moment."""

import itertools
from random import Random

import pytest

pytest.importorskip("transformers")
import transformers

from helpers.engine.errors import UserError
from helpers.engine.plan import ParallelPlan
from helpers.planner.dry_run.dry_run import dry_run
from helpers.planner.memory.peak import rank_memory
from helpers.planner.memory.states import rank_states
from helpers.planner.model.training_job import make_job

QUESTIONS = 5, 1  # of each schedule, with `--exhaustive` and by default
WITHIN, SHARE, AT_MOST = 0.05, 0.95, 0.1  # of 19 ranks in 20, and of every rank
SCHEDULES = ("1f1b", "gpipe", "zero-bubble", "interleaved", "zero-bubble-v")
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


def question(random, schedule):
    """A model, a plan, the length of its rows and how many a micro-batch of a data rank has."""
    draw = random.choice
    family, heads = draw(FAMILIES), draw((4, 8))
    kv_heads = draw([n for n in (1, 2, 4, 8) if heads % n == 0])
    hidden = draw((64, 128, 256, 512))
    stages_each = 2 if schedule in SCHEDULES[3:] else 1
    layers, ffn = draw(range(2 * stages_each, 9)), hidden * draw((2, 3, 4))
    vocab, seq_len = draw((256, 8192, 32000)), draw((32, 512))
    pp, tp = draw([n for n in (1, 2, 4) if stages_each <= n <= layers // stages_each]), draw((1, 2))
    stages = stages_each * pp
    plan = {
        "tp": tp,
        "sequence_parallel": tp > 1 and draw((False, True)),
        "pp": pp,
        "schedule": schedule,
        "virtual_stages": 2 if schedule == "interleaved" else 0,
        "dp_shard": draw((1, 2, 4)),
        "zero_stage": draw((1, 2, 3)),
        "activation": draw(("none", "selective", "full", "group_2", "group_3")),
        "precision": draw(("fp32", "bf16")),
        "microbatches": pp if schedule == "interleaved" else draw((1, 2, 4)),
    }
    if pp > 1 and stages < layers and draw((False, True)):
        first = draw(range(1, layers - stages + 2))
        partition = [first, *[1] * (stages - 2), layers - first - (stages - 2)]
        plan["partition"] = ",".join(map(str, partition))
    model = config(family, hidden, heads, kv_heads, layers, ffn, vocab, seq_len)
    return model, ParallelPlan(**plan), seq_len, draw((1, 2, 4))


def test_every_rank_holds_what_the_formulas_say(request):
    """Of each pipeline rank the first of its tensor and data ranks, which hold the most, and the
    last."""
    random = Random(0)
    questions = QUESTIONS[0 if request.config.getoption("--exhaustive") else 1]
    asked = [question(random, schedule) for schedule in SCHEDULES * questions]
    errors = [error for each in asked for error in peak_errors(*each)]
    assert max(errors) < AT_MOST
    assert sum(error < WITHIN for error in errors) >= SHARE * len(errors)


def peak_errors(model, plan, seq_len, rows):
    """Of each pipeline rank, whose states must be the dry run's to the byte."""
    batch = rows * plan.dp * plan.microbatches
    try:
        job = make_job(model, plan, batch, seq_len)
    except UserError:  # the plan does not fit the model
        return
    first, last = (0, 0), (plan.tp - 1, plan.dp_shard - 1)
    for stage, (tensor, shard) in itertools.product(range(plan.pp), {first, last}):
        rank = (shard * plan.pp + stage) * plan.tp + tensor
        dry = dry_run(model, plan, rank, batch=batch, seq_len=seq_len)
        if not plan.splits_backward:  # whose gradients come after what is counted
            assert vars(rank_states(job, stage, tensor, shard)) == dry.states
        if (tensor, shard) == first:
            yield abs(rank_memory(job, stage).allocated / dry.peak_bytes - 1)
