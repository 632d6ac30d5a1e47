"""Any batch gives transformers' loss, or transformers' kind of error, under every layout."""

import copy
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.models.gptj.modeling_gptj import GPTJAttention

from helpers.engine.errors import NoToken, UserError
from helpers.engine.parallelize import parallelize
from helpers.engine.plan import ParallelPlan
from helpers.engine.trainer import Trainer
from tests.support import tiny
from tests.support.parity import laid_out, trainer_of
from tests.support.ranks import mesh_of, pool
from tests.support.refusals import said

LAYOUTS = {
    "one": ParallelPlan(),
    "tp": ParallelPlan(tp=2),
    "pp": ParallelPlan(pp=2),
    "zero-3": ParallelPlan(dp_shard=2),
}
FLOAT32 = 1e-6  # transformers casts logits to float32 for its loss, whatever the model's dtype
TOKENS = st.integers(-2, tiny.VOCAB + 1)
LABELS = st.one_of(st.just(-100), st.integers(-102, tiny.VOCAB + 1))


@st.composite
def batches(draw) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
    """Ids, labels and a mask of left or right padding; most are tokens, some are not."""
    rows, length = draw(st.integers(1, 4)), draw(st.integers(2, 8))
    valid = draw(st.booleans())
    tokens = st.integers(0, tiny.VOCAB - 1) if valid else TOKENS
    labels = st.one_of(st.just(-100), tokens) if valid else LABELS
    ids = [[draw(tokens) for _ in range(length)] for _ in range(rows)]
    targets = [[draw(labels) for _ in range(length)] for _ in range(rows)]
    mask = []
    for _ in range(rows):
        padding, left = draw(st.integers(0, length - 2)), draw(st.booleans())
        real = [1] * (length - padding)
        mask.append([0] * padding + real if left else real + [0] * padding)
    return ids, targets, mask


def losses(layout: str, cases: list) -> list[tuple[float | str, float | str]]:
    """Of each case, transformers' loss and ours; the kind of error where there is one."""
    plan = LAYOUTS[layout]
    found = []
    for ids, labels, mask in cases:
        given = (torch.tensor(ids), torch.tensor(labels), torch.tensor(mask))
        found.append((_own(*given, plan), _ours(*given, plan)))
    return found


def _own(ids: Tensor, labels: Tensor, mask: Tensor, plan: ParallelPlan) -> float | str:
    model = tiny.fresh("llama", torch.float64)
    try:
        masked = {} if plan.pp > 1 else {"attention_mask": mask}
        out = model(input_ids=ids, labels=labels, **masked)
        return out.loss.item()
    except Exception as error:
        return "error" if isinstance(error, IndexError | RuntimeError) else repr(error)


def _ours(ids: Tensor, labels: Tensor, mask: Tensor, plan: ParallelPlan) -> float | str:
    mesh = mesh_of(plan)
    model = laid_out("llama", plan)
    try:
        if plan.pp > 1:  # a stage has no mask but that of packed documents
            labelled = (labels[:, 1:] != -100).sum()
            loss = Trainer(model, plan, mesh, lr=1e-3).backward(ids, labels).item()
            return loss if labelled else float("nan")
        return model(input_ids=ids, labels=labels, attention_mask=mask).loss.item()
    except (NoToken, IndexError):
        return "error"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_batch_gives_transformers_loss_or_its_kind_of_error(layout: str) -> None:
    cases: list = []

    @settings(max_examples=60, deadline=None, database=None, derandomize=True)
    @given(batches())
    def collect(case) -> None:
        cases.append(case)

    collect()
    kinds = set()
    for expected, actual in pool(LAYOUTS[layout].world_size).run(losses, layout, cases)[0]:
        kinds.add(type(expected))
        if isinstance(expected, str) or isinstance(actual, str):
            assert expected == actual == "error"
        else:
            assert actual == pytest.approx(expected, rel=FLOAT32, nan_ok=True)
    assert kinds == {float, str}


