"""What goes wrong with encoders over ranks, one named test each; parity is test_parity.py's."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
import transformers
from torch import Tensor

from helpers.engine.errors import NoToken
from helpers.engine.files.weights import save_model
from helpers.engine.models.objectives import CAUSAL, CLASSES, MASKED, build, objective_of
from helpers.engine.parallelize import load_model, parallelize
from helpers.engine.pipeline import micro_batches
from helpers.engine.plan import ParallelPlan
from helpers.engine.tensor.shards import local
from helpers.engine.trainer import Trainer
from tests.support import parity, tiny
from tests.support.parity import laid_out, trainer_of
from tests.support.ranks import mesh_of, pool
from tests.support.refusals import said

LAYOUTS = {
    "one": ParallelPlan(),
    "tp": ParallelPlan(tp=2),
    "sequence": ParallelPlan(tp=2, sequence_parallel=True),
    "pp": ParallelPlan(pp=2, microbatches=2),
    "zero-3": ParallelPlan(dp_shard=2),
}


def padded(family: str, fill: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """A batch whose padding, in the middle and at the end, holds this id and has no labels."""
    ids, labels, inputs = tiny.masked_batch(family, 0)
    hidden = inputs["attention_mask"] == 0
    labels = labels if labels.dim() == 1 else labels.masked_fill(hidden, -100)
    return ids.masked_fill(hidden, fill), labels, inputs


# Padding and positions


def losses_of(family: str, plan: ParallelPlan, fills: list[int]) -> list[float]:
    trainer = trainer_of(family, plan)
    found = []
    for fill in fills:
        ids, labels, inputs = padded(family, fill)
        found.append(trainer.backward(ids, labels, **inputs).item())
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", ("bert-mlm", "bert-classes"))
def test_no_token_sees_padding_wherever_it_stands(family: str, layout: str) -> None:
    plan = LAYOUTS[layout]
    for first, other in pool(plan.world_size).run(losses_of, family, plan, [3, 77]):
        assert first == pytest.approx(other, rel=1e-12)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_roberta_counts_positions_beside_its_padding(layout: str) -> None:
    """Its class tells padding by the token, and gives what follows the position after it."""
    plan, model = LAYOUTS[layout], tiny.reference("roberta-mlm")
    pad = model.config.pad_token_id
    ids, labels, inputs = padded("roberta-mlm", pad)
    expected = tiny.plain_loss(model, ids, labels, **inputs).item()
    positions = torch.arange(ids.shape[1]).expand_as(ids) + pad + 1
    counted = tiny.plain_loss(model, ids, labels, **inputs, position_ids=positions).item()
    assert abs(counted - expected) > 1e-4, "positions that count padding are others"
    for (found,) in pool(plan.world_size).run(losses_of, "roberta-mlm", plan, [pad]):
        assert found == pytest.approx(expected, rel=1e-10)


def without_the_mask() -> tuple[float, float]:
    """The loss of rows that tp does not divide, and if what they are filled up with were seen."""
    plan = LAYOUTS["sequence"]
    ids, labels, _ = tiny.masked_batch("bert-mlm", 0)
    right = trainer_of("bert-mlm", plan).backward(ids, labels).item()
    filled_up = micro_batches._padded

    def unmasked(*batch: Any) -> micro_batches.MicroBatch:
        return filled_up(*batch)._replace(attention_mask=None)

    with patch.object(micro_batches, "_padded", unmasked):
        wrong = trainer_of("bert-mlm", plan).backward(ids, labels).item()
    return right, wrong


def test_what_rows_are_filled_up_with_is_masked() -> None:
    ids, labels, _ = tiny.masked_batch("bert-mlm", 0)
    assert ids.shape[1] % 2
    expected = tiny.plain_loss(tiny.reference("bert-mlm"), ids, labels).item()
    for right, wrong in pool(2).run(without_the_mask):
        assert right == pytest.approx(expected, rel=1e-10)
        assert abs(wrong - expected) > 1e-5


def typed(plan: ParallelPlan) -> tuple[float, float]:
    ids, labels, inputs = tiny.masked_batch("bert-mlm", 0)
    trainer = trainer_of("bert-mlm", plan)
    with_types = trainer.backward(ids, labels, **inputs).item()
    inputs.pop("token_type_ids")
    return with_types, trainer.backward(ids, labels, **inputs).item()


@pytest.mark.parametrize("layout", ("tp", "pp"))
def test_types_of_tokens_reach_the_first_stage(layout: str) -> None:
    expected = tiny.truth("bert-mlm", torch.float64)["losses"][0]
    for with_types, without in pool(2).run(typed, LAYOUTS[layout]):
        assert with_types == pytest.approx(expected, rel=1e-10)
        assert abs(without - expected) > 1e-4


# Heads


def decoder_bias(layout: str) -> None:
    """One parameter under two names, of which each rank has its words."""
    model = trainer_of("bert-mlm", LAYOUTS[layout]).model
    predictions = model.cls.predictions
    assert predictions.bias is predictions.decoder.bias
    assert len(local(predictions.bias)) == -(-tiny.VOCAB // 2) - dist.get_rank()
    assert predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight
    names = [name for name, _ in model.named_parameters() if "predictions.bias" in name]
    assert names == ["cls.predictions.bias"]


def test_the_decoders_bias_stays_one_parameter() -> None:
    pool(2).run(decoder_bias, "tp")


def pooler_of(family: str) -> list[str]:
    trainer = trainer_of(family, LAYOUTS["pp"])
    names = [part.name for part in trainer.parts]
    return [name for name in names if "pooler" in name or name.startswith("classifier")]


@pytest.mark.parametrize("family", ("bert-classes", "roberta-classes"))
def test_the_last_stage_alone_has_what_classifies(family: str) -> None:
    first, last = pool(2).run(pooler_of, family)
    assert not first and len(last) == 4  # two layers, each a matrix and a bias


def head_gradients(family: str, plan: ParallelPlan) -> None:
    """What every rank of tp does alike has the whole gradient on each, and not tp times it."""
    trainer = trainer_of(family, plan)
    ids, labels, inputs = tiny.masked_batch(family, 0)
    trainer.backward(ids, labels, **inputs)
    truth, found = tiny.truth(family, torch.float64)["gradients"], trainer.gradients()
    after = [n for n in found if any(part in n for part in ("pooler", "classifier", "transform"))]
    assert after and not set(after) & trainer.model.partial_gradients
    for name in after:
        parity.close(name, found[name], truth[name], 1e-10)


@pytest.mark.parametrize("layout", ("tp", "sequence"))
@pytest.mark.parametrize("family", ("bert-mlm", "bert-classes"))
def test_a_head_behind_the_blocks_is_not_summed_over_tp(family: str, layout: str) -> None:
    pool(2).run(head_gradients, family, LAYOUTS[layout])


def no_block_on_the_last(family: str) -> str:
    plan = ParallelPlan(pp=2, partition="2,0")
    return said(laid_out, family, plan, torch.float32, check=False)


def test_the_last_stage_needs_a_block_where_no_norm_ends_the_model() -> None:
    for words in pool(2).run(no_block_on_the_last, "bert-mlm"):
        assert "its last stage needs a block" in words


@pytest.mark.parametrize(
    ("name", "objective"),
    (
        ("BertForMaskedLM", MASKED),
        ("RobertaForSequenceClassification", CLASSES),
        ("GPT2ForSequenceClassification", CLASSES),
        ("BertLMHeadModel", CAUSAL),
        ("LlamaForCausalLM", CAUSAL),
    ),
)
def test_a_class_says_what_its_head_is_for(name: str, objective) -> None:
    made = getattr(transformers, name)
    own = type("Ours", (made,), {})  # a class of one's own is for what its parent is for
    for kind in (made, own):
        assert objective_of(object.__new__(kind)) is objective


def test_a_head_for_a_task_that_does_not_exist() -> None:
    for task in ("ner", []):
        words = said(build, tiny.config("bert-mlm"), task)
        assert words.startswith(f"no task {task!r} has a head; there is lm, mlm, classify")


# Batches


def refusals(family: str) -> Iterator[str]:
    trainer = trainer_of(family, ParallelPlan(), torch.float32)
    ids, labels, _ = tiny.masked_batch(family, 0)
    calls = {
        "shape": lambda: trainer.step(ids, ids[:, 0] if labels.dim() == 2 else ids),
        "packed": lambda: trainer.step(ids, labels, torch.zeros_like(ids)),
        "mask": lambda: trainer.step(ids, labels, attention_mask=torch.ones(2, 3)),
    }
    for call in calls.values():
        yield said(call)
    if labels.dim() == 1:
        with pytest.raises(NoToken) as raised:
            trainer.step(ids, labels + 1)
        yield str(raised.value)


def refused(family: str) -> list[str]:
    return list(refusals(family))


def test_a_batch_that_does_not_fit_is_refused_in_one_line() -> None:
    shape, packed, mask, label = pool(1).run(refused, "bert-classes")[0]
    assert "ids [batch, seq] and labels [batch], not [8, 17] and [8, 17]" in shape
    assert "packed for causal language models alone" in packed and "attention_mask is" in mask
    assert "is no class: the model has 0 to 2" in label
    assert "labels [batch, seq] of one shape" in pool(1).run(refused, "bert-mlm")[0][0]


def scores(plan: ParallelPlan) -> dict:
    trainer = trainer_of("bert-classes", plan)
    batches = []
    for step in range(2):
        ids, labels, inputs = tiny.masked_batch("bert-classes", step)
        masks = inputs["attention_mask"], inputs["token_type_ids"]
        batches.append((ids, labels, None, *masks))
    return trainer.evaluate(batches)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_accuracy_is_over_rows(layout: str) -> None:
    model, right, loss = tiny.reference("bert-classes"), 0, 0.0
    for step in range(2):
        ids, labels, inputs = tiny.masked_batch("bert-classes", step)
        right += int((model(input_ids=ids, **inputs).logits.argmax(1) == labels).sum())
        loss += 8 * tiny.plain_loss(model, ids, labels, **inputs).item()
    for found in pool(LAYOUTS[layout].world_size).run(scores, LAYOUTS[layout]):
        assert found["rows"] == 16 and found["accuracy"] == right / 16
        assert found["loss"] == pytest.approx(loss / 16, rel=1e-9)


# Files


def written(plan: ParallelPlan, family: str, folder: Path) -> None:
    save_model(trainer_of(family, plan, torch.float32).model, folder)


@pytest.mark.parametrize("layout", ("tp", "pp", "zero-3"))
@pytest.mark.parametrize("family", ("bert-mlm", "roberta-classes"))
def test_transformers_loads_what_is_written(family: str, layout: str, tmp_path: Path) -> None:
    pool(2).run(written, LAYOUTS[layout], family, tmp_path)
    loaded, report = tiny.auto_class(family).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()) and loaded.config.architectures == [type(loaded).__name__]
    expected = tiny.fresh(family, torch.float32).state_dict()
    for name, value in loaded.state_dict().items():
        assert torch.equal(value, expected[name]), name


def fresh_heads(folder: Path, plan: ParallelPlan) -> dict[str, Tensor]:
    """A classifier that begins from a masked model's files: whole parameters of this rank."""
    config = copy.deepcopy(transformers.AutoConfig.from_pretrained(folder))
    config.num_labels = 3
    model = load_model(folder, plan, mesh_of(plan), config=config, task="classify-head")
    assert type(model).__name__.endswith("BertForSequenceClassification")
    return {name: parity.whole(p.detach()) for name, p in model.named_parameters()}


