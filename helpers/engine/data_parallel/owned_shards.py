"""What one rank's optimizer updates: the shard of each parameter that it owns, as a plain tensor.

A shard may be the whole local parameter, a chunk of it, or a float32 master copy of either. It
knows where it lies in the whole, so gradients, norms and checkpoints need not know the layout.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from .axes import StateAxes


@dataclass
class OwnedShard:
    """One parameter's shard that this rank's optimizer updates.

    Attributes:
        tensor: the leaf that the optimizer holds; shares the parameter's memory where it can.
        shape, placements, mesh: of the whole, as checkpoints hold it; no mesh where every rank
            holds all of it.
        copies: ranks of the world that hold the same numbers.
        decays: does weight decay apply? To matrices, not to norms and biases.
    """

    name: str
    tensor: nn.Parameter
    shape: torch.Size
    mesh: DeviceMesh | None
    placements: tuple[Placement, ...]
    copies: int
    decays: bool

    def whole(self, like: Tensor) -> Tensor:
        """A tensor shaped like the shard (itself, a moment of Adam's) as a DTensor of the whole; or
        itself, where every rank holds all of it."""
        if self.mesh is None:
            return like.view(self.shape)
        if like.dim() < len(self.shape):  # of whole experts, of whose number a rank has a part
            like = like.view(len(like), *self.shape[1:])
        stride = torch.empty(self.shape, device="meta").stride()
        return DTensor.from_local(
            like, self.mesh, self.placements, run_check=False, shape=self.shape, stride=stride
        )


def make_owned_shard(
    name: str,
    parameter: Tensor,
    tensor: Tensor,
    mesh: DeviceMesh,
    chunked_over: StateAxes | None,
    decays: bool,
    stages: int = 1,
    shape: torch.Size | None = None,
) -> OwnedShard:
    """The shard of a parameter that `tensor` holds.

    Args:
        parameter: as it lies in the model: plain, or a DTensor over tp, data ranks or both.
        mesh: of the whole plan.
        chunked_over: `tensor` is this rank's chunk along dim 0 over these ranks (ZeRO 1 and 2).
        decays: does weight decay apply?
        stages: pipeline ranks that hold the parameter.
        shape: that checkpoints hold it in, where it is not the parameter's.
    """
    of_whole, placements = None, ()
    if isinstance(parameter, DTensor):
        of_whole, placements = parameter.device_mesh, parameter.placements
    if chunked_over is not None:
        nested = any(isinstance(p, Shard) and p.dim == 0 for p in placements)
        rows = _StridedShard(0, split_factor=of_whole.size()) if nested else Shard(0)
        of_whole = chunked_over.shard_and_tp if of_whole else chunked_over.shard
        placements = (rows, *placements)
    ranks = of_whole.size() if of_whole else 1
    return OwnedShard(
        name=name,
        tensor=nn.Parameter(tensor),
        shape=shape or parameter.shape,
        mesh=of_whole,
        placements=tuple(placements),
        copies=mesh.size() // mesh["pp"].size() // ranks * stages,
        decays=decays,
    )


def lower_(model: nn.Module, dtype: torch.dtype) -> None:
    """Replace the model's float parameters by copies in `dtype`."""
    _replace(model, dtype, lambda parameter: parameter.is_floating_point())


def raise_(model: nn.Module) -> None:
    """Replace what trains in 16 bits by float32: the masters of arithmetic in fewer bits."""
    _replace(model, torch.float32, lambda p: p.requires_grad and p.dtype.itemsize < 4)


def _replace(model: nn.Module, dtype: torch.dtype, which: Callable[[Tensor], bool]) -> None:
    replaced: dict[int, nn.Parameter] = {}  # tied modules share one copy
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if not which(parameter):
                continue
            if id(parameter) not in replaced:
                replaced[id(parameter)] = nn.Parameter(
                    parameter.detach().to(dtype), requires_grad=parameter.requires_grad
                )
            setattr(module, name, replaced[id(parameter)])
