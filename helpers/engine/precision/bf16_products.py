"""bf16 on a processor that has no instructions for it: products in float32, rounded once.

Such a processor widens every number of a bf16 product by itself, and slowly: on one with AVX-512
alone torch's bf16 products reach a fifth of the rate of its float32 ones. Widening whole tensors
first gives the same sums, since bf16 products are summed in float32 either way, and is several
times as fast. What is kept for the backward pass stays in bf16: the widening is beneath autograd.
"""

import platform
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ..errors import UserError
from ..plan import ParallelPlan

aten = torch.ops.aten
# operation: which of its results are bf16 (attention's second is a float32 logarithm)
WIDENED = {
    aten.mm.default: (0,),
    aten.addmm.default: (0,),
    aten.bmm.default: (0,),
    aten.baddbmm.default: (0,),
    aten._scaled_dot_product_flash_attention_for_cpu.default: (0,),
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: (0, 1, 2),
}
PLAIN = (Tensor, nn.Parameter)


def products(plan: ParallelPlan, device: torch.device) -> AbstractContextManager:
    """What a step's products run under: nothing special, but for bf16 without instructions for it.

    Compiled blocks keep torch's own products: a graph is not made under such a mode.

    Raises:
        UserError: inside of torch.autocast, which would round what the plan leaves whole.
    """
    if device.type != "meta" and torch.is_autocast_enabled(device.type):  # torch asks no meta
        raise UserError("the plan's precision says how a step rounds: take it outside of autocast")
    widens = plan.precision == "bf16" and device.type == "cpu" and not plan.compile
    return products_of_processor() if widens else nullcontext()


def products_of_processor() -> AbstractContextManager:
    """What widens bf16 products, on a processor that has none."""
    return nullcontext() if has_bf16_products() else WideProducts()


def has_bf16_products() -> bool:
    """Can this processor multiply bf16 numbers? Only x86 is asked; others are left to torch."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return True
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


class WideProducts(TorchDispatchMode):
    """While entered, products of bf16 tensors are computed in float32 and rounded to bf16."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        rounded = WIDENED.get(func)
        if rounded is None or not _is_bf16(args):
            return func(*args, **kwargs)
        result = func(*map(_widen, args), **{name: _widen(value) for name, value in kwargs.items()})
        if isinstance(result, Tensor):
            return result.bfloat16()
        return tuple(x.bfloat16() if i in rounded else x for i, x in enumerate(result))


def _is_bf16(args: tuple) -> bool:
    """Are the tensors plain ones, and the first of them bf16? Others choose their own way."""
    tensors = [value for value in args if isinstance(value, Tensor)]
    return tensors[0].dtype == torch.bfloat16 and all(type(tensor) in PLAIN for tensor in tensors)


def _widen(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype == torch.bfloat16 else value
