"""Which parameters get copies in fewer bits or more, and that tied ones share theirs."""

import torch
from torch import nn

from helpers.engine.data_parallel.owned_shards import lower_, raise_


def mixed() -> nn.ModuleDict:
    """What trains and what is frozen, of several dtypes; and two layers of one weight."""
    layers = {
        "low": nn.Linear(2, 2, bias=False, dtype=torch.bfloat16),
        "frozen": nn.Linear(2, 2, bias=False, dtype=torch.bfloat16).requires_grad_(False),
        "plain": nn.Linear(2, 2, bias=False),
        "wide": nn.Linear(2, 2, bias=False, dtype=torch.float64),
        "codes": nn.ParameterList([nn.Parameter(torch.ones(2, dtype=torch.uint8), False)]),
        "tied": nn.Linear(2, 2, bias=False, dtype=torch.bfloat16),
    }
    layers["tied"].weight = layers["low"].weight
    return nn.ModuleDict(layers)


def kinds(model: nn.ModuleDict) -> dict[str, tuple[torch.dtype, bool]]:
    found = {name: next(layer.parameters()) for name, layer in model.items()}
    return {name: (p.dtype, p.requires_grad) for name, p in found.items()}


def test_masters_are_of_what_trains_in_16_bits() -> None:
    model = mixed()
    before, weight = kinds(model), model["low"].weight.detach().clone()
    others = [model[name].weight for name in ("frozen", "plain", "wide")]
    raise_(model)
    raised = (torch.float32, True)
    assert kinds(model) == before | {"low": raised, "tied": raised}
    assert model["tied"].weight is model["low"].weight
    assert torch.equal(model["low"].weight, weight.float())
    left = [model[name].weight for name in ("frozen", "plain", "wide")]
    assert all(one is other for one, other in zip(left, others, strict=True))


def test_numbers_are_lowered_and_codes_are_not() -> None:
    model = mixed()
    before = kinds(model)
    lower_(model, torch.float16)
    lowered = {name: (torch.float16, trains) for name, (_, trains) in before.items()}
    assert kinds(model) == lowered | {"codes": before["codes"]}
    assert model["tied"].weight is model["low"].weight
