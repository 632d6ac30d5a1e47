"""Matrix products of the blocks in 8 bits: e4m3 forward, e5m2 for what comes back.

    y  = x  W'     e4m3 x e4m3     a number has a sign, 4 bits of exponent and 3 of mantissa
    dx = g  W      e5m2 x e4m3     gradients: 5 bits of exponent and 2 of mantissa
    dW = g' x      e5m2 x e4m3

A tensor is multiplied by one scale, so that its largest number is just below the format's largest,
and rounded; products are summed in float32 and the scales divided out. Scales are powers of two: a
scale moves the exponent and no bit of the mantissa, so a number rounds alike whatever else is in
its tensor, in a micro-batch or the whole batch, on one rank or eight. Only numbers 2^14 times
smaller than the largest, which e4m3 rounds to multiples of its smallest, see the scale at all. The
ranks of tp, which hold parts of one matrix, agree on it all the same.

Embedding, head, norms, attention and biases stay as they are, and so do the weights: each product
rounds them anew. A GPU multiplies 8 bits as they are (torch._scaled_mm); elsewhere they are
widened first, which gives the same sums and saves no time.

Sources: Micikevicius et al. 2022, FP8 Formats for Deep Learning, section 3; NVIDIA Transformer
Engine and torchao, whose scales by tensor these are.
"""

import weakref
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from ..errors import UserError
from ..models.architecture import has
from ..models.families import Family
from ..pipeline.split_backward import matrix
from ..tensor.boundary import Boundary
from ..tensor.collectives import once

FORWARD, BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2
MULTIPLE = 16  # a GPU's products want such sizes
LARGEST_EXPONENT = 126  # of a scale, which is a float32


class Rounded(NamedTuple):
    """A tensor in 8 bits, and one over the scale that it was multiplied by."""

    values: Tensor
    inverse: Tensor


class Products:
    """The products of a model's blocks, in 8 bits.

    Args:
        group: of the ranks of tp, which agree on scales; None for one.
    """

    def __init__(self, group: ProcessGroup | None) -> None:
        self.group = group
        self.last: tuple[weakref.ref[Tensor], int, Rounded] | None = None

    def __call__(
        self, layer: nn.Module, x: Tensor, weight: Tensor, bias: Tensor | None, transposed: bool
    ) -> Tensor:
        """As pipeline/split_backward.py's `linear`, for which this stands."""
        later = getattr(layer, "later", None) if torch.is_grad_enabled() else None
        later = None if later is None else (later, layer.weight_name)
        y = _Product.apply(x, weight, *self.input(x), self, transposed, later)
        if hasattr(layer, "shared"):
            y = once(y, layer.shared)
        return y if bias is None else y + bias

    def input(self, x: Tensor) -> Rounded:
        """What is multiplied several times is rounded once: queries, keys and values are products
        of one tensor."""
        if self.last is not None and self.last[0]() is x and self.last[1] == x._version:
            return self.last[2]
        rounded = self.round(x.detach(), FORWARD)
        self.last = weakref.ref(x), x._version, rounded
        return rounded

    def round(self, x: Tensor, dtype: torch.dtype) -> Rounded:
        """To the format's nearest numbers, by a scale that the ranks of tp agree on."""
        ends = torch.stack(x.aminmax()) if x.numel() else x.new_zeros(2)
        largest = ends.abs().amax().float()
        if self.group is not None:
            dist.all_reduce(largest, dist.ReduceOp.MAX, group=self.group)
        scale = scale_of(largest, dtype)
        most = torch.finfo(dtype).max
        return Rounded((x * scale.to(x.dtype)).clamp(-most, most).to(dtype), 1 / scale)


def scale_of(largest: Tensor, dtype: torch.dtype) -> Tensor:
    """The largest power of two by which the number fits the format; 1 for zero."""
    room = torch.log2(torch.finfo(dtype).max / largest).floor().clamp(max=LARGEST_EXPONENT)
    return torch.where(largest == 0, 1.0, torch.exp2(room))