def test_a_new_head_is_drawn_alike_in_every_layout_and_the_rest_is_read(tmp_path: Path) -> None:
    body = tiny.fresh("bert-mlm", torch.float32)
    body.save_pretrained(tmp_path)
    first = pool(1).run(fresh_heads, tmp_path, ParallelPlan())[0]
    stored = body.state_dict()
    assert {name for name in first if name not in stored} == {
        f"{module}.{leaf}"
        for module in ("bert.pooler.dense", "classifier")
        for leaf in ("weight", "bias")
    }
    assert all(torch.equal(first[name], stored[name]) for name in first if name in stored)
    assert first["classifier.weight"].std() > 0.01
    for layout in ("tp", "pp", "zero-3"):
        ranks = pool(2).run(fresh_heads, tmp_path, LAYOUTS[layout])
        found = ranks[0] | ranks[1]
        assert found.keys() == first.keys()
        assert all(torch.equal(found[name], first[name]) for name in first), layout


def what_the_files_name(folder: Path) -> str:
    return type(load_model(folder, ParallelPlan(), mesh_of(ParallelPlan()))).__name__


def test_a_folder_says_itself_what_its_head_is_for(tmp_path: Path) -> None:
    tiny.fresh("roberta-classes", torch.float32).save_pretrained(tmp_path)
    assert pool(1).run(what_the_files_name, tmp_path) == ["RobertaForSequenceClassification"]


