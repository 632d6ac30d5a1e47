"""Tensors without values, on a device without memory, and how often a host would wait for it."""

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from helpers.engine.errors import UserError, reason
from helpers.engine.experts import dispatch
from helpers.engine.plan import ParallelPlan

aten = torch.ops.aten
HALVES = (torch.float16, torch.bfloat16)


class SizesOnly(FakeTensorMode):
    """Fake tensors, and what they cannot know: a number read from one is 1, and a mask keeps
    everything.

    Attributes:
        host_waits: how often the host has waited for a device of its own.
    """

    host_waits = 0

    def dispatch(self, func, types, args=(), kwargs=None):
        self.host_waits += _waits(func, args, kwargs or {})
        if func is aten._local_scalar_dense.default and isinstance(args[0], FakeTensor):
            return 1.0 if args[0].is_floating_point() else 1
        if func is aten.nonzero.default:
            mask = args[0]
            return mask.new_empty((mask.numel(), mask.dim()), dtype=torch.long)
        if func is aten.index.Tensor and _is_mask(args[1]):
            values, (mask,) = args
            return values.new_empty((mask.numel(), *values.shape[mask.dim() :]))
        if func in (aten.index_put.default, aten._unsafe_index_put.default) and _is_mask(args[1]):
            return args[0].clone()
        if func in (aten.index_put_.default, aten._index_put_impl_.default) and _is_mask(args[1]):
            return args[0]
        if func is aten._grouped_mm.default:
            return _grouped_product(*args, **(kwargs or {}))
        return super().dispatch(func, types, args, kwargs)


@contextmanager
def evenly_routed() -> Iterator[None]:
    """Let as many tokens go to the experts of one rank of ep as to those of another."""

    def as_many(chosen: Tensor, each: int, group: dist.ProcessGroup) -> tuple[Tensor, Tensor]:
        pairs = chosen.new_empty((chosen.numel() // group.size(), 2))
        return pairs.unbind(1)

    with mock.patch.object(dispatch, "pairs_of_rank", as_many):
        yield


@contextmanager
def without_torchs_log() -> Iterator[None]:
    """torch logs an operation that fails with its traceback, of a way that is but tried, too."""
    log = logging.getLogger(fake_tensor.__name__)
    disabled, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = disabled


def no_values(model_type: str, error: Exception) -> UserError:
    """What is said of a class whose forward asks tensors for values."""
    return UserError(f"{model_type} cannot be run without values: {reason(error)}")


def _grouped_product(a: Tensor, b: Tensor, ends: Tensor, *rest: Any, **more: Any) -> Tensor:
    """Of each expert's rows and its matrix, in any dtype; torch knows the sizes in bf16 alone.

    a [rows, k] and b [experts, k, n] make [rows, n]; a [m, rows] and b [rows, n] [experts, m, n].
    """
    if a.dim() == 2 and b.dim() == 2:
        return a.new_empty(ends.shape[0], a.shape[0], b.shape[1])
    return a.new_empty(a.shape[-2], b.shape[-1])


INDEXING = (
    aten.index,
    aten.index_put,
    aten.index_put_,
    aten._unsafe_index_put,
    aten._index_put_impl_,
)
READS = (aten._local_scalar_dense, aten.nonzero, aten.masked_select)


def _waits(func: Any, args: tuple, kwargs: dict[str, Any]) -> bool:
    """Does the host wait for `meta` in this operation? For a value; for how many a mask keeps, the
    size of what comes out; for a copy to or from it, unless that is told not to block, so for an
    index in host memory."""
    first = args[0] if args else None
    if not isinstance(first, FakeTensor):
        return False
    if func is aten._to_copy.default:
        target = kwargs.get("device") or first.device
        return _crosses(first.device, torch.device(target)) and not kwargs.get("non_blocking")
    if func is aten.copy_.default:
        no_waiting = kwargs.get("non_blocking") or args[2:] == (True,)
        return _crosses(args[1].device, first.device) and not no_waiting
    if first.device.type != "meta":
        return False
    if func._overloadpacket in INDEXING:
        indices = [index for index in args[1] if index is not None]
        return any(one.dtype == torch.bool or one.device.type == "cpu" for one in indices)
    return func._overloadpacket in READS


def _crosses(source: torch.device, target: torch.device) -> bool:
    return "meta" in (source.type, target.type) and source.type != target.type


def _is_mask(indices: list[Tensor | None]) -> bool:
    return len(indices) == 1 and indices[0].dtype == torch.bool


def _attend(
    plain: Callable[..., Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention by the fused kernel that an accelerator has for it, which keeps no scores: for 16
    bits without a mask, and for all but 64 bits with as many heads of keys as of queries."""
    inputs = (query, key, value)
    options = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale}
    if query.dtype in HALVES and attn_mask is None:
        return aten._scaled_dot_product_flash_attention(*inputs, **options)[0]
    if query.dtype == torch.float64 or enable_gqa:
        return plain(*inputs, attn_mask, enable_gqa=enable_gqa, **options)
    if attn_mask is not None:
        attn_mask = attn_mask.to(query.dtype).expand(*query.shape[:3], key.shape[2])
    return aten._scaled_dot_product_efficient_attention(*inputs, attn_mask, True, **options)[0]


def _drop(
    plain: Callable[..., Tensor],
    x: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> Tensor:
    """Dropout by an accelerator's kernel, which keeps a mask of a byte a number."""
    if training and 0 < p < 1 and not inplace:
        return torch.native_dropout(x, p, True)[0]
    return plain(x, p, training, inplace)


@contextmanager
def device_of_its_own() -> Iterator[None]:
    """Let torch train on `meta` as on an accelerator, whose tensors meet none of the CPU's: it
    takes a parameter there for one that somebody forgot to make."""
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives, _fully_shard
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
    from torch.optim import optimizer

    fused = optimizer._get_fused_kernels_supported_devices()
    low_dtype = ParallelPlan.low_dtype
    with ExitStack() as stack:
        for place, name, value in (
            (FSDPParamGroup, "_validate_no_meta_params", lambda group: None),
            (_fully_shard, "_get_device_from_mesh", lambda mesh: torch.device("meta")),
            (optimizer, "_get_fused_kernels_supported_devices", lambda: [*fused, "meta"]),
            (torch, "meta", torch.cpu),  # whose streams it has; torch 2.15 asks these for more
            (torch.cpu.Stream, "record_event", lambda stream: stream),
            (_fsdp_collectives, "record_grad_output_stream", lambda buffer, stream: None),
            (F, "scaled_dot_product_attention", partial(_attend, F.scaled_dot_product_attention)),
            (F, "dropout", partial(_drop, F.dropout)),
            (ParallelPlan, "low_dtype", lambda plan, mesh_of: low_dtype(plan, "meta")),
        ):
            stack.enter_context(mock.patch.object(place, name, value, create=True))
        yield
