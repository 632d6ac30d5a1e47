"""Models that not every stage of ZeRO can shard, and what a forward has gathered."""

import pytest
import torch
import transformers

from helpers.engine.errors import UserError
from helpers.engine.parallelize import parallelize
from helpers.engine.plan import ParallelPlan
from helpers.engine.precision.optimizer import gradient_norm
from helpers.engine.trainer import Trainer
from tests.support import tiny
from tests.support.ranks import mesh_of, pool

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "embedding_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
MOBILE = {"intra_bottleneck_size": 16, "num_feedforward_networks": 1}
MAKE = {
    "squeezebert": lambda: transformers.SqueezeBertConfig(**SIZES),
    "mobilebert": lambda: transformers.MobileBertConfig(**SIZES, **MOBILE),
}


def stepped(model_type: str, plan: ParallelPlan) -> tuple[float, float] | str:
    """The loss and the norm of a second step, or the words of a refusal."""
    torch.manual_seed(0)
    model = transformers.AutoModelForMaskedLM.from_config(MAKE[model_type]())
    try:
        trainer = Trainer(parallelize(model, plan, mesh_of(plan)), plan, mesh_of(plan), lr=1e-2)
    except UserError as error:
        return str(error)
    ids = torch.arange(24).view(4, 6)
    trainer.step(ids, ids)
    result = trainer.step(ids, ids)
    return result.loss, result.grad_norm


@pytest.mark.parametrize("stage", (1, 2, 3))
def test_blocks_that_are_not_called_are_refused(stage: int) -> None:
    """SqueezeBERT calls their forward, and no hook would gather what they compute with."""
    for words in pool(2).run(stepped, "squeezebert", ParallelPlan(dp_shard=2, zero_stage=stage)):
        assert words.startswith("squeezebert runs its blocks past their hooks")
        assert words.endswith("take dp_replicate")


def test_a_parameter_without_elements_is_not_sharded_by_zero_3() -> None:
    """MobileBERT's, where its embedding is as wide as its hidden states."""
    for words in pool(2).run(stepped, "mobilebert", ParallelPlan(dp_shard=2)):
        assert words == (
            "cls.predictions.dense.weight has no elements, which zero_stage=3 cannot shard: take "
            "zero_stage=1 or 2"
        )


@pytest.mark.parametrize(
    "model_type, layout",
    [
        ("squeezebert", {"dp_replicate": 2}),
        ("mobilebert", {"dp_shard": 2, "zero_stage": 1}),
        ("mobilebert", {"dp_shard": 2, "zero_stage": 2}),
    ],
)
def test_what_is_said_to_work_does(model_type: str, layout: dict) -> None:
    (alone,) = pool(1).run(stepped, model_type, ParallelPlan())
    for found in pool(2).run(stepped, model_type, ParallelPlan(**layout)):
        assert found == pytest.approx(alone, rel=1e-4)


def looked_at(plan: ParallelPlan, looks: bool) -> list[float]:
    """Losses of two steps, between whose parts somebody else looks at the model's loss, or not."""
    model = parallelize(tiny.fresh("llama", torch.float64), plan, mesh_of(plan))
    ids, labels = tiny.batch(0)

    def look() -> None:
        if looks:
            with torch.no_grad():
                model(input_ids=ids, labels=labels)

    look()
    trainer = Trainer(model, plan, mesh_of(plan), lr=tiny.LR)
    losses = []
    for _ in range(2):
        losses.append(trainer.backward(ids, labels).item())
        gradients = trainer.gradients()
        look()
        trainer.update(gradients)
    return losses


def test_a_forward_without_a_backward_leaves_nothing_that_is_old() -> None:
    """fully_shard keeps what such a forward gathered last."""
    zero_3 = ParallelPlan(dp_shard=2)
    assert pool(2).run(looked_at, zero_3, True) == pool(2).run(looked_at, zero_3, False)


def norms_of_two(plan: ParallelPlan, looks: bool) -> list[float]:
    """Of a backward's gradients, taken after an evaluation or at once, and of the step after it."""
    model = parallelize(tiny.fresh("llama", torch.float64), plan, mesh_of(plan))
    trainer = Trainer(model, plan, mesh_of(plan), lr=tiny.LR)
    first, second = tiny.batch(0), tiny.batch(1)
    trainer.backward(*first)
    if looks:
        trainer.evaluate([second])
    norm = gradient_norm(trainer.parts, trainer.gradients(), trainer.device).item()
    return [norm, trainer.step(*second).grad_norm]


@pytest.mark.parametrize("plan", (ParallelPlan(dp_shard=2), ParallelPlan(cp=2)))
def test_gradients_that_are_taken_after_a_forward_are_gone(plan: ParallelPlan) -> None:
    """Of what the forward left gathered the shards kept theirs, and the next step added to them."""
    (alone,) = pool(1).run(norms_of_two, ParallelPlan(), False)
    for found in pool(2).run(norms_of_two, plan, True):
        assert found == pytest.approx(alone, rel=1e-6)
