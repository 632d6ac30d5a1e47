"""Matrix products of the blocks in 8 bits: e4m3 forward, e5m2 for what comes back.

    y  = x  W'     e4m3 x e4m3     a number has a sign, 4 bits of exponent and 3 of mantissa
    dx = g  W      e5m2 x e4m3     gradients: 5 bits of exponent and 2 of mantissa
    dW = g' x      e5m2 x e4m3

Numbers are multiplied by a scale, so that the largest is just below the format's largest, and
rounded; products are summed in float32 and the scales divided out. Inputs and gradients have a
scale for each token, weights one for the matrix. So a token is rounded alike in a micro-batch and
in the whole batch, on one rank and on eight. Ranks of tp, which hold parts of one token or one
matrix, agree on its scale. dW sums over tokens, which then need one scale: that of the largest. A
scale is a power of two, which moves exponents and no bit of a mantissa; only what is 2^14 times
smaller than the largest is rounded differently by another scale.

Embedding, head, norms, attention and biases stay as they are, and so do the weights: each product
rounds them anew. A GPU multiplies 8 bits as they are (torch._scaled_mm); a processor widens them
first, which gives the same sums and saves no time.

Sources: Micikevicius et al. 2022, FP8 Formats for Deep Learning, section 3; torchao's recipe with a
scale for each row.
"""

import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from ..errors import UserError
from ..models.architecture import has
from ..models.families import Family
from ..pipeline.split_backward import matrix
from ..tensor.boundary import Boundary
from ..tensor.collectives import largest, once

FORWARD, BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2
MULTIPLE = 16  # a GPU's products want such sizes
LARGEST_EXPONENT = 126  # of a scale, which is a float32
CAPABILITY = (8, 9)  # of the first GPUs with such products: Ada, then Hopper


class Rounded(NamedTuple):
    """Numbers in 8 bits, and one over the scales that they were multiplied by: [rows, columns], and
    [rows, 1] or one for all."""

    values: Tensor
    inverse: Tensor

    def turned(self) -> "Rounded":
        """[columns, rows], of one scale."""
        return Rounded(self.values.t(), self.inverse)


def round_rows(x: Tensor, dtype: torch.dtype, group: ProcessGroup | None) -> Rounded:
    """Each row of [rows, columns] by a scale of its own, which the ranks of `group`, that have
    other columns, agree on."""
    low, high = x.aminmax(dim=1, keepdim=True)
    return _rounded(x, _scale(torch.maximum(-low, high), dtype, group), dtype)


def round_whole(x: Tensor, dtype: torch.dtype, group: ProcessGroup | None) -> Rounded:
    """All by one scale."""
    low, high = x.aminmax()
    return _rounded(x, _scale(torch.maximum(-low, high), dtype, group), dtype)


def by_one_scale(rows: Rounded) -> Rounded:
    """The same numbers by the scale of the row with the largest; only far smaller ones change."""
    dtype = rows.values.dtype
    if not rows.values.numel():
        return Rounded(rows.values, rows.inverse.new_ones(()))
    inverse = rows.inverse.amax()
    moved = rows.values.float() * (rows.inverse / inverse)
    return Rounded(moved.to(dtype), inverse)


def _scale(most: Tensor, dtype: torch.dtype, group: ProcessGroup | None) -> Tensor:
    """The largest power of two by which a number fits the format. Zero, which fits by any, gets the
    largest of all: it never decides for what is beside it."""
    most = most.float().abs()  # zero may be a negative one
    if group is not None:
        most = largest(most, group)
    room = torch.log2(torch.finfo(dtype).max / most).floor().clamp(max=LARGEST_EXPONENT)
    return torch.exp2(room)