# Precision, dropout


def low(family: str, plan: ParallelPlan) -> tuple[list[float], list[float]]:
    found = []
    for one in (plan, ParallelPlan(**plan.to_dict() | {"precision": "fp32"})):
        trainer = trainer_of(family, one, torch.float32)
        losses = []
        for step in range(3):
            ids, labels, inputs = tiny.masked_batch(family, step)
            losses.append(trainer.step(ids, labels, **inputs).loss)
        found.append(losses)
    return found[0], found[1]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bf16_follows_fp32(layout: str) -> None:
    plan = ParallelPlan(**LAYOUTS[layout].to_dict() | {"precision": "bf16"})
    for ours, theirs in pool(plan.world_size).run(low, "bert-classes", plan):
        assert ours == pytest.approx(theirs, rel=0.02)


def dropped(plan: ParallelPlan) -> float:
    """The first loss where everything that can drop out does."""
    config = tiny.config("bert-mlm")
    config.hidden_dropout_prob = 0.2
    torch.manual_seed(0)
    model = transformers.BertForMaskedLM(config).double()
    trainer = Trainer(parallelize(model, plan, mesh_of(plan)), plan, mesh_of(plan), lr=1e-3, seed=5)
    ids, labels, inputs = tiny.masked_batch("bert-mlm", 0)
    return trainer.backward(ids, labels, **inputs).item()


def test_dropout_outside_of_what_tp_splits_is_that_of_one_process() -> None:
    one = pool(1).run(dropped, ParallelPlan())[0]
    assert pool(2).run(dropped, ParallelPlan(tp=2)) == [pytest.approx(one, rel=1e-12)] * 2
    apart, also = pool(2).run(dropped, ParallelPlan(tp=2, sequence_parallel=True))
    assert apart == also != pytest.approx(one, rel=1e-6)
