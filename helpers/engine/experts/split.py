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

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from ..errors import UserError
from ..models.architecture import has
from ..models.block_rules import expert_cuts
from ..models.families import Family
from ..plan import ParallelPlan
from ..tensor.boundary import Boundary
from ..tensor.collectives import share
from ..tensor.in_parts import fold
from ..tensor.layers import bind
from ..tensor.shards import local
from .dispatch import by_all_gather, deal_out

ROW_BYTES = 16  # of which torch's grouped_mm wants multiples


class OfRank:
    """A module with a rank's own parts of its parameters; all else is the module's."""

    def __init__(self, module: nn.Module, own: dict[str, Any]) -> None:
        self.module, self.own = module, own

    def __getattr__(self, name: str) -> Any:
        return self.own[name] if name in self.own else getattr(self.module, name)


def apply_experts(model: nn.Module, family: Family, boundary: Boundary) -> None:
    """Split the experts of all blocks over tp, or deal them out, or both; else they stay as they
    are.

    Sets on the model:
        dealt: names of the parameters that the ranks of ep have dealt out.
        split_shapes: as apply_tensor, of experts that tp does not split.
    """
    model.dealt = set()
    if family.experts and (boundary.size > 1 or boundary.experts is not None):
        for name, block in model.get_submodule(family.blocks).named_children():
            for path in filter(partial(has, block), family.experts):
                whole_path = f"{family.blocks}.{name}.{path}"
                split_experts(model, block.get_submodule(path), boundary, whole_path)
    model.split_shapes |= shapes_of_whole(model)


def check_rows(model: nn.Module, plan: ParallelPlan, dtype: torch.dtype) -> None:
    """Raise a UserError if experts' rows in this dtype are none that a product by groups takes, and
    no zeros follow them, which is where tp splits them."""
    if plan.tp > 1:
        return
    multiple = ROW_BYTES // dtype.itemsize
    for experts in model.modules():
        if not (expert_cuts(experts) and _by_groups(experts)):
            continue
        width, hidden = sorted(experts.down_proj.shape[1:])
        if width % multiple or hidden % multiple:
            raise UserError(
                f"{type(experts).__name__} multiplies rows of {width} and {hidden} numbers, and in "
                f"{str(dtype).removeprefix('torch.')} torch's product by groups takes multiples of "
                f"{multiple} alone: take tp, or experts_implementation='eager'"
            )


def _by_groups(experts: nn.Module) -> bool:
    """Does transformers' own product by groups compute them, and no forward of the class?"""
    decorated = hasattr(type(experts).forward, "__wrapped__")  # by transformers
    return decorated and experts.config._experts_implementation == "grouped_mm"


def split_experts(model: nn.Module, experts: nn.Module, boundary: Boundary, path: str) -> None:
    """Split the matrices of a module that holds all experts', and let its work cross the boundary.
    Their width must have a part of one size for each rank, see check_tensor_degree."""
    dims, experts.cuts = {}, expert_cuts(experts)
    for name, (dim, parts) in experts.cuts.items():
        if dim is None or boundary.size == 1:
            continue
        if parts > 1:
            fold(model, experts, path, name, dim, parts)
        dims[name] = dim + (parts > 1)
    bind(experts, experts_over_ranks, boundary, **dims)
    if boundary.experts is not None:
        experts.count = len(experts.down_proj)
        for name in experts.cuts:
            deal_out(experts, name, boundary.experts)
            model.dealt.add(f"{path}.{name}")


def shapes_of_whole(model: nn.Module) -> dict[str, torch.Size]:
    """The shapes in which tp splits those parameters of experts that are whole here, by name:
    checkpoints hold them so under every plan, whatever of the model it splits."""
    shapes = {}
    for path, experts in model.named_modules():
        for name, (dim, parts) in expert_cuts(experts).items():
            whole = list(getattr(experts, name).shape)
            if parts > 1:
                whole[dim : dim + 1] = parts, whole[dim] // parts
                shapes[f"{path}.{name}"] = torch.Size(whole)
    return shapes


def experts_over_ranks(self: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
    """What the class's own forward makes of this rank's part of each expert, and the others' make
    of theirs: hidden states [tokens, hidden] for hidden states, a token's experts and weights
    [tokens, chosen]."""
    args, kwargs = tree_map_only(Tensor, self.boundary.enter, (args, kwargs))
    if self.boundary.experts is None:
        out = type(self).forward(OfRank(self, _own(self)), *args, **kwargs)
    else:
        group = self.boundary.experts.get_group(0)
        tokens = (*args, *kwargs.values())
        if len(tokens) != 3:
            raise UserError(
                f"{type(self).__name__} is not told which tokens go to which experts, and so ep "
                "cannot deal them out"
            )
        out = by_all_gather(partial(_of_rank, self), *tokens, self.count, group)
    return self.boundary.leave(out)


def _of_rank(self: nn.Module, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """This rank's experts, in the dtype of what comes to them: their masters may be wider."""
    own = _own(self, hidden.dtype)
    own |= {"num_experts": len(own["down_proj"])}
    return type(self).forward(OfRank(self, own), hidden, chosen, weights)


def _own(experts: nn.Module, dtype: torch.dtype | None = None) -> dict[str, Any]:
    """This rank's part of each parameter in the shape that the class knows, and in this dtype. What
    is added after the sum is added once: as one of tp equal shares."""
    own = {name: local(parameter) for name, parameter in experts.named_parameters()}
    own = {name: part.to(dtype or part.dtype) for name, part in own.items()}
    width = own["down_proj"].shape[experts.cuts["down_proj"].dim]
    for name, (dim, parts) in experts.cuts.items():
        if dim is None:
            own[name] = share(own[name], experts.boundary.size)
            continue
        if experts.boundary.size > 1:
            own[name] = _in_whole_rows(own[name], dim + (parts > 1), width)
            own[name] = own[name].flatten(dim, dim + parts - 1)
    return own


def _in_whole_rows(part: Tensor, dim: int, width: int) -> Tensor:
    """A rank's part of a parameter, with zeros after a middle of that width, or twice that one."""
    missing = -width % (ROW_BYTES // part.element_size())
    if not missing:
        return part
    after = [0, 0] * (part.dim() - 1 - dim)
    return F.pad(part, [*after, 0, missing * part.shape[dim] // width])