def _rounded(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Rounded:
    most = torch.finfo(dtype).max
    return Rounded((x * scale.to(x.dtype)).clamp(-most, most).to(dtype), 1 / scale)


def product(a: Rounded, b: Rounded, dtype: torch.dtype) -> Tensor:
    """a [m, k] times b [k, n] of one scale, summed in at least float32."""
    return (_widened if a.values.device.type == "cpu" else _multiplied)(a, b, dtype)


def _widened(a: Rounded, b: Rounded, dtype: torch.dtype) -> Tensor:
    wide = torch.promote_types(dtype, torch.float32)
    return (a.values.to(wide) @ b.values.to(wide) * (a.inverse * b.inverse).to(wide)).to(dtype)


def _multiplied(a: Rounded, b: Rounded, dtype: torch.dtype) -> Tensor:
    (m, k), n = a.values.shape, b.values.shape[1]
    left = _padded(a.values, -m % MULTIPLE, -k % MULTIPLE).contiguous()
    right = _padded(b.values.t(), -n % MULTIPLE, -k % MULTIPLE).contiguous().t()
    scales = {"scale_a": a.inverse, "scale_b": b.inverse}
    if a.inverse.dim():  # a scale a row has one a column beside it, and a result in bf16
        rows = nn.functional.pad(a.inverse, (0, 0, 0, -m % MULTIPLE), value=1.0)
        scales = {"scale_a": rows, "scale_b": b.inverse.repeat(1, right.shape[1])}
    out = torch._scaled_mm(left, right, **scales, out_dtype=dtype)
    return out[:m, :n]


def _padded(x: Tensor, rows: int, columns: int) -> Tensor:
    if not rows and not columns:
        return x
    return nn.functional.pad(x.view(torch.uint8), (0, columns, 0, rows)).view(x.dtype)


class Products:
    """The products of linear layers in 8 bits.

    Args:
        weights, inputs, gradients: of the ranks that hold parts of the same matrix, of the same
            token that goes in, and of the same gradient of what comes out; None for one rank.
    """

    def __init__(
        self,
        weights: ProcessGroup | None = None,
        inputs: ProcessGroup | None = None,
        gradients: ProcessGroup | None = None,
    ) -> None:
        self.weights, self.inputs, self.gradients = weights, inputs, gradients
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
        rounded = round_rows(x.detach().flatten(0, -2), FORWARD, self.inputs)
        self.last = weakref.ref(x), x._version, rounded
        return rounded


class _Product(torch.autograd.Function):
    """x [.., in] times a weight [out, in], or as split_backward.matrix has it. Of x its 8 bits are
    kept for the backward pass, and of the weight its scale beside itself."""

    @staticmethod
    def forward(ctx: Any, x, weight, values, inverse, products, transposed, later):
        rounded = round_whole(matrix(weight, transposed), FORWARD, products.weights)
        ctx.save_for_backward(values, inverse, weight, rounded.inverse)
        ctx.products, ctx.transposed, ctx.later = products, transposed, later
        ctx.shape, ctx.dtype = x.shape, x.dtype
        y = product(Rounded(values, inverse), rounded.turned(), x.dtype)
        return y.view(*x.shape[:-1], y.shape[-1])

    @staticmethod
    def backward(ctx: Any, grad):
        values, inverse, weight, inverse_w = ctx.saved_tensors
        rounded = _rounded(matrix(weight, ctx.transposed), 1 / inverse_w, FORWARD)
        gradient = round_rows(grad.flatten(0, -2), BACKWARD, ctx.products.gradients)
        of_x = product(gradient, rounded, ctx.dtype).view(ctx.shape)
        of_weight = None
        if ctx.needs_input_grad[1]:
            later, name = ctx.later or (None, "")
            x, facts = Rounded(values, inverse), (ctx.transposed, weight.shape, weight.dtype)
            pending = PendingFloat8(name, x, gradient, *facts)
            of_weight = pending.compute() if later is None else later.now_or_later(pending)
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
        made = product(by_one_scale(first).turned(), by_one_scale(second), self.dtype)
        return made.view(self.shape)


def check_float8(device_type: str) -> None:
    """Raise a UserError if this rank's GPU has no products of 8 bits."""
    if device_type == "cuda" and torch.cuda.get_device_capability() < CAPABILITY:
        raise UserError(
            f"precision=fp8 needs a GPU of compute capability {CAPABILITY[0]}.{CAPABILITY[1]} or "
            f"newer, as Hopper's, not {torch.cuda.get_device_name()}: take bf16"
        )


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
    group = boundary.group if boundary.size > 1 else None
    columns, rows = Products(group, gradients=group), Products(group, inputs=group)
    for block in model.get_submodule(family.blocks).children():
        for path in family.split_layers:
            if has(block, path):
                block.get_submodule(path).float8 = rows if path in family.row else columns
