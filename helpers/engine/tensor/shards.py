"""A parameter over the ranks of one axis, and this rank's part of it.

A split parameter is a DTensor, so its global shape and its name stay known; arithmetic takes the
local part. A parameter that no rule splits stays as it is, whole on every rank.
"""

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset


def local(parameter: Tensor | None) -> Tensor | None:
    """This rank's part of a parameter, sharded or not."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def slice_of(parameter: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """This rank's part of a parameter: its shape, and its offset in the whole."""
    if not isinstance(parameter, DTensor):
        return tuple(parameter.shape), (0,) * parameter.dim()
    return compute_local_shape_and_global_offset(
        parameter.shape, parameter.device_mesh, parameter.placements
    )


def is_finite(parameter: Tensor) -> bool:
    """Has this rank's part, which may be empty, neither NaN nor infinity? It takes no memory, as a
    mask would."""
    part = local(parameter).detach()
    return not part.numel() or all(bool(end.isfinite()) for end in part.aminmax())


def chunk(x: Tensor, dim: int, n: int, index: int) -> Tensor:
    """torch.chunk's part `index` of `n` along `dim`, empty where torch.chunk makes fewer."""
    size = -(-x.shape[dim] // n)
    start = min(size * index, x.shape[dim])
    return x.narrow(dim, start, min(size, x.shape[dim] - start))


def shard_parameter(module: nn.Module, name: str, mesh: DeviceMesh, dim: int) -> None:
    """Replace a parameter by a DTensor that keeps this rank's chunk along `dim`.

    The full tensor must be the same on every rank (or on the meta device): no data is sent.
    """
    full = getattr(module, name)
    part = chunk(full.detach(), dim, mesh.size(), mesh.get_local_rank()).clone()
    sharded = DTensor.from_local(
        part, mesh, [Shard(dim)], run_check=False, shape=full.shape, stride=full.stride()
    )
    setattr(module, name, nn.Parameter(sharded, requires_grad=full.requires_grad))
