"""Rows that are padded, by their owner or to be split, against transformers' own class."""

import copy

import pytest
import torch
from torch import Tensor, nn

from helpers.engine.errors import UserError
from helpers.engine.models.objectives import CAUSAL, CLASSES, build
from helpers.engine.parallelize import parallelize
from helpers.engine.plan import ParallelPlan
from helpers.engine.trainer import Trainer
from tests.engine.models.test_batches import begun_with_padding
from tests.support import tiny
from tests.support.ranks import mesh_of, pool
from tests.support.refusals import said
from tests.support.scripts import script

small_config = script("docs/small_models").small_config
SEQUENCE = ParallelPlan(tp=2, sequence_parallel=True)
LAYOUTS = {
    "one": ParallelPlan(),
    "pp": ParallelPlan(pp=2, microbatches=2),
    "interleaved": ParallelPlan(pp=2, schedule="interleaved", microbatches=2),
    "sequence": SEQUENCE,
}
PAD, LENGTH = 1, 9


def model_of(name: str, layers: int) -> nn.Module:
    """In float64, the same on every rank."""
    task = CLASSES.task
    if name.startswith("ahead: "):
        name, task = name.removeprefix("ahead: "), CAUSAL.task
    config = small_config(name)
    text = config.get_text_config()
    text.num_hidden_layers, text.pad_token_id, config.num_labels = layers, PAD, 3
    if task == CAUSAL.task and name == "gemma3_text":
        text.use_bidirectional_attention = True
    if getattr(text, "layer_types", None):
        text.layer_types = (text.layer_types * layers)[:layers]
    torch.manual_seed(0)
    return build(config, task, torch.float64)


def batch_of(model: nn.Module) -> tuple[Tensor, Tensor, Tensor]:
    """Ids whose rows end in padding, one of them without a mask over it; labels; and the mask."""
    torch.manual_seed(1)
    ids = torch.randint(2, 60, (4, LENGTH))
    lengths = torch.tensor([LENGTH, LENGTH - 3, 4, LENGTH])
    mask = (torch.arange(LENGTH) < lengths[:, None]).long()
    ids = ids.masked_fill(mask == 0, PAD)
    ids[3, -2:] = PAD
    if type(model).__name__.endswith("SequenceClassification"):
        return ids, torch.tensor([0, 2, 1, 1]), mask
    return ids, ids.masked_fill(mask == 0, -100), mask


def both_losses(name: str, plan: ParallelPlan) -> tuple[float, float, float, float]:
    """Loss and norm of the gradient: ours, and of transformers' class in one process."""
    model = model_of(name, layers=4)
    own = copy.deepcopy(model)
    ids, labels, mask = batch_of(model)
    masked = {"attention_mask": mask} if type(model).__name__.endswith("Classification") else {}
    loss = own(input_ids=ids, labels=labels, **masked).loss
    loss.backward()
    squares = [p.grad.square().sum() for p in own.parameters() if p.grad is not None]
    mesh = mesh_of(plan)
    trainer = Trainer(parallelize(model, plan, mesh), plan, mesh, lr=tiny.LR)
    result = trainer.step(ids, labels, **masked)
    return result.loss, loss.item(), result.grad_norm, sum(squares).sqrt().item()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ("llama", "gpt2", "opt", "falcon", "qwen3", "gpt_neox"))
def test_a_causal_classifier_looks_at_the_last_token_that_is_no_padding(
    name: str, layout: str
) -> None:
    plan = LAYOUTS[layout]
    for loss, own, norm, own_norm in pool(plan.world_size).run(both_losses, name, plan):
        assert loss == pytest.approx(own, rel=1e-6)  # transformers' loss is float32
        assert norm == pytest.approx(own_norm, rel=1e-5)


def test_a_model_within_another_has_a_token_for_padding() -> None:
    [(loss, own, *_)] = pool(1).run(both_losses, "gemma3", ParallelPlan())
    assert loss == pytest.approx(own, rel=1e-6)


@pytest.mark.parametrize("name", ("bert", "roberta", "gemma3_text"))
def test_what_a_row_is_filled_up_with_is_masked_where_attention_looks_ahead(name: str) -> None:
    """Causal language models by their loss, with attention both ways."""
    for loss, own, norm, own_norm in pool(2).run(both_losses, f"ahead: {name}", SEQUENCE):
        assert loss == pytest.approx(own, rel=1e-6)
        assert norm == pytest.approx(own_norm, rel=1e-5)


def looks_ahead(name: str) -> bool:
    return parallelize(model_of(name, 2), SEQUENCE, mesh_of(SEQUENCE)).looks_ahead


@pytest.mark.parametrize(
    ("name", "ahead"), [("gemma3_text", True), ("bert", True), ("llama", False), ("gpt2", False)]
)
def test_what_looks_ahead_is_found_out(name: str, ahead: bool) -> None:
    assert pool(2).run(looks_ahead, f"ahead: {name}") == [ahead, ahead]


def all_positions(length: int) -> float:
    """The loss of a step with rows that are as long as the model has positions."""
    config, mesh = small_config("gpt2"), mesh_of(SEQUENCE)
    config.n_positions = length
    model = parallelize(build(config, CAUSAL.task, torch.float64), SEQUENCE, mesh)
    ids = torch.ones((2, length), dtype=torch.long)
    return Trainer(model, SEQUENCE, mesh, lr=tiny.LR).step(ids, ids).loss


def test_a_row_that_is_filled_up_past_the_last_position_is_refused() -> None:
    words = (
        "sequence_parallel fills rows of 15 tokens up to 16, and the model has 15 positions: give"
    )
    for line in pool(2).run(said, all_positions, 15):
        assert line == f"{words} rows of at most 14"


def test_a_row_may_have_all_positions() -> None:
    assert all(loss > 0 for loss in pool(2).run(all_positions, 16))


def called(labelled: bool) -> str:
    """What a call without a Trainer says to rows that begin with padding."""
    plan, model = ParallelPlan(), tiny.fresh("llama", torch.float32)
    model.set_attn_implementation("eager")
    model = parallelize(model, plan, mesh_of(plan))
    ids, labels, mask = begun_with_padding(labelled)
    try:
        model(input_ids=ids, labels=labels, attention_mask=mask).loss.backward()
    except UserError as error:
        return str(error)
    return ""


def test_a_call_heeds_what_padding_predicts_as_a_step_does() -> None:
    assert pool(1).run(called, False) == [""]
    [words] = pool(1).run(called, True)
    assert "would not be exact where padding before a row" in words