def product(a: Rounded, b: Rounded, dtype: torch.dtype) -> Tensor:
    """a [m, k] times b [k, n], summed in at least float32."""
    if a.values.device.type == "cpu":
        wide = torch.promote_types(dtype, torch.float32)
        return (a.values.to(wide) @ b.values.to(wide) * (a.inverse * b.inverse).to(wide)).to(dtype)
    (m, k), n = a.values.shape, b.values.shape[1]
    left = _padded(a.values, -m % MULTIPLE, -k % MULTIPLE).contiguous()
    right = _padded(b.values.t(), -n % MULTIPLE, -k % MULTIPLE).contiguous().t()
    return torch._scaled_mm(left, right, scale_a=a.inverse, scale_b=b.inverse, out_dtype=dtype)[
        :m, :n
    ]


def _padded(x: Tensor, rows: int, columns: int) -> Tensor:
    if not rows and not columns:
        return x
    return nn.functional.pad(x.view(torch.uint8), (0, columns, 0, rows)).view(x.dtype)


class _Product(torch.autograd.Function):
    """x [.., in] times a weight [out, in], or as split_backward.matrix has it. Of x its 8 bits are
    kept for the backward pass, and of the weight nothing but itself."""

    @staticmethod
    def forward(ctx: Any, x, weight, values, inverse, products, transposed, later):
        rounded_x = Rounded(values.flatten(0, -2), inverse)
        rounded_w = products.round(matrix(weight, transposed), FORWARD)
        ctx.save_for_backward(values, inverse, weight)
        ctx.products, ctx.transposed = products, transposed
        ctx.later, ctx.dtype = later, x.dtype
        y = product(rounded_x, Rounded(rounded_w.values.t(), rounded_w.inverse), x.dtype)
        return y.view(*x.shape[:-1], y.shape[-1])

    @staticmethod
    def backward(ctx: Any, grad):
        values, inverse, weight = ctx.saved_tensors
        rounded_w = ctx.products.round(matrix(weight, ctx.transposed), FORWARD)
        rounded_g = ctx.products.round(grad.flatten(0, -2), BACKWARD)
        of_x = product(rounded_g, rounded_w, ctx.dtype).view(values.shape)
        of_weight = None
        if ctx.needs_input_grad[1]:
            later, name = ctx.later or (None, "")
            x = Rounded(values.flatten(0, -2), inverse)
            facts = ctx.transposed, weight.shape, weight.dtype
            pending = PendingFloat8(name, x, rounded_g, *facts)
            if later is None or later.now is None:
                of_weight = pending.compute()
            else:
                later.pending[later.now].append(pending)
        return of_x, of_weight, None, None, None, None, None


class PendingFloat8(NamedTuple):
    """As split_backward.Pending: a weight gradient that is still to be computed."""

    name: str
    x: Rounded
    grad: Rounded
    transposed: bool
    shape: torch.Size
    dtype: torch.dtype

    def compute(self) -> Tensor:
        first, second = (self.x, self.grad) if self.transposed else (self.grad, self.x)
        turned = Rounded(first.values.t(), first.inverse)
        return product(turned, second, self.dtype).view(self.shape)


def apply_float8(model: nn.Module, family: Family, boundary: Boundary) -> None:
    """Let the linear layers of all blocks here, as far as tp could split them, multiply 8 bits.

    Raises:
        UserError: the model has no such layers.
    """
    if not family.splits:
        raise UserError(
            "precision=fp8 needs blocks of attention and MLP as tp splits them, not "
            f"{family.name}'s"
        )
    products = Products(boundary.group if boundary.size > 1 else None)
    for block in model.get_submodule(family.blocks).children():
        for path in family.split_layers:
            if has(block, path):
                block.get_submodule(path).float8 = products
