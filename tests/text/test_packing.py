"""Documents that share a row: each token once, and no document knows of another."""

import copy
from itertools import combinations
from unittest.mock import patch

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from helpers.engine.admission.admitted import admitted_kind
from helpers.engine.admission.packed_rows import check_documents
from helpers.engine.errors import UserError
from helpers.engine.models import documents as packed_rows
from helpers.engine.parallelize import parallelize
from helpers.engine.pipeline import micro_batches
from helpers.engine.plan import ParallelPlan
from helpers.engine.precision.optimizer import gradient_norm
from helpers.engine.trainer import Trainer
from helpers.text import packing
from tests.support import parity, tiny
from tests.support.matrix import each
from tests.support.ranks import mesh_of, pool

lengths_and_room = st.integers(2, 40).flatmap(
    lambda room: st.tuples(st.lists(st.integers(1, room), max_size=120), st.just(room))
)


@settings(deadline=None)
@given(lengths_and_room)
def test_every_document_is_in_one_row_and_no_two_rows_could_be_one(case):
    lengths, room = case
    rows = packing.pack(lengths, room)
    assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
    filled = [sum(lengths[index] for index in row) for row in rows]
    assert all(0 < fill <= room for fill in filled)
    assert all(one + other > room for one, other in combinations(filled, 2))


def test_best_fit_leaves_little_empty():
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(5, 300, (5000,), generator=generator).tolist()
    rows = packing.pack(lengths, 512)
    assert len(rows) * 512 < 1.002 * sum(lengths) + 512


