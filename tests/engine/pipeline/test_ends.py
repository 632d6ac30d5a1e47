"""The two ends of a pipeline: the embedding, the head, and the matrix that they may share."""

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from helpers.engine.files.weights import whole_weights
from helpers.engine.parallelize import parallelize
from helpers.engine.plan import ParallelPlan
from helpers.engine.trainer import Trainer
from tests.support import tiny
from tests.support.ranks import mesh_of, pool


def frozen_embedding(plan: ParallelPlan) -> tuple[list[float], bool]:
    """Losses of three steps with a tied embedding that does not train; has it stayed as it was?"""
    model = tiny.fresh("gpt2", torch.float64)
    model.transformer.wte.weight.requires_grad_(False)
    before = model.transformer.wte.weight.detach().clone()
    model = parallelize(model, plan, mesh_of(plan))
    trainer = Trainer(model, plan, mesh_of(plan), lr=tiny.LR)
    losses = [trainer.step(*tiny.batch(step)).loss for step in range(3)]
    own = [
        p for name, p in model.named_parameters() if name.endswith(("wte.weight", "lm_head.weight"))
    ]
    return losses, all(torch.equal(p, before) for p in own)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zero-bubble"])
def test_a_tied_embedding_may_be_frozen(schedule: str) -> None:
    [(expected, _)] = pool(1).run(frozen_embedding, ParallelPlan())
    plan = ParallelPlan(pp=2, schedule=schedule, microbatches=2)
    for losses, same in pool(2).run(frozen_embedding, plan):
        assert losses == pytest.approx(expected, rel=1e-12) and same


def kept_head_gradients(plan: ParallelPlan) -> int:
    """How many tensors as large as the head the graphs of a step keep, beside the head itself."""
    model = parallelize(tiny.fresh("llama", torch.float32), plan, mesh_of(plan))
    trainer = Trainer(model, plan, mesh_of(plan), lr=tiny.LR)
    heads = [p for name, p in model.named_parameters() if name == "lm_head.weight"]
    kept = 0

    def pack(tensor: Tensor) -> Tensor:
        nonlocal kept
        kept += any(tensor.shape == h.shape and tensor.data_ptr() != h.data_ptr() for h in heads)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        trainer.step(*tiny.batch(0))
    return kept


def test_gpipe_keeps_no_gradient_of_the_head_for_each_micro_batch() -> None:
    """They would be as many heads in float32 as there are micro-batches."""
    plan = {"pp": 2, "microbatches": 8}
    assert pool(2).run(kept_head_gradients, ParallelPlan(schedule="gpipe", **plan)) == [0, 0]
    # one that ends each loss's backward before it begins the next one makes them in one pass
    assert pool(2).run(kept_head_gradients, ParallelPlan(schedule="1f1b", **plan)) == [0, 8]


# Classes whose loop asks a block for its kind, which another stage may have, and classes whose head
# is several modules beside the base model, of which the last has the embedding's own matrix.
SIZES = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 128}
SIZES |= {"intermediate_size": 64, "max_position_embeddings": 64}
MODERN = SIZES | dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 1)
HEADS = {
    "DistilBertForMaskedLM": {"dim": 32, "n_layers": 4, "n_heads": 4, "hidden_dim": 64}
    | {"vocab_size": 128, "dropout": 0.0, "attention_dropout": 0.0},
    "ElectraForCausalLM": SIZES
    | {"embedding_size": 32, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    "ModernBertForMaskedLM": MODERN | {"cls_token_id": 2, "sep_token_id": 3},
    "ModernBertDecoderForCausalLM": MODERN | {"cls_token_id": 2, "sep_token_id": 3},
}


def small(name: str) -> nn.Module:
    kind = getattr(transformers, name)
    torch.manual_seed(0)
    return kind._from_config(kind.config_class(**HEADS[name]), dtype=torch.float64).train()


def trained(name: str, plan: ParallelPlan) -> tuple[list[float], dict[str, Tensor]]:
    """Losses of three steps, and all weights after them."""
    model = parallelize(small(name), plan, mesh_of(plan))
    options: dict[str, Any] = {"weight_decay": 0.0, "clip": None, "eps": 1e-6}
    trainer = Trainer(model, plan, mesh_of(plan), lr=tiny.LR, **options)
    losses = [trainer.step(*tiny.batch(step)).loss for step in range(3)]
    return losses, {name: value.clone() for name, value in whole_weights(model)}


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved"])
@pytest.mark.parametrize("name", HEADS)
def test_a_head_of_several_modules_is_tied_over_stages(name: str, schedule: str) -> None:
    model, losses = small(name), []
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=tiny.LR, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.0
    )
    for step in range(3):
        ids, labels = tiny.batch(step)
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    stages = {"virtual_stages": 2} if schedule == "interleaved" else {}
    plan = ParallelPlan(pp=2, microbatches=2, schedule=schedule, **stages)
    limit = 1e-10 if name.startswith("Distil") else 1e-5  # the others' loss is of float32
    for found, weights in pool(2).run(trained, name, plan):
        assert found == pytest.approx(losses, rel=limit)
        for key, value in weights.items():
            torch.testing.assert_close(value, model.state_dict()[key], rtol=limit, atol=limit)
