"""What a rank holds, counted from live tensors, and the most that its process took."""

import resource
import sys
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ..tensor.shards import local


def state_bytes(
    model: nn.Module,
    optimized: Iterable[Tensor],
    optimizer: torch.optim.Optimizer,
    gradient_bytes: int,
) -> dict[str, int]:
    """Bytes of a rank's parameters, gradients and optimizer.

    Float32 masters of low-precision parameters belong to the optimizer, and the magnitudes of 4-bit
    codes to the parameters.

    Args:
        optimized: the tensors that the optimizer updates.
        gradient_bytes: the most that was alive at the end of a micro-batch; they are freed after a
            step.
    """
    in_model = {local(p).untyped_storage()._cdata for p in model.parameters()}
    masters = [t for t in optimized if t.untyped_storage()._cdata not in in_model]
    state = [value for of_one in optimizer.state.values() for value in of_one.values()]
    tensors = [t for t in state if isinstance(t, Tensor) and t.dim()]
    moments = {t.untyped_storage()._cdata: t for t in tensors}.values()  # tables may be shared
    return {
        "parameters": sum(local(p).nbytes for p in model.parameters()) + magnitude_bytes(model),
        "gradients": gradient_bytes,
        "optimizer": sum(t.nbytes for t in [*moments, *masters]),
    }


def magnitude_bytes(model: nn.Module) -> int:
    """Bytes that layers in 4 bits hold beside their codes: magnitudes and code books."""
    states = [m.quant_state for m in model.modules() if getattr(m, "quant_state", None) is not None]
    held = (
        (state.absmax, state.code, state.offset, state.state2.absmax, state.state2.code)
        for state in states
    )
    return sum(tensor.nbytes for tensors in held for tensor in tensors)


def forget_peak(device: torch.device) -> None:
    """Count a GPU's peak from now on. A process keeps its own on the CPU, to its end."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory_bytes(device: torch.device) -> int:
    """The most memory so far: allocated on a GPU, resident for a process on the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux KiB
