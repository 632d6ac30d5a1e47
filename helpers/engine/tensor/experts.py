"""Experts over the tensor axis: of every expert each rank has a part of its width.

    gate_up_proj  [experts, 2, width/tp, hidden]    split by output, within gate and up
    down_proj     [experts, hidden, width/tp]       split by input: partial sums

    tokens, their experts and weights --enter--> the class's own forward --leave--> sums

A product by groups wants rows of whole multiples of 16 bytes. Where a rank's part of the width is
none, zeros follow it for as long as it computes, and columns of zeros in down_proj make nothing of
what becomes of them.

The router stays outside, so every rank sends each token to the same experts, and has as much work
as any other however uneven the experts' shares of the tokens are.

Source: Shoeybi et al. 2019, Megatron-LM, section 3, for each expert's MLP.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from ..models.block_rules import expert_cuts
from .boundary import Boundary
from .collectives import share
from .in_parts import fold
from .layers import bind
from .shards import local

ROW_BYTES = 16  # of which torch's grouped_mm wants multiples


class OfRank:
    """A module whose parameters are a rank's part of them; all else is its own."""

    def __init__(self, module: nn.Module, parameters: dict[str, Tensor]) -> None:
        self.module, self.parameters = module, parameters

    def __getattr__(self, name: str) -> Any:
        return self.parameters[name] if name in self.parameters else getattr(self.module, name)


def split_experts(model: nn.Module, experts: nn.Module, boundary: Boundary, path: str) -> None:
    """Split the matrices of a module that holds all experts', and let its work cross the boundary.
    Their width must have a part of one size for each rank, see check_tensor_degree."""
    dims, experts.cuts = {}, expert_cuts(experts)
    for name, (dim, parts) in experts.cuts.items():
        if dim is None:
            continue
        if parts > 1:
            fold(model, experts, path, name, dim, parts)
        dims[name] = dim + (parts > 1)
    bind(experts, experts_over_ranks, boundary, **dims)


def shapes_of_whole(model: nn.Module) -> dict[str, torch.Size]:
    """The shapes in which tp splits those parameters of experts that are whole here, by name:
    checkpoints hold them so under every plan, whatever of the model it splits."""
    return {
        f"{path}.{name}": getattr(experts, name).unflatten(cut.dim, (cut.parts, -1)).shape
        for path, experts in model.named_modules()
        for name, cut in expert_cuts(experts).items()
        if cut.parts > 1
    }


def experts_over_ranks(self: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
    """What the class's own forward makes of this rank's part of each expert, and the others' make
    of theirs: hidden states [tokens, hidden] for hidden states, a token's experts and weights
    [tokens, chosen]."""
    args, kwargs = tree_map_only(Tensor, self.boundary.enter, (args, kwargs))
    return self.boundary.leave(type(self).forward(OfRank(self, _own(self)), *args, **kwargs))


def _own(experts: nn.Module) -> dict[str, Tensor]:
    """This rank's part of each parameter in the shape that the class knows. What is added after the
    sum is added once: as one of tp equal shares."""
    own = {name: local(parameter) for name, parameter in experts.named_parameters()}
    width = own["down_proj"].shape[experts.cuts["down_proj"].dim]
    for name, (dim, parts) in experts.cuts.items():
        if dim is None:
            own[name] = share(own[name], experts.boundary.size)
            continue
        own[name] = _in_whole_rows(own[name], dim + (parts > 1), width)
        if parts > 1:
            own[name] = own[name].flatten(dim, dim + 1)
    return own


def _in_whole_rows(part: Tensor, dim: int, width: int) -> Tensor:
    """A rank's part of a parameter, with zeros after a middle of that width, or twice that one."""
    missing = -width % (ROW_BYTES // part.element_size())
    if not missing:
        return part
    after = [0, 0] * (part.dim() - 1 - dim)
    return F.pad(part, [*after, 0, missing * part.shape[dim] // width])
