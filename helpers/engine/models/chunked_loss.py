"""Cross-entropy over a vocabulary that is split over ranks, a chunk of tokens at a time.

With logits z over the whole vocabulary and target t, the loss of a token is

    log sum_v exp(z_v - m) - (z_t - m),     m = max_v z_v

Each rank has its own columns of z. Two small all-reduces a chunk make m, the sum and z_t whole;
the logits themselves are never gathered. The gradient, softmax(z) - onehot(t), needs nothing more,
so it is taken in the same pass and the chunk's logits are dropped at once.

Sources: Shoeybi et al. 2019, Megatron-LM, section 3 (parallel cross-entropy); Wijmans et al. 2024,
Cut Your Losses in Large-Vocabulary Language Models, section 4 (loss without the logits in memory).
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from ..errors import UserError
from ..messages.carriers import all_reduce

# Logits held at a time: small beside a layer's activations, large enough to keep a processor busy.
# A GPU computes so few as fast as a host starts its operations, so there it is more.
CHUNK_BYTES, GPU_CHUNK_BYTES = 64 * 2**20, 256 * 2**20
# A GPU's fast products take columns in eights. GPT-2 has 50,257: as they are, its head's products
# take an H200 five to seven times as long.
ALIGNED = 8


def chunk_bytes(device_type: str) -> int:
    """Bytes of logits that are held at a time."""
    return CHUNK_BYTES if device_type == "cpu" else GPU_CHUNK_BYTES


def columns_at(device_type: str, columns: int) -> int:
    """Columns of logits that are computed for so many of the vocabulary: a few of zeros more where
    the device's fast kernels want them."""
    return columns if device_type == "cpu" else -(-columns // ALIGNED) * ALIGNED


@dataclass(frozen=True)
class LogitTransform:
    """What a model does to its head's products: z = softcap tanh(scale x / softcap).

    softcap: None for z = scale x.
    """

    scale: float = 1.0
    softcap: float | None = None

    @classmethod
    def of(cls, config: Any) -> "LogitTransform":
        """That of a transformers configuration; its fields for this have several names."""
        scale = 1.0
        for name in ("logit_scale", "lm_head_multiplier"):
            scale *= _number(config, name)
        scale /= _number(config, "logits_scaling")
        return cls(scale, getattr(config, "final_logit_softcapping", None))

    def __call__(self, products: Tensor) -> Tensor:
        logits = products if self.scale == 1.0 else products * self.scale
        return logits if self.softcap is None else self.softcap * (logits / self.softcap).tanh()

    def in_place(self, products: Tensor) -> Tensor:
        """The same where nothing is differentiated: a chunk is large."""
        if self.scale != 1.0:
            products.mul_(self.scale)
        if self.softcap is not None:
            products.div_(self.softcap).tanh_().mul_(self.softcap)
        return products

    def slope_(self, gradient: Tensor, logits: Tensor) -> Tensor:
        """The gradient by the products, in place of that by the logits, which with a softcap are
        overwritten."""
        if self.softcap is not None:
            gradient.mul_(logits.div_(self.softcap).square_().neg_().add_(1))
        return gradient if self.scale == 1.0 else gradient.mul_(self.scale)


def _number(config: Any, name: str) -> float:
    value = getattr(config, name, None)
    return 1.0 if value is None else float(value)


NO_TRANSFORM = LogitTransform()


def token_loss(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    start: int,
    vocabulary: int,
    group: ProcessGroup | None,
    transform: LogitTransform = NO_TRANSFORM,
    late: bool = False,
) -> Tensor:
    """Summed cross-entropy of tokens, for this rank's columns of the vocabulary.

    Args:
        hidden: [tokens, hidden], the same on every rank of `group`.
        weight: [vocabulary/n, hidden]; bias: [vocabulary/n] or None.
        labels: [tokens], global token ids, none ignored.
        start: the token id of row 0 of `weight`.
        vocabulary: token ids over all ranks.
        group: the ranks that share the vocabulary; None for one.
        transform: from the products with `weight` to logits.
        late: make the gradients in the backward, by a second pass.

    Returns:
        The sum over tokens, a scalar in at least float32, the same on every rank. The gradient of
        `hidden` is this rank's partial sum: it is made whole where `hidden` crossed the boundary.
    """
    # the same on every rank, whatever the size of its shard: each chunk is a collective
    rows = max(1, chunk_bytes(hidden.device.type) * _size(group) // (vocabulary * 4))
    return _TokenLoss.apply(hidden, weight, bias, labels, start, rows, group, transform, late)


def _size(group: ProcessGroup | None) -> int:
    return group.size() if group else 1


class _TokenLoss(torch.autograd.Function):
    """The gradients are made in the forward, in the same pass as the loss. With `late` they are
    made in the backward, by going through the chunks again: a head's gradient is as large as the
    head, and a schedule that keeps many micro-batches would keep as many."""

    @staticmethod
    def forward(ctx, hidden, weight, bias, labels, start, rows, group, transform, late):
        inputs = (hidden, weight, bias)
        ctx.options = start, rows, group, transform
        ctx.dtype, ctx.late, ctx.wants = hidden.dtype, late, ctx.needs_input_grad[:3]
        ctx.empty, ctx.spent = not len(labels), False
        total, grads = _all_chunks(
            inputs, labels, *ctx.options, (False,) * 3 if late else ctx.wants
        )
        ctx.save_for_backward(*((*inputs, labels) if late else grads))
        return total

    @staticmethod
    def backward(ctx, grad_total):
        if torch.is_grad_enabled():  # by create_graph: gradients made before hang on nothing
            raise UserError(
                "the loss of a laid-out model has no second derivative: for create_graph make a "
                "loss of model(input_ids).logits"
            )
        if ctx.spent and not ctx.late:
            raise UserError(
                "the loss of a laid-out model has one backward, for which its gradients are made "
                "in advance: for a second one call the model again"
            )
        ctx.spent = True
        if ctx.empty:  # of no token is the mean, 0 / 0, and nothing learns from it
            grad_total = torch.zeros_like(grad_total)
        grads = ctx.saved_tensors
        if ctx.late:
            *inputs, labels = ctx.saved_tensors
            _, grads = _all_chunks(inputs, labels, *ctx.options, ctx.wants)
        rows = ctx.options[1]
        scaled = (None if g is None else _scale_(g, grad_total, rows).to(ctx.dtype) for g in grads)
        return *scaled, None, None, None, None, None, None


def _all_chunks(inputs, labels, start, rows, group, transform, wants):
    """The summed loss, and the gradients of hidden, weight and bias that are wanted."""
    hidden, weight, bias = inputs
    own = weight.shape[0]
    more = columns_at(weight.device.type, own) - own
    weight, bias = _longer(weight, more), _longer(bias, more)
    wide = torch.promote_types(hidden.dtype, torch.float32)
    grads = [
        torch.zeros_like(x, dtype=wide if i else x.dtype) if want else None
        for i, (x, want) in enumerate(zip(inputs, wants, strict=True))
    ]
    total = hidden.new_zeros((), dtype=wide)
    for first in range(0, hidden.shape[0], rows):
        part = slice(first, first + rows)
        loss, grad = _chunk_loss(
            hidden[part], weight, bias, labels[part], start, own, group, wide, transform
        )
        total += loss
        _add_gradients(grads, grad, hidden[part], weight, part)
        del grad  # as large as the next chunk's logits, which take its place
    return total, grads


def _longer(x: Tensor | None, rows: int) -> Tensor | None:
    """With so many rows of zeros more."""
    if x is None or rows == 0:
        return x
    return torch.cat((x, x.new_zeros(rows, *x.shape[1:])))


def _scale_(gradient: Tensor, factor: Tensor, rows: int) -> Tensor:
    """In place, for the head's is as large as the head. One in fewer bits goes through the factor's
    a few rows at a time: a loss scale of 2^16 does not fit into fp16."""
    if gradient.dtype == factor.dtype:
        return gradient.mul_(factor)
    for part in gradient.split(rows):
        part.copy_(part.to(factor.dtype).mul_(factor))
    return gradient


def _chunk_loss(
    hidden, weight, bias, labels, start, own, group, wide, transform
) -> tuple[Tensor, Tensor]:
    """The chunk's summed loss, and its gradient by this rank's products, [tokens, rows of weight],
    of which the first `own` are the vocabulary's."""
    logits = transform.in_place(torch.nn.functional.linear(hidden, weight, bias).to(wide))
    tokens = torch.arange(len(labels), device=labels.device)
    largest = _largest(logits[:, :own], group)
    columns = labels - start
    owned = (columns >= 0) & (columns < own)
    columns = columns.masked_fill(~owned, 0)
    # one message for both sums: the exponentials, and the target's logit, which one rank has
    target = _at(logits, tokens, columns, owned) - largest * owned
    # in place of the logits, unless the slope of a softcap asks for these
    below = logits.sub_ if transform.softcap is None else logits.sub
    exp = below(largest.unsqueeze(1)).exp_()
    exp[:, own:] = 0
    sums = torch.stack([exp.sum(1), target])
    if _size(group) > 1:
        all_reduce(sums, group)
    loss = (sums[0].log() - sums[1]).sum()
    gradient = exp.div_(sums[0].unsqueeze(1))
    if own:
        gradient[tokens, columns] -= owned.to(wide)
    return loss, transform.slope_(gradient, logits)


def _at(logits: Tensor, tokens: Tensor, columns: Tensor, owned: Tensor) -> Tensor:
    """The logit at each token's column where this rank owns it, else 0."""
    if logits.shape[1] == 0:
        return logits.new_zeros(len(tokens))
    return logits[tokens, columns] * owned


def _largest(logits: Tensor, group: ProcessGroup) -> Tensor:
    """Each token's largest logit over the whole vocabulary, [tokens]."""
    if logits.shape[1] == 0:
        largest = logits.new_full((logits.shape[0],), -torch.inf)
    else:
        largest = logits.max(1).values
    if _size(group) > 1:
        all_reduce(largest, group, dist.ReduceOp.MAX)
    return largest


def _add_gradients(grads, gradient, hidden, weight, part) -> None:
    """Add the chunk's gradients of hidden, weight and bias to the running ones."""
    of_hidden, of_weight, of_bias = grads
    narrow = gradient.to(weight.dtype)
    if of_hidden is not None:
        of_hidden[part] = narrow @ weight
    if of_weight is not None:
        of_weight += (narrow.t() @ hidden)[: len(of_weight)]
    if of_bias is not None:
        of_bias += gradient.sum(0)[: len(of_bias)]
