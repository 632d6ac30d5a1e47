"""What users of transformers call on a model still works on a laid-out one, or says what does."""

import copy
from pathlib import Path

import pytest
import torch
import transformers

from helpers.engine.parallelize import parallelize
from helpers.engine.plan import ParallelPlan
from helpers.engine.trainer import Trainer
from tests.support import tiny
from tests.support.count_blocks import kept_bytes
from tests.support.parity import laid_out
from tests.support.ranks import mesh_of, pool
from tests.support.refusals import said

LAYOUTS = {
    "one": ParallelPlan(),
    "tp": ParallelPlan(tp=2),
    "sequence": ParallelPlan(tp=2, sequence_parallel=True),
    "zero-3": ParallelPlan(dp_shard=2),
    "pp": ParallelPlan(pp=2),
}
FAMILIES = ("gptj", "gpt2", "neox", "falcon-mqa", "llama")


def laid(family: str, layout: str, dtype: torch.dtype = torch.float64):
    return laid_out(family, LAYOUTS[layout], dtype)


def generated(family: str, layout: str) -> tuple[list, list]:
    ids = torch.randint(tiny.VOCAB, (2, 5), generator=torch.Generator().manual_seed(3))
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    own = tiny.fresh(family, torch.float64).eval().generate(ids, **options)
    return own.tolist(), laid(family, layout).eval().generate(ids, **options).tolist()


@pytest.mark.parametrize("layout", ("one", "tp", "sequence", "zero-3"))
@pytest.mark.parametrize("family", FAMILIES)
def test_it_generates_the_same_tokens(family: str, layout: str) -> None:
    for own, ours in pool(LAYOUTS[layout].world_size).run(generated, family, layout):
        assert own == ours


def saved(family: str, layout: str, folder: str) -> None:
    laid(family, layout, torch.float32).save_pretrained(folder)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_save_pretrained_writes_what_transformers_loads(
    family: str, layout: str, tmp_path: Path
) -> None:
    pool(LAYOUTS[layout].world_size).run(saved, family, layout, str(tmp_path / "model"))
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    for name, value in tiny.fresh(family, torch.float32).state_dict().items():
        torch.testing.assert_close(loaded.state_dict()[name], value, rtol=0, atol=0)


def kept_while_switched(family: str) -> tuple[int, int, int]:
    """What a forward keeps: as it is, recomputing, and not any more."""
    model = laid(family, "one", torch.float32).train()
    plain = kept_by(model)
    model.gradient_checkpointing_enable()
    assert model.is_gradient_checkpointing
    less = kept_by(model)
    model.gradient_checkpointing_disable()
    return plain, less, kept_by(model)


def kept_by(model: torch.nn.Module) -> int:
    ids, labels = tiny.batch(0)
    with kept_bytes(model) as kept:
        model(input_ids=ids, labels=labels)
    return sum(kept.values())


@pytest.mark.filterwarnings("ignore:.*is deprecated")
@pytest.mark.parametrize("family", FAMILIES)
def test_gradient_checkpointing_keeps_less_until_it_is_disabled(family: str) -> None:
    [(plain, less, again)] = pool(1).run(kept_while_switched, family)
    assert less < 0.7 * plain and again == plain


def recomputed_gradients(family: str) -> float:
    """The largest difference that recomputing makes."""
    model = laid(family, "one").train()
    ids, labels = tiny.batch(0)
    found = []
    for switch in (model.gradient_checkpointing_disable, model.gradient_checkpointing_enable):
        switch()
        model.zero_grad()
        model(input_ids=ids, labels=labels, use_cache=True).loss.backward()
        found.append([p.grad.clone() for p in model.parameters()])
    return max((one - other).abs().max().item() for one, other in zip(*found, strict=True))


@pytest.mark.filterwarnings("ignore:.*is deprecated")
@pytest.mark.parametrize("family", FAMILIES)
def test_gradient_checkpointing_changes_no_gradient(family: str) -> None:
    assert pool(1).run(recomputed_gradients, family)[0] < 1e-12


