"""Random weights are transformers' own, from one seed the same on any number of threads."""

import copy
from pathlib import Path

import pytest
import torch
import transformers

from helpers.engine.adapters.qlora import Adapting, load_adapted
from helpers.engine.files.random_weights import RandomStream, draw, pieces, seed_of
from helpers.engine.files.weights import whole_buffers, whole_weights
from helpers.engine.parallelize import load_model
from helpers.engine.plan import ParallelPlan
from helpers.engine.trainer import Trainer
from tests.support import tiny
from tests.support.matrix import part
from tests.support.ranks import mesh_of, pool
from tests.support.scripts import script

small_model = script("docs/small_models").small_model
FAMILIES = (*tiny.FAMILIES, *tiny.PUBLISHED)


def blank(family: str) -> torch.nn.Module:
    return transformers.AutoModelForCausalLM.from_config(tiny.config(family, layers=4))


def drawn(family: str, seed: int, threads: int) -> dict[str, torch.Tensor]:
    model, before = blank(family), torch.get_num_threads()
    state = torch.get_rng_state()
    torch.set_num_threads(threads)
    try:
        draw(model, seed)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(torch.get_rng_state(), state)  # the process's own numbers go on
    return model.state_dict()


def one_stream_after_another(family: str, seed: int) -> dict[str, torch.Tensor]:
    """Each piece by torch's own stream of its seed, in one thread."""
    model = blank(family)
    model.apply(lambda module: setattr(module, "_is_hf_initialized", False))
    drawn: set[int] = set()
    with torch.no_grad():
        for name, piece in pieces(model, model.base_model):
            fresh = copy.deepcopy(piece)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed_of(seed, name))
                fresh.apply(model._init_weights)
            for parameter, value in zip(piece.parameters(), fresh.parameters(), strict=True):
                if id(parameter) not in drawn:  # of tied ones the first piece counts
                    parameter.copy_(value)
                drawn.add(id(parameter))
    return model.state_dict()


@pytest.mark.parametrize("family", FAMILIES)
def test_any_number_of_threads_draws_the_same(family: str) -> None:
    one, four = (drawn(family, 7, threads) for threads in (1, 4))
    expected = one_stream_after_another(family, 7)
    assert one.keys() == four.keys() == expected.keys()
    for name in one:
        assert torch.equal(one[name], four[name]), name
        assert torch.equal(one[name], expected[name]), name


def test_no_two_blocks_are_drawn_alike() -> None:
    weights = drawn("llama", 7, 1)
    first, *others = (weights[f"model.layers.{n}.mlp.up_proj.weight"] for n in range(4))
    assert not any(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("model_type", ("gpt_bigcode", "ctrl", "got_ocr2"))
def test_what_stands_beside_the_pieces_leaves_them_alone(model_type: str) -> None:
    """Buffers and parameters of modules that the pieces are in, drawn by several threads."""
    model, before = small_model(model_type).float(), torch.get_num_threads()
    states = []
    try:
        for threads in (1, 4, 4, 4):
            torch.set_num_threads(threads)
            draw(model, 7)
            states.append({name: value.clone() for name, value in model.state_dict().items()})
    finally:
        torch.set_num_threads(before)
    for state in states[1:]:
        assert all(torch.equal(state[name], value) for name, value in states[0].items())


def loaded(source: Path, plan: ParallelPlan, scratch: bool, bits: str | None) -> tuple[float, dict]:
    """The loss of a step, and what the model began with."""
    mesh, given = mesh_of(plan), {"from_scratch": scratch, "seed": 3}
    if bits:
        model, values = load_adapted(source, plan, mesh, Adapting(quantize=bits), **given), {}
    else:
        model = load_model(source, plan, mesh, **given)
        held = (*whole_weights(model), *whole_buffers(model))
        values = {name: value.clone() for name, value in held}
    ids = torch.randint(30, (4, 12), generator=torch.Generator().manual_seed(0))
    return Trainer(model, plan, mesh, lr=tiny.LR).step(ids, ids).loss, values


@pytest.mark.parametrize(
    ("scratch", "bits"),
    part([(True, None), (False, "nf4")], [(False, None), (True, "nf4")]),
)
def test_rules_that_ask_for_what_another_stage_has(
    scratch: bool, bits: str | None, tmp_path: Path
) -> None:
    """Of Gemma 3's tower for images the embeddings set those of the positions below."""
    if bits:
        pytest.importorskip("bitsandbytes")
        pytest.importorskip("peft")
    model = small_model("gemma3").float()
    model.config.dtype = torch.float32
    model.save_pretrained(tmp_path)
    [(loss, values)] = pool(1).run(loaded, tmp_path, ParallelPlan(), scratch, bits)
    for ours, found in pool(2).run(loaded, tmp_path, ParallelPlan(pp=2), scratch, bits):
        assert ours == pytest.approx(loss, rel=1e-6)
        assert found.keys() == values.keys()
        assert all(torch.equal(found[name], value) for name, value in values.items())


def test_every_kind_of_random_number_is_of_the_stream() -> None:
    """Each operation of torch that draws and that an initialisation may use."""
    kinds = (
        lambda: torch.empty(99).normal_(1.0, 2.0),
        lambda: torch.empty(99).uniform_(),
        lambda: torch.nn.init.trunc_normal_(torch.empty(99)),
        lambda: torch.nn.init.kaiming_uniform_(torch.empty(9, 11)),
        lambda: torch.nn.init.orthogonal_(torch.empty(9, 11)),
        lambda: torch.rand(99),
        lambda: torch.randn(99),
        lambda: torch.randint(100, (99,)),
        lambda: torch.randint(7, 100, (99,)),
        lambda: torch.randperm(99),
        lambda: torch.empty(99).exponential_(),
        lambda: torch.bernoulli(torch.full((99,), 0.5)),
        lambda: torch.normal(torch.zeros(99), torch.ones(99)),
    )
    state = torch.get_rng_state()
    for kind in kinds:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            expected = kind(), kind()
        with RandomStream(5):
            found = kind(), kind()
        assert all(map(torch.equal, found, expected))
    assert torch.equal(torch.get_rng_state(), state)