@pytest.mark.parametrize(
    ("ids", "labels", "words"),
    [
        ([[3, 10**6]], [[3, 4]], "input id 1000000 at [0, 1] is no token"),
        ([[-3, 4]], [[3, 4]], "input id -3 at [0, 0]"),
        ([[3, 4]], [[3, tiny.VOCAB]], f"label {tiny.VOCAB} at [0, 1]"),
        ([[3, 4]], [[3, -1]], "label -1 at [0, 1]"),
        ([[3, 4]], [[3, 4, 5]], "of one shape"),
        ([3, 4], [3, 4], "of one shape"),
        ([[3] * 65], [[3] * 65], "longer than the model's 64 positions"),
        ([], [], "of one shape"),
    ],
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_step_refuses_what_is_no_token(layout: str, ids, labels, words) -> None:
    for told in pool(LAYOUTS[layout].world_size).run(refusal, layout, ids, labels):
        assert words in told


def refusal(layout: str, ids: list, labels: list) -> str:
    trainer = trainer_of("gptj", LAYOUTS[layout], torch.float32)
    words = said(trainer.step, *(torch.tensor(x, dtype=torch.long) for x in (ids, labels)))
    assert trainer.steps_done == 0
    return words


def shifted(plan: ParallelPlan) -> tuple[float, float]:
    ids, labels = tiny.batch(0)
    own = tiny.fresh("llama", torch.float64)
    model = parallelize(copy.deepcopy(own), plan, mesh_of(plan))
    moved = torch.nn.functional.pad(labels, (0, 1), value=-100)[:, 1:].contiguous()
    expected = own(input_ids=ids, labels=ids, shift_labels=moved).loss
    return expected.item(), model(input_ids=ids, shift_labels=moved).loss.item()


@pytest.mark.parametrize("layout", ("one", "tp"))
def test_labels_that_are_shifted_already_are_taken_as_they_are(layout: str) -> None:
    for expected, ours in pool(LAYOUTS[layout].world_size).run(shifted, LAYOUTS[layout]):
        assert ours == pytest.approx(expected, rel=FLOAT32)


def refused(build: dict, ids: Tensor, labels: Tensor, **given: Tensor) -> str:
    """Runs on each rank: what making a trainer, or a step of it, is refused by."""
    plan = ParallelPlan(**build.pop("plan", {}))

    def step() -> None:
        trainer_of("llama", plan, torch.float32, **build).step(ids, labels, **given)

    return said(step)


IDS = torch.arange(16).view(2, 8)
MISTAKES = {
    "no optimizer 'sgd'": ({"optimizer": "sgd"}, IDS, IDS, {}),
    "lr 'x' and": ({"lr": "x"}, IDS, IDS, {}),
    "lr True and": ({"lr": True}, IDS, IDS, {}),
    "clip must be a number above 0, not True": ({"clip": True}, IDS, IDS, {}),
    "give two numbers": ({"betas": (0.9,)}, IDS, IDS, {}),
    "whole numbers of steps": ({"warmup_steps": -5}, IDS, IDS, {}),
    "give total_steps": ({"lr_schedule": "linear"}, IDS, IDS, {}),
    "no schedule []": ({"lr_schedule": []}, IDS, IDS, {}),
    "seed must be a whole number of 64 bits, not 'x'": ({"seed": "x"}, IDS, IDS, {}),
    "whole number of 64 bits, not 1.5": ({"seed": 1.5}, IDS, IDS, {}),
    "whole number of 64 bits, not nan": ({"seed": float("nan")}, IDS, IDS, {}),
    "whole number of 64 bits, not 9": ({"seed": 10**30 - 1}, IDS, IDS, {}),
    "ids must be": ({}, IDS.float(), IDS, {}),
    "ids must be a tensor": ({}, None, None, {}),
    "ids must be a tensor of whole": ({}, IDS.tolist(), IDS, {}),
    "labels must be a tensor": ({}, IDS, None, {}),
    "attention_mask must be a tensor": ({}, IDS, IDS, {"attention_mask": IDS.tolist()}),
    "labels must be": ({}, IDS, IDS > 3, {}),
    "documents must be": ({}, IDS, IDS, {"documents": IDS.float()}),
    "documents are [1, 8]": ({}, IDS, IDS, {"documents": IDS[:1]}),
    "document -1, predicts a label": ({}, IDS, IDS, {"documents": IDS % 8 // 6 * -1}),
    "padding of packed rows": (
        {},
        IDS,
        IDS.where(IDS % 8 > 1, -100),  # of padding itself there is none
        {"documents": (IDS % 8 < 2) * -1},
    ),
    "attention_mask must be zeros": ({}, IDS, IDS, {"attention_mask": (IDS > 3) * -1e9}),
    "token_type_ids must be a tensor of whole": ({}, IDS, IDS, {"token_type_ids": IDS > 3}),
    "LlamaForCausalLM has no types of tokens": ({}, IDS, IDS, {"token_type_ids": IDS * 0}),
    "leave attention_mask out": ({}, IDS, IDS, {"documents": IDS * 0, "attention_mask": IDS}),
}


@pytest.mark.parametrize("words", MISTAKES)
def test_what_would_be_taken_for_something_else_is_refused(words: str) -> None:
    *given, masks = MISTAKES[words]
    [told] = pool(1).run(partial(refused, **masks), *given)
    assert words in told


def test_a_hook_that_would_sum_nothing_is_refused() -> None:
    build = {"plan": {"dp_shard": 2}, "hook": print}
    assert all("a communication hook" in one for one in pool(2).run(refused, build, IDS, IDS))


def begun_with_padding(labelled: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, labels and mask of rows that begin with padding; has their first token a label?"""
    ids, _ = tiny.batch(0)
    mask = torch.ones_like(ids)
    mask[1:, :3] = 0
    labels = ids.where(mask == 1, -100)
    labels[1:, 3] = ids[1:, 3] if labelled else -100
    return ids, labels, mask


def left_padded(
    family: str, labelled: bool, plan: ParallelPlan, attention: str = "sdpa"
) -> tuple[float, float] | str:
    """Loss and norm of rows that begin with padding, and of transformers; or a refusal's words."""

    def fresh() -> torch.nn.Module:
        model = tiny.fresh(family, torch.float32)
        if attention != model.config._attn_implementation:
            model.set_attn_implementation(attention)
        return model

    ids, labels, mask = begun_with_padding(labelled)
    own = fresh()
    loss = own(input_ids=ids, labels=labels, attention_mask=mask).loss
    loss.backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in own.parameters() if p.grad is not None])
    model = parallelize(fresh(), plan, mesh_of(plan))
    try:
        result = Trainer(model, plan, mesh_of(plan), lr=1e-3).step(ids, labels, attention_mask=mask)
    except UserError as error:
        return str(error)
    assert (result.loss, result.grad_norm) == pytest.approx((loss.item(), norm.item()), rel=1e-4)
    return result.loss, result.grad_norm


@pytest.mark.parametrize("family", ("gptj", "falcon-alibi", "gpt2", "llama"))
@pytest.mark.parametrize("layout", ("one", "zero-3"))
def test_padding_predicts_as_in_the_class_or_not_at_all(family: str, layout: str) -> None:
    """Before a row it sees nothing, of which each class makes something else."""
    plan = LAYOUTS[layout]
    for labelled in (False, True):
        for found in pool(plan.world_size).run(left_padded, family, labelled, plan):
            refused = labelled and family == "gptj" and hasattr(GPTJAttention, "_attn")
            assert isinstance(found, str) == refused, found
            assert not refused or "would not be exact where padding before a row" in found


def test_padding_sees_what_the_given_attention_shows_it() -> None:
    """The formula gives a token that sees none the mean of all, a kernel of torch another thing."""
    plan = ParallelPlan()
    for attention in ("sdpa", "eager", "sdpa"):  # of one configuration: none passes for the other
        for labelled in (False, True):
            [found] = pool(1).run(left_padded, "llama", labelled, plan, attention)
            assert isinstance(found, str) == (labelled and attention == "eager"), found


def few_bits(family: str, plan: ParallelPlan) -> set[float]:
    """Losses of one batch, whose whole numbers have so many bits; 156 is -100 in eight of them."""
    model = tiny.fresh(family, torch.float64)
    model.resize_token_embeddings(160, mean_resizing=False)
    with torch.no_grad():  # the same on every rank, which drew the new rows
        model.get_input_embeddings().weight[tiny.VOCAB :] = 0.1
    ids, labels, inputs = tiny.masked_batch(family, 0)
    labels = labels.where(labels != -100, 156 if labels.dim() == 2 else 0)
    model = parallelize(model, plan, mesh_of(plan))
    found = set()
    for dtype in (torch.int64, torch.int32, torch.int16, torch.uint8):
        trainer = Trainer(model, plan, mesh_of(plan), lr=1e-3)
        found.add(trainer.backward(ids.to(dtype), labels.to(dtype), **inputs).item())
        trainer.gradients()
    return found


@pytest.mark.parametrize("family", ("llama", "bert-mlm", "bert-classes"))
@pytest.mark.parametrize("layout", ("one", "tp"))
def test_whole_numbers_may_have_few_bits(family: str, layout: str) -> None:
    for found in pool(LAYOUTS[layout].world_size).run(few_bits, family, LAYOUTS[layout]):
        assert len(found) == 1


def unknown_type(plan: ParallelPlan) -> str:
    trainer = trainer_of("bert-mlm", plan, torch.float32)
    with pytest.raises(NoToken) as raised:
        trainer.step(IDS, IDS, token_type_ids=IDS * 0 + 2)
    return str(raised.value)


def test_a_type_of_tokens_that_is_none_stops_all_stages() -> None:
    """One rank alone has the table of types: the others waited for it."""
    for words in pool(2).run(unknown_type, LAYOUTS["pp"]):
        assert words == "token type 2 at [0, 0] is no type: the model has 0 to 1"
