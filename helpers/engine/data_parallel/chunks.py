"""Each rank's chunk of every tensor along dim 0, and messages that are made of such chunks.

    rank_major([a, b], 2)     a's first half, b's first half | a's second half, b's second half

Equal pieces of such a message hold what belongs to each rank, so one reduce-scatter sums all of it
and one all-gather brings it back.
"""

from torch import Tensor
from torch.distributed import ProcessGroup

from ..messages.carriers import scatter_single
from ..tensor.shards import chunk


def padded_chunk(tensor: Tensor, n: int) -> int:
    """Elements of the largest of `n` chunks along dim 0."""
    rows = -(-tensor.shape[0] // n)
    return rows * tensor[:1].numel() if tensor.shape[0] else 0


def rank_major(tensors: list[Tensor], n: int) -> Tensor:
    """Tensors as one message: rank 0's chunks of all of them, then rank 1's, ..., each padded to
    the largest chunk, so that equal pieces of the message hold what belongs to each rank."""
    sizes = [padded_chunk(tensor, n) for tensor in tensors]
    if len(tensors) == 1 and tensors[0].numel() == n * sizes[0]:
        return tensors[0].flatten()  # lies so already: a large matrix is a message of its own
    message = tensors[0].new_zeros(n, sum(sizes))
    for tensor, piece in zip(tensors, message.split(sizes, dim=1), strict=True):
        if tensor.numel() == piece.numel():
            piece.copy_(tensor.view(n, -1))
            continue
        padded = tensor.new_zeros(piece.numel())
        padded[: tensor.numel()] = tensor.flatten()
        piece.copy_(padded.view(n, -1))
    return message.flatten()


def scatter_rows(tensor: Tensor, group: ProcessGroup) -> Tensor:
    """The sum over the group, of which each rank keeps its chunk along dim 0."""
    n = group.size()
    message = rank_major([tensor.contiguous()], n)
    piece = message.new_empty(message.numel() // n)
    scatter_single(piece, message, group=group)
    shape = chunk(tensor, 0, n, group.rank()).shape
    return piece[: shape.numel()].view(shape)


def from_rank_major(message: Tensor, targets: list[Tensor], n: int) -> None:
    """The transpose of `rank_major`: write all ranks' chunks into the whole tensors."""
    sizes = [padded_chunk(tensor, n) for tensor in targets]
    for target, piece in zip(targets, message.view(n, -1).split(sizes, dim=1), strict=True):
        if target.numel() == piece.numel():
            target.view(n, -1).copy_(piece)
        else:
            target.copy_(piece.reshape(-1)[: target.numel()].view(target.shape))