def loaded(family: str) -> tuple[bool, bool]:
    """Does a state dict go to transformers' class and back?"""
    own, model = tiny.fresh(family, torch.float64), laid(family, "one")
    own.load_state_dict(model.state_dict())
    there = {name: value.clone() for name, value in own.state_dict().items()}
    with torch.no_grad():
        for parameter in own.parameters():
            parameter.mul_(2)
    model.load_state_dict(own.state_dict())
    back = model.state_dict()
    plain = tiny.fresh(family, torch.float64).state_dict()
    return (
        all(torch.equal(there[name], plain[name]) for name in plain),
        all(torch.equal(back[name], value) for name, value in own.state_dict().items()),
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_state_dict_is_that_of_the_class(family: str) -> None:
    assert pool(1).run(loaded, family) == [(True, True)]


def hidden_states() -> bool:
    ids, _ = tiny.batch(0)
    own, model = tiny.fresh("llama", torch.float64), laid("llama", "one")
    ours, theirs = (one(input_ids=ids, output_hidden_states=True) for one in (model, own))
    pairs = zip(ours.hidden_states, theirs.hidden_states, strict=True)
    return all(torch.allclose(one, other) for one, other in pairs)


def test_hidden_states_come_when_asked_for() -> None:
    assert pool(1).run(hidden_states) == [True]


def hidden_states_of_parts() -> tuple[list[int], str]:
    """Their lengths under sequence parallelism, and what is said where labels are given, too."""
    model, (ids, labels) = laid("llama", "sequence"), tiny.batch(0)
    lengths = [one.shape[1] for one in model(ids, output_hidden_states=True).hidden_states]
    return lengths, said(model, ids[:, :16], labels=labels[:, :16], output_hidden_states=True)


def test_hidden_states_are_those_of_the_whole_sequence() -> None:
    for lengths, words in pool(2).run(hidden_states_of_parts):
        assert set(lengths) == {tiny.batch(0)[0].shape[1]}
        assert "output_hidden_states without labels" in words


def one_configuration() -> bool:
    """A model made of the configuration of one that was laid out is transformers' own."""
    config = tiny.config("llama")
    before = config.to_dict()
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    parallelize(model, ParallelPlan(), mesh_of(ParallelPlan()))
    assert config.to_dict() == before
    other = transformers.AutoModelForCausalLM.from_config(config)
    other.load_state_dict(model.state_dict())
    ids, labels = tiny.batch(0)
    losses = [one(input_ids=ids, labels=labels).loss for one in (model, other)]
    return torch.allclose(*losses)


def test_a_configuration_is_left_as_it_was() -> None:
    assert pool(1).run(one_configuration) == [True]


def outputs(layout: str) -> tuple[bool, ...]:
    ids, labels = tiny.batch(0)
    own = tiny.fresh("llama", torch.float64)
    model = laid("llama", layout)
    plain = model(input_ids=ids, labels=labels)
    asked = model(input_ids=ids, labels=labels, output_logits=True)
    expected = own(input_ids=ids, labels=labels)
    pair = model(input_ids=ids, labels=labels, return_dict=False)
    without = model(input_ids=ids, return_dict=False)
    mask = torch.ones_like(ids)
    mask[1:, -4:] = 0
    by_place, own_by_place = (one(ids, mask, labels=labels).loss for one in (model, own))
    return (
        plain.logits is None,
        torch.allclose(asked.logits, expected.logits),
        isinstance(pair, tuple) and abs(pair[0].item() - expected.loss.item()) < 1e-5,
        isinstance(without, tuple) and torch.allclose(without[0], expected.logits),
        abs(by_place.item() - own_by_place.item()) < 1e-5,
    )


@pytest.mark.parametrize("layout", ("one", "tp"))
def test_logits_come_beside_labels_when_asked_for_and_tuples_too(layout: str) -> None:
    assert set(pool(LAYOUTS[layout].world_size).run(outputs, layout)) == {(True,) * 5}


def refusals(layout: str) -> None:
    model = laid("gptj", layout)
    ids, labels = tiny.batch(0)
    calls = [
        ("before the model is laid out", lambda: model.resize_token_embeddings(200)),
        ("attention weights are never made", lambda: model(input_ids=ids, output_attentions=True)),
        ("takes no push_to_hub", lambda: model.save_pretrained("x", push_to_hub=True)),
        ("writes safetensors", lambda: model.save_pretrained("x", safe_serialization=False)),
    ]
    if layout == "pp":
        words = "one stage of a pipeline"
        calls = [
            (words, lambda: model(input_ids=ids, labels=labels)),
            (words, lambda: model.generate(ids, max_new_tokens=2)),
        ]
    if layout == "sequence":
        calls = [("a length that tp=2 divides", lambda: model(input_ids=ids, labels=labels))]
    for words, call in calls:
        assert words in said(call)


@pytest.mark.parametrize("layout", ("one", "tp", "sequence", "pp"))
def test_what_cannot_work_says_so_in_one_line(layout: str) -> None:
    pool(LAYOUTS[layout].world_size).run(refusals, layout)


def with_routers() -> tuple[float, float, str]:
    """What the class's loss is without and with that of the routers, and what ours says to it."""
    own, model = tiny.fresh("gpt-oss", torch.float32), laid("gpt-oss", "one", torch.float32)
    ids, labels = tiny.batch(0)
    plain, more = (
        own(input_ids=ids, labels=labels, output_router_logits=given).loss.item()
        for given in (False, True)
    )
    return plain, more, said(model, input_ids=ids, labels=labels, output_router_logits=True)


def test_a_loss_of_routers_is_refused() -> None:
    [(plain, more, words)] = pool(1).run(with_routers)
    assert more > plain + 1e-3
    assert "output_router_logits adds a loss of the routers" in words


def beside_a_copy(layout: str) -> tuple[bool, bool]:
    """What a copy computes after its model was laid out and trained: the same? and what that one
    computes?"""
    own, plan, (ids, labels) = tiny.fresh("gpt2", torch.float64), LAYOUTS[layout], tiny.batch(0)
    kept = copy.deepcopy(own)
    before = kept(input_ids=ids).logits
    model = parallelize(own, plan, mesh_of(plan))
    Trainer(model, plan, mesh_of(plan), lr=tiny.LR).step(ids, labels)
    after = kept(input_ids=ids).logits
    return torch.equal(after, before), torch.allclose(after, model(input_ids=ids).logits)


@pytest.mark.parametrize("layout", ("one", "tp", "zero-3"))
def test_a_copy_is_not_touched(layout: str) -> None:
    answers = pool(LAYOUTS[layout].world_size).run(beside_a_copy, layout)
    assert set(answers) == {(True, False)}


def turned_off() -> tuple[float, float]:
    """Two losses of a model in training whose dropout was taken out by hand, as people do."""
    config = tiny.config("gptj")
    config.attn_pdrop = 0.5
    model = transformers.AutoModelForCausalLM.from_config(config)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "attention_dropout"):  # where it is a number, from transformers 5.24 on
            module.attention_dropout = 0.0
    plan = ParallelPlan()
    model = parallelize(model, plan, mesh_of(plan)).train()
    ids, labels = tiny.batch(0)
    first, second = (model(input_ids=ids, labels=labels).loss.item() for _ in range(2))
    return first, second


def test_dropout_is_that_of_the_modules_and_not_of_the_configuration() -> None:
    [(first, second)] = pool(1).run(turned_off)
    assert first == second
