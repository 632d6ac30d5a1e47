"""Tensor parallelism: logits are whole, and nothing that ranks share waits for the backward."""

import copy

import pytest
import torch
import transformers

from helpers.engine.parallelize import parallelize
from helpers.engine.plan import ParallelPlan
from helpers.engine.trainer import Trainer
from tests.support import parity, tiny
from tests.support.ranks import mesh_of, pool


def compare_logits(tp: int) -> None:
    plan = ParallelPlan(tp=tp)
    ids, _ = tiny.batch(0)
    expected = tiny.reference("gptj")(input_ids=ids).logits
    model = parallelize(tiny.fresh("gptj", torch.float64), plan, mesh_of(plan))
    parity.close("logits", model(input_ids=ids).logits, expected, 1e-10)


@pytest.mark.parametrize("tp", (1, 2, 4))
def test_logits_are_whole_without_labels(tp: int) -> None:
    pool(tp).run(compare_logits, tp)


def compare_embedding_gradients(padding: int) -> None:
    plan = ParallelPlan(tp=2)
    config = tiny.config("llama")
    config.pad_token_id = padding
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).double()
    plain = copy.deepcopy(model)
    ids, labels = tiny.batch(0)
    ids[:, 3] = padding
    tiny.plain_loss(plain, ids, labels).backward()
    expected = plain.model.embed_tokens.weight.grad
    assert not expected[padding].any()
    trainer = Trainer(parallelize(model, plan, mesh_of(plan)), plan, mesh_of(plan), lr=tiny.LR)
    trainer.backward(ids, labels)
    (part,) = (part for part in trainer.parts if part.name == "model.embed_tokens.weight")
    found = parity.whole(part.whole(trainer.gradients()[part.name]))
    parity.close("gradient of the embedding", found, expected, 1e-10)


@pytest.mark.parametrize("padding", (5, 70))
def test_padding_has_no_gradient_on_whichever_rank_it_is(padding: int) -> None:
    pool(2).run(compare_embedding_gradients, padding)


def waiting_copies() -> None:
    """Of the weight of queries, keys and values, whose one head of keys both ranks use."""
    config = transformers.FalconConfig(
        vocab_size=64, hidden_size=64, num_attention_heads=8, num_hidden_layers=1, num_kv_heads=1,
        ffn_hidden_size=48, new_decoder_architecture=True,
    )  # fmt: skip
    plan = ParallelPlan(tp=2)
    model = parallelize(transformers.FalconForCausalLM(config), plan, mesh_of(plan))
    ids, labels = tiny.batch(0)
    saved: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        model(input_ids=ids % 64, labels=labels % 64)
    layer = model.transformer.h[0].self_attention.query_key_value
    own = sum(rows.stop - rows.start for rows in layer.rows)
    shapes = {tuple(sorted(x.shape)) for x in saved}
    assert (layer.rows[0].stop - layer.rows[0].start, 64) in shapes
    assert (own, 64) not in shapes


def test_no_copy_of_shared_rows_waits_for_the_backward() -> None:
    pool(2).run(waiting_copies)
