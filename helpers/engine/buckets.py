"""Sum gradients over data ranks while the backward pass still runs.

    layer 4  3  2  1          backward makes gradients from the last layer to the first;
    [bucket 0][bucket 1] ..   when a bucket's are all there, its sum starts in the background

Stage 0 (DDP) all-reduces a bucket: every rank gets every sum. Stages 1 and 2 (ZeRO) reduce-scatter
it: a rank gets the sums of its chunk of each parameter alone. What it sent is freed when they are
there, with no more than AHEAD buckets on their way. Stage 2 does so in every micro-batch; stages 0
and 1 wait for the last one, so they send less often.

Sources: Li et al. 2020, PyTorch Distributed, section 3.2 (buckets, overlap); Rajbhandari et al.
2020, ZeRO, section 5.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from helpers.engine.exchange import gather_single, scatter_single
from helpers.engine.parts import chunk_rows
from helpers.engine.tensor import local

BUCKET_BYTES = 25 * 2**20  # torch DDP's default
AHEAD = 2  # one is being summed, the next stands ready for the link

Hook = Callable[[object, "Bucket"], "torch.futures.Future[Tensor]"]


@dataclass
class Bucket:
    """Some parameters whose gradients travel in one message."""

    index: int
    names: list[str]
    parameters: list[Tensor]
    waiting: set[str] = field(default_factory=set)
    flat: Tensor | None = None  # what was sent
    result: Tensor | None = None  # what came back
    work: object = None
    last: bool = False

    # torch's communication hooks ask a bucket these questions
    def buffer(self) -> Tensor:
        return self.flat

    def is_last(self) -> bool:
        return self.last


class Buckets:
    """The gradients of a model on their way to the data ranks' sums.

    Args:
        parameters: by name, in the order of the forward pass.
        shard: the ranks among which ZeRO divides the sums; replicate: the ranks beyond these.
        everyone: both together, for stage 0.
        stage: 0, 1 or 2.
        dtype: in which sums are taken.
        hook: one of torch's DDP communication hooks, in place of the plain all-reduce of stage 0.
        early: may stage 2 send after each micro-batch? Not where weight gradients come later.
    """

    def __init__(
        self,
        parameters: dict[str, Tensor],
        shard: ProcessGroup,
        replicate: ProcessGroup,
        everyone: ProcessGroup,
        stage: int,
        dtype: torch.dtype,
        hook: Hook | None = None,
        early: bool = True,
    ) -> None:
        self.shard, self.replicate, self.everyone = shard, replicate, everyone
        self.stage, self.dtype, self.hook = stage, dtype, hook
        self.each_time = stage == 2 and early
        self.buckets = _fill(parameters, dtype)
        self.home = {name: bucket for bucket in self.buckets for name in bucket.names}
        self.sums: dict[str, Tensor] = {}
        self.held: dict[str, Tensor] = {}  # of earlier micro-batches, in `dtype`, not yet sent
        self.complete = True
        self.next_index = 0
        self.under_way: deque[Bucket] = deque()
        for name, parameter in parameters.items():
            parameter.register_post_accumulate_grad_hook(self._on_gradient(name))

    def begin(self, complete: bool) -> None:
        """Before a micro-batch's backward; after a `complete` one the sums are wanted."""
        self.complete = complete
        self.next_index = 0
        for bucket in self.buckets:
            bucket.waiting = set(bucket.names)

    def end(self) -> None:
        """After a micro-batch's backward: wait for what is under way, take in what came back."""
        if not self._sends:
            return
        for bucket in self.buckets:
            bucket.waiting.clear()  # a parameter without a gradient adds zeros
        self._launch_ready()
        while self.under_way:
            self._collect(self.under_way.popleft())

    def add(self, name: str, gradient: Tensor) -> None:
        """Add to a parameter's gradient what its backward did not give; `end` sends it."""
        if name in self.held:
            self.held[name].add_(gradient)  # not copied into the dtype of sums first
        else:
            self.held[name] = gradient.to(self.dtype)

    def take(self) -> dict[str, Tensor]:
        """The sums by name, whole or this rank's chunk; forgets them."""
        sums, self.sums = self.sums, {}
        return sums

    def alive_bytes(self) -> int:
        """Bytes of the gradients that are alive."""
        waiting = [local(p.grad) for b in self.buckets for p in b.parameters if p.grad is not None]
        everything = [*waiting, *self.sums.values(), *self.held.values()]
        return sum(t.numel() * t.element_size() for t in everything)

    def _gradient(self, name: str, parameter: Tensor) -> Tensor:
        """All micro-batches' gradient of a parameter that was not sent yet, in `dtype`."""
        held = self.held.pop(name, None)
        if parameter.grad is None:
            zeros = torch.zeros_like(local(parameter.detach()), dtype=self.dtype)
            return zeros if held is None else held
        gradient = local(parameter.grad)
        return gradient.to(self.dtype) if held is None else held.add_(gradient)

    @property
    def _sends(self) -> bool:
        return self.complete or self.each_time

    def _on_gradient(self, name: str) -> Callable[[Tensor], None]:
        def ready(parameter: Tensor) -> None:
            if self._sends:
                self.home[name].waiting.discard(name)
                self._launch_ready()
            elif parameter.grad is not None and parameter.grad.dtype != self.dtype:
                # low-precision gradients would lose small terms if they were added up as they are
                self.held[name] = self._gradient(name, parameter)
                parameter.grad = None

        return ready

    def _launch_ready(self) -> None:
        """Send full buckets, in one order on every rank: messages are matched by order."""
        while self.next_index < len(self.buckets):
            bucket = self.buckets[self.next_index]
            if bucket.waiting:
                return
            if self.complete or self._has_gradient(bucket):
                self._launch(bucket)
                self.under_way.append(bucket)
            self.next_index += 1
            # the sum of stage 0 takes the place of what was sent: there is nothing to free
            if self.stage and len(self.under_way) > AHEAD:
                self._collect(self.under_way.popleft())

    def _has_gradient(self, bucket: Bucket) -> bool:
        """Not in the backward of another stage of this rank."""
        return any(parameter.grad is not None for parameter in bucket.parameters)

    def _launch(self, bucket: Bucket) -> None:
        named = zip(bucket.names, bucket.parameters, strict=True)
        gradients = [self._gradient(name, parameter) for name, parameter in named]
        for parameter in bucket.parameters:
            parameter.grad = None
        if self.stage == 0:
            flat = [g.flatten() for g in gradients]
            bucket.flat = torch.cat(flat) if len(flat) > 1 else flat[0]
            if self.hook is not None:
                bucket.work = self.hook(self.everyone, bucket)
                return
            bucket.result = bucket.flat
            bucket.work = dist.all_reduce(bucket.flat, group=self.everyone, async_op=True)
            return
        bucket.flat = rank_major(gradients, self.shard.size())
        bucket.result = bucket.flat.new_empty(bucket.flat.numel() // self.shard.size())
        bucket.work = scatter_single(bucket.result, bucket.flat, group=self.shard, async_op=True)

    def _collect(self, bucket: Bucket) -> None:
        answer = bucket.work.wait()
        if self.stage == 0:
            whole = bucket.result if self.hook is None else _mean_to_sum(answer, self.everyone)
            pieces = whole.split([p.numel() for p in map(local, bucket.parameters)])
            shapes = [local(p).shape for p in bucket.parameters]
        else:
            if self.replicate.size() > 1:
                dist.all_reduce(bucket.result, group=self.replicate)
            pieces, shapes = self._my_chunks(bucket)
        for name, piece, shape in zip(bucket.names, pieces, shapes, strict=True):
            total = piece.view(shape)
            self.sums[name] = self.sums[name].add_(total) if name in self.sums else total
        bucket.flat = bucket.result = bucket.work = None

    def _my_chunks(self, bucket: Bucket) -> tuple[list[Tensor], list[torch.Size]]:
        n, rank = self.shard.size(), self.shard.rank()
        sizes = [padded_chunk(local(p), n) for p in bucket.parameters]
        shapes = [chunk_rows(local(p), n, rank).shape for p in bucket.parameters]
        pieces = bucket.result.split(sizes)
        return [p[: s.numel()] for p, s in zip(pieces, shapes, strict=True)], shapes


def _fill(parameters: dict[str, Tensor], dtype: torch.dtype) -> list[Bucket]:
    """Buckets of about BUCKET_BYTES, from the last parameter to the first."""
    buckets = [Bucket(0, [], [])]
    held = 0
    for name, parameter in reversed(parameters.items()):
        size = local(parameter).numel() * dtype.itemsize
        if held and held + size > BUCKET_BYTES:
            buckets.append(Bucket(len(buckets), [], []))
            held = 0
        buckets[-1].names.append(name)
        buckets[-1].parameters.append(parameter)
        held += size
    buckets[-1].last = True
    return buckets


def _mean_to_sum(answer: Tensor | list[Tensor], group: ProcessGroup) -> Tensor:
    """torch's hooks return the mean over the group; the loss is divided by all tokens already."""
    mean = answer[0] if isinstance(answer, list) else answer
    return mean * group.size()


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
    mine = message.new_empty(message.numel() // n)
    scatter_single(mine, message, group=group)
    shape = chunk_rows(tensor, n, group.rank()).shape
    return mine[: shape.numel()].view(shape)


def from_rank_major(message: Tensor, targets: list[Tensor], n: int) -> None:
    """The transpose of `rank_major`: write all ranks' chunks into the whole tensors."""
    sizes = [padded_chunk(tensor, n) for tensor in targets]
    for target, piece in zip(targets, message.view(n, -1).split(sizes, dim=1), strict=True):
        if target.numel() == piece.numel():
            target.view(n, -1).copy_(piece)
        else:
            target.copy_(piece.reshape(-1)[: target.numel()].view(target.shape))


def gather_chunks(chunks: list[Tensor], targets: list[Tensor], group: ProcessGroup) -> None:
    """Make whole tensors of the chunk that each rank of the group holds of each."""
    n = group.size()
    sizes = [padded_chunk(tensor, n) for tensor in targets]
    mine = targets[0].new_zeros(sum(sizes))
    for chunk, place in zip(chunks, mine.split(sizes), strict=True):
        place[: chunk.numel()] = chunk.flatten()
    message = mine.new_empty(n * mine.numel())
    gather_single(message, mine, group=group)
    from_rank_major(message, targets, n)
