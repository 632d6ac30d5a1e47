"""Random weights are transformers' own, from one seed the same on any number of threads."""

import copy

import pytest
import torch
import transformers

from helpers.engine.files.random_weights import RandomStream, draw, pieces, seed_of
from tests.support import tiny

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