@given(st.integers(1, 500), st.integers(2, 50))
def test_a_long_document_is_cut_into_few_equal_parts(length, seq_len):
    parts = packing.cut(length, seq_len)
    assert [index for part in parts for index in part] == list(range(length))
    sizes = [len(part) for part in parts]
    assert max(sizes) <= seq_len and max(sizes) - min(sizes) <= 1
    assert len(parts) == -(-length // seq_len)


rows_of_documents = st.lists(st.integers(1, 6), min_size=1, max_size=5)


@settings(deadline=None)
@given(st.lists(rows_of_documents, min_size=1, max_size=3))
def test_positions_start_anew_and_attention_stays_inside(rows):
    width = max(sum(row) for row in rows)
    documents = torch.full((len(rows), width), packed_rows.PADDING)
    for index, row in enumerate(rows):
        numbers = [number for number, length in enumerate(row) for _ in range(length)]
        documents[index, : len(numbers)] = torch.tensor(numbers)
    positions, mask = packed_rows.positions(documents), packed_rows.attention_mask(documents)
    assert mask.shape == (len(rows), 1, width, width)
    for index, row in enumerate(documents.tolist()):
        for query, number in enumerate(row):
            own = [key for key in range(width) if row[key] == number]
            assert positions[index, query] == own.index(query)
            seen = mask[index, 0, query].nonzero().flatten().tolist()
            assert seen == [key for key in own if key <= query]


# --- a real model ----------------------------------------------------------------------------

LENGTHS = (6, 2, 8, 4)
LAYOUTS = {
    "one": ParallelPlan(dp_replicate=2),  # each rank holds the whole model
    "tp": ParallelPlan(tp=2),
    "sequence": ParallelPlan(tp=2, sequence_parallel=True),
}
MASKED = [name for name in tiny.FAMILIES if name != "falcon-alibi"]  # ALiBi takes no mask


def together_and_alone(family: str, plan: ParallelPlan) -> tuple[Tensor, list[Tensor], Tensor]:
    """Runs on each rank: logits of a packed row, of its documents alone, and of the row as one."""
    model = parallelize(tiny.fresh(family, torch.float64), plan, mesh_of(plan)).eval()
    ids = tiny.batch(0, rows=2, length=sum(LENGTHS) + 2)[0]
    numbers = [n for n, length in enumerate(LENGTHS) for _ in range(length)]
    documents = torch.tensor([*numbers, packed_rows.PADDING, packed_rows.PADDING]).expand(2, -1)
    with torch.no_grad():

        def logits(ids: Tensor, **inputs: Tensor) -> Tensor:
            found = model(input_ids=ids, use_cache=False, **inputs).logits
            return found.full_tensor() if hasattr(found, "full_tensor") else found

        packed = logits(ids, **packed_rows.model_inputs(documents))
        alone = [logits(part) for part in ids[:, : sum(LENGTHS)].split(LENGTHS, dim=1)]
        return packed[:, : sum(LENGTHS)], alone, logits(ids)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", MASKED)
def test_a_packed_document_has_the_logits_that_it_has_alone(family: str, layout: str) -> None:
    for packed, alone, unaware in pool(2).run(together_and_alone, family, LAYOUTS[layout]):
        parity.close("logits", packed, torch.cat(alone, dim=1), 1e-12)
        later = slice(LENGTHS[0], sum(LENGTHS))  # without the mask they would not
        assert (unaware[:, later] - packed[:, later]).abs().max() > 1e-3


def loss_and_gradients(family: str) -> dict[str, Tensor]:
    """Runs on each rank: a packed batch's gradients less the sum of its documents' own."""
    plan = LAYOUTS["tp"]
    model = parallelize(tiny.fresh(family, torch.float64), plan, mesh_of(plan)).eval()
    ids = tiny.batch(0, rows=1, length=sum(LENGTHS))[0]
    labels = ids.clone()
    begins = [sum(LENGTHS[:n]) for n in range(len(LENGTHS))]
    labels[:, begins] = -100
    documents = torch.tensor([[n for n, length in enumerate(LENGTHS) for _ in range(length)]])
    options = {"num_items_in_batch": 1, "checked": True}  # as a Trainer calls it
    inputs = packed_rows.model_inputs(documents)
    model(input_ids=ids, labels=labels, **inputs, **options).loss.backward()
    for part, own in zip(ids.split(LENGTHS, dim=1), labels.split(LENGTHS, dim=1)):
        loss = model(input_ids=part, labels=own, **options).loss
        (-loss).backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {n: g.to_local() if hasattr(g, "to_local") else g for n, g in gradients.items()}


@pytest.mark.parametrize("family", ("gpt2", "falcon-mqa", "neox"))
def test_a_packed_row_trains_as_its_documents_do(family: str) -> None:
    for gradients in pool(2).run(loss_and_gradients, family):
        assert max(g.abs().max() for g in gradients.values()) < 1e-11


def evaluated_first(family: str) -> tuple[float, float]:
    """Runs on a rank: the loss of packed rows before anything was checked with gradients."""
    admitted_kind.cache_clear()
    check_documents.cache_clear()
    plan, (ids, _) = ParallelPlan(), tiny.batch(0, rows=1, length=12)
    with torch.no_grad():
        model = parallelize(tiny.fresh(family, torch.float64), plan, mesh_of(plan))
    trainer = Trainer(model, plan, mesh_of(plan), lr=0)
    labels = ids.clone()
    labels[:, [0, 7]] = -100
    found = trainer.evaluate([(ids, labels, (torch.arange(12) // 7).view(1, 12))])["loss"]
    model = tiny.reference(family)
    alone = [tiny.plain_loss(model, part, part).item() for part in ids.split((7, 5), 1)]
    return found, (6 * alone[0] + 4 * alone[1]) / 10


def test_packed_rows_can_be_evaluated_before_they_are_trained() -> None:
    [(found, expected)] = pool(1).run(evaluated_first, "llama")
    assert found == pytest.approx(expected, rel=1e-9)


HIDDEN_FROM_NO_MASK = {
    "lfm2": {
        "hidden_size": 32,
        "num_key_value_heads": 2,
        "layer_types": ["conv", "full_attention"],
    },
    "mpt": {"d_model": 32},
    "mamba": {"hidden_size": 32},
    "codegen": {"n_embd": 32, "rotary_dim": 4},
}


def packed_or_refused(kind: str) -> str | tuple[float, float]:
    """Runs on a rank, once whole rows have trained: what a step of packed rows says; where none
    says anything, its loss and that of the documents each alone."""
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": 64}
    given = HIDDEN_FROM_NO_MASK[kind] | (sizes if kind != "mamba" else {"num_hidden_layers": 2})
    config = transformers.AutoConfig.for_model(kind, **given)
    plan = ParallelPlan()
    model = transformers.AutoModelForCausalLM.from_config(config).double()
    ids = torch.arange(16).view(2, 8)
    parts = ids.split((3, 5), 1)
    alone = sum((part.shape[1] - 1) * tiny.plain_loss(model, part, part).item() for part in parts)
    trainer = Trainer(parallelize(model, plan, mesh_of(plan)), plan, mesh_of(plan), lr=0)
    trainer.step(ids, ids)
    labels = ids.clone()
    labels[:, 3] = -100
    try:
        loss = trainer.step(ids, labels, (torch.arange(8) // 3).clamp(max=1).expand(2, 8)).loss
    except UserError as refused:
        return str(refused)
    return loss, alone / 6


@pytest.mark.parametrize("kind", HIDDEN_FROM_NO_MASK)
def test_a_model_whose_documents_see_each_other_is_refused(kind: str) -> None:
    """Convolutions and states pass from one to the next; some classes add a mask of truth values to
    their scores, as CodeGen's did before transformers 5.24."""
    [said] = pool(1).run(packed_or_refused, kind)
    if kind == "codegen" and not isinstance(said, str):
        assert said[0] == pytest.approx(said[1], rel=1e-9)
    else:
        assert "documents of a row see each other" in said


@pytest.mark.parametrize(
    "plan",
    (
        ParallelPlan(activation="full"),
        ParallelPlan(activation="selective"),
        pytest.param(ParallelPlan(compile=True), marks=pytest.mark.exhaustive),
    ),
    ids=("full", "selective", "compiled"),
)
@pytest.mark.parametrize("family", ("llama", "falcon-alibi"))
def test_recomputed_and_compiled_blocks_keep_documents_apart(family, plan) -> None:
    batch = tiny.batch(0, rows=2, length=18)[0]
    given = (batch, batch, (torch.arange(18) // 7).repeat(2, 1))
    [plain] = pool(1).run(packed_loss, family, ParallelPlan(), given)
    [found] = pool(1).run(packed_loss, family, plan, given)
    limit = 1e-7 if plan.compile else 1e-10  # norms of Llama's class are in float32, and fused then
    parity.close("loss and norm", found, plain, limit)


def windowed_losses() -> tuple[float, float, float]:
    """Runs on a rank: of a document of 12 tokens and one of 4, in a row, under a window of 5: the
    trainer's loss, the class's of each alone, and the class's without the window."""
    plan, config = ParallelPlan(), tiny.config("mistral")
    config.sliding_window = 5
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float64)
    ids = torch.arange(1, 17).view(1, 16)
    labels = ids.where(ids != 13, -100)

    def alone() -> float:
        return (
            sum(
                tiny.plain_loss(model, part, part).item() * (part.shape[1] - 1)
                for part in ids.split((12, 4), 1)
            )
            / 14
        )

    expected = alone()
    trainer = Trainer(
        parallelize(copy.deepcopy(model), plan, mesh_of(plan)), plan, mesh_of(plan), lr=0
    )
    found = trainer.backward(ids, labels, (torch.arange(16) // 12).view(1, 16)).item()
    model.config.sliding_window = None
    return found, expected, alone()


def test_a_window_stays_inside_its_document() -> None:
    [(found, expected, unaware)] = pool(1).run(windowed_losses)
    assert found == pytest.approx(expected, rel=1e-6)
    assert abs(unaware - expected) > 1e-4 * expected


def packed_loss(
    family: str, plan: ParallelPlan, batch: tuple[Tensor, ...], long: int = 0
) -> tuple[float, float]:
    """Runs on each rank: the trainer's loss of packed rows, and the norm of its gradient. Rows of
    `long` tokens and more have their documents taken one by one."""
    mesh = mesh_of(plan)
    trainer = Trainer(parallelize(tiny.fresh(family, torch.float64), plan, mesh), plan, mesh, lr=0)
    with patch.object(micro_batches, "LONG_ROW", long):
        loss = trainer.backward(*batch)
    norm = gradient_norm(trainer.parts, trainer.gradients(), trainer.device)
    return loss.item(), norm.item()


SHARED = {
    "pp": ParallelPlan(pp=2),
    "zero-3": ParallelPlan(dp_shard=2),
    "sequence": ParallelPlan(tp=2, sequence_parallel=True),
}


@pytest.mark.parametrize(
    ("family", "layout"),
    each((*tiny.FAMILIES, "bloom", "gemma3", "gpt-neo", "mistral"), SHARED),
)
def test_a_layout_keeps_documents_apart(family: str, layout: str) -> None:
    plan = SHARED[layout]
    ids = tiny.batch(0, rows=3, length=sum(LENGTHS) + 1)[0]
    numbers = [n % 2 for n, length in enumerate(LENGTHS) for _ in range(length)]
    documents = torch.tensor([*numbers, packed_rows.PADDING]).repeat(3, 1)
    labels = ids.clone()
    labels[:, [sum(LENGTHS[:n]) for n in range(len(LENGTHS) + 1)]] = -100
    model = tiny.reference(family)
    total, count = 0.0, int((labels[:, 1:] != -100).sum())
    for part, own in zip(ids.split((*LENGTHS, 1), 1), labels.split((*LENGTHS, 1), 1)):
        if (own[:, 1:] != -100).any():
            kept = (own[:, 1:] != -100).sum()
            loss = tiny.plain_loss(model, part, own) * kept / count
            loss.backward()
            total += loss.item()
    squares = sum(p.grad.square().sum() for p in model.parameters() if p.grad is not None)
    for long in (0, 512):
        for found in pool(2).run(packed_loss, family, plan, (ids, labels, documents), long):
            parity.close("loss and norm", found, (total, squares.sqrt().item()), 1e-10)
