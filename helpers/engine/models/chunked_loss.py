"""Cross-entropy over a vocabulary that is split over ranks, a chunk of tokens at a time.

With logits z over the whole vocabulary and target t, the loss of a token is

    log sum_v exp(z_v - m) - (z_t - m),     m = max_v z_v

Each rank has its own columns of z. Two small all-reduces a chunk make m, the sum and z_t whole;
the logits themselves are never gathered. The gradient, softmax(z) - onehot(t), needs nothing more,
so it is taken in the same pass and the chunk's logits are dropped at once.

Sources: Shoeybi et al. 2019, Megatron-LM, section 3 (parallel cross-entropy); Wijmans et al. 2024,
Cut Your Losses in Large-Vocabulary Language Models, section 4 (loss without the logits in memory).
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

# Logits held at a time: small beside a layer's activations, large enough to keep the cores busy.
CHUNK_BYTES = 64 * 2**20


def token_loss(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    start: int,
    vocabulary: int,
    group: ProcessGroup,
) -> Tensor:
    """Summed cross-entropy of tokens, for this rank's columns of the vocabulary.

    Args:
        hidden: [tokens, hidden], the same on every rank of `group`.
        weight: [vocabulary/n, hidden]; bias: [vocabulary/n] or None.
        labels: [tokens], global token ids, none ignored.
        start: the token id of row 0 of `weight`.
        vocabulary: token ids over all ranks.
        group: the ranks that share the vocabulary.

    Returns:
        The sum over tokens, a scalar in at least float32, the same on every rank. The gradient of
        `hidden` is this rank's partial sum: it is made whole where `hidden` crossed the boundary.
    """
    # the same on every rank, whatever the size of its shard: each chunk is a collective
    rows = max(1, CHUNK_BYTES * group.size() // (vocabulary * 4))
    return _TokenLoss.apply(hidden, weight, bias, labels, start, rows, group)


class _TokenLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, bias, labels, start, rows, group):
        wide = torch.promote_types(hidden.dtype, torch.float32)
        wants = [ctx.needs_input_grad[i] for i in range(3)]
        grads = [
            torch.zeros_like(x, dtype=wide if i else x.dtype) if want else None
            for i, (x, want) in enumerate(zip((hidden, weight, bias), wants, strict=True))
        ]
        total = hidden.new_zeros((), dtype=wide)
        for first in range(0, hidden.shape[0], rows):
            part = slice(first, first + rows)
            loss, grad = _chunk_loss(hidden[part], weight, bias, labels[part], start, group, wide)
            total += loss
            _add_gradients(grads, grad, hidden[part], weight, part)
        ctx.dtype = hidden.dtype
        ctx.save_for_backward(*grads)
        return total

    @staticmethod
    def backward(ctx, grad_total):
        grads = (
            None if g is None else _scaled(g, grad_total).to(ctx.dtype) for g in ctx.saved_tensors
        )
        return *grads, None, None, None, None


def _scaled(gradient: Tensor, factor: Tensor) -> Tensor:
    """In place if it can be, for the head's is as large as the head; a loss scale of 2^16 does not
    fit into fp16."""
    if gradient.dtype == factor.dtype:
        return gradient.mul_(factor)
    return gradient.to(factor.dtype) * factor


def _chunk_loss(hidden, weight, bias, labels, start, group, wide) -> tuple[Tensor, Tensor]:
    """The chunk's summed loss, and its gradient by this rank's logits, [tokens, vocabulary/n]."""
    logits = torch.nn.functional.linear(hidden, weight, bias).to(wide)
    tokens = torch.arange(len(labels), device=labels.device)
    largest = _largest(logits, group)
    exp = (logits - largest.unsqueeze(1)).exp_()
    columns = labels - start
    owned = (columns >= 0) & (columns < weight.shape[0])
    columns = columns.masked_fill(~owned, 0)
    # one message for both sums: the exponentials, and the target's logit, which one rank has
    target = _at(logits, tokens, columns, owned) - largest * owned
    sums = torch.stack([exp.sum(1), target])
    if group.size() > 1:
        dist.all_reduce(sums, group=group)
    loss = (sums[0].log() - sums[1]).sum()
    gradient = exp.div_(sums[0].unsqueeze(1))
    if weight.shape[0]:
        gradient[tokens, columns] -= owned.to(wide)
    return loss, gradient


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
    if group.size() > 1:
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    return largest


def _add_gradients(grads, gradient, hidden, weight, part) -> None:
    """Add the chunk's gradients of hidden, weight and bias to the running ones."""
    of_hidden, of_weight, of_bias = grads
    narrow = gradient.to(weight.dtype)
    if of_hidden is not None:
        of_hidden[part] = narrow @ weight
    if of_weight is not None:
        of_weight += narrow.t() @ hidden
    if of_bias is not None:
        of_bias += gradient.sum(0)
