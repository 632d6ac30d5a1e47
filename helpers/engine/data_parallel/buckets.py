"""Sum gradients over data ranks while the backward pass still runs.

    layer 4  3  2  1          backward makes gradients from the last layer to the first;
    [bucket 0][bucket 1] ..   when a bucket's are all there, its sum starts in the background

DDP all-reduces a bucket: every rank gets every sum. ZeRO-1 and ZeRO-2 reduce-scatter it: a rank
gets the sums of its chunk of each parameter alone, and what it sent is freed when they are there.
ZeRO-2 does so in every micro-batch; DDP and ZeRO-1 wait for the last one, so they send less often.

Sources: Li et al. 2020, PyTorch Distributed, section 3.2 (buckets, overlap); Rajbhandari et al.
2020, ZeRO, section 5.
"""

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from weakref import WeakMethod

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from ..messages.carriers import all_reduce, scatter_single
from ..tensor.shards import chunk, local
from .chunks import padded_chunk, rank_major
from .ddp_hooks import GradBucket, Hook
from .given import tell

BUCKET_BYTES = 25 * 2**20  # torch DDP's default


@dataclass
class Bucket:
    """Some parameters whose gradients travel in one message.

    stage: of the pipeline rank's, counted from its last.
    waiting: names of those whose gradients this backward has not made yet.
    flat: what was sent. result: what comes back, where it has a place of its own.
    """

    index: int
    names: list[str]
    parameters: list[Tensor]
    stage: int = 0
    waiting: set[str] = field(default_factory=set)
    flat: Tensor | None = None
    result: Tensor | None = None
    work: object = None
    last: bool = False

    def parts(self, whole: Tensor) -> list[Tensor]:
        """What of a flat tensor is each parameter's, in its shape: views."""
        parameters = [local(parameter) for parameter in self.parameters]
        pieces = whole.split([parameter.numel() for parameter in parameters])
        return [piece.view(p.shape) for piece, p in zip(pieces, parameters, strict=True)]


class Buckets:
    """What DDP and ZeRO share: a full bucket is sent at once, in one order on every rank.

    Args:
        parameters: by name, in the order of the forward pass.
        stages: of each the number of its stage, counted from the rank's last. No bucket has
            parameters of two, whose gradients come in different backwards.
        dtype: in which ranks send their gradients. Micro-batches are added up in at least float32.

    Attributes:
        given: names of the parameters that had a gradient on this rank, since sums were taken.
    """

    most_under_way: int | None = None

    def __init__(
        self, parameters: dict[str, Tensor], stages: dict[str, int], dtype: torch.dtype
    ) -> None:
        self.dtype, self.wide = dtype, torch.promote_types(dtype, torch.float32)
        self.buckets = _fill(parameters, stages, dtype)
        self.bucket_of = {name: bucket for bucket in self.buckets for name in bucket.names}
        self.sums: dict[str, Tensor] = {}
        self.given: set[str] = set()
        self.unsent: dict[str, Tensor] = {}  # of earlier micro-batches, in `wide`
        self.sends = self.last = True
        self.next_index = 0
        self.stages: set[int] = set()  # whose backward this is
        self.under_way: deque[Bucket] = deque()
        on_gradient = WeakMethod(self._on_gradient)
        for name, parameter in parameters.items():
            parameter.register_post_accumulate_grad_hook(partial(tell, on_gradient, name))

    def start(self, bucket: Bucket, gradients: list[Tensor]) -> None:
        """Send a bucket's gradients; sets its `flat` and its `work`."""
        raise NotImplementedError

    def receive(self, bucket: Bucket) -> list[Tensor]:
        """Wait for a bucket; what this rank gets of each of its parameters' sums."""
        raise NotImplementedError

    def begin(self, sends: bool, last: bool) -> None:
        """Before a backward.

        Args:
            sends: sum its gradients now; else they are added to those of the next one that does.
            last: the step's sums are complete after it, so a bucket is sent whatever is in it.
        """
        self.sends, self.last = sends, last
        self.next_index = 0
        self.stages.clear()
        for bucket in self.buckets:
            bucket.waiting = set(bucket.names)

    def end(self) -> None:
        """After a backward: wait for what is under way, take in what came back."""
        if not self.sends:
            return
        for bucket in self.buckets:
            bucket.waiting.clear()  # a parameter without a gradient adds zeros
        self._send_full()
        while self.under_way:
            self._collect(self.under_way.popleft())

    def add(self, name: str, gradient: Tensor) -> None:
        """Add to a parameter's gradient what its backward did not give; `end` sends it."""
        if name in self.unsent:
            self.unsent[name].add_(gradient)  # not copied into the wider dtype first
        else:
            self.unsent[name] = gradient.to(self.wide)

    def take(self) -> dict[str, Tensor]:
        """The sums by name, whole or this rank's chunk; forgets them."""
        sums, self.sums = self.sums, {}
        self.given.clear()
        return sums

    def alive_bytes(self) -> int:
        """Bytes of the gradients that are alive."""
        waiting = [local(p.grad) for b in self.buckets for p in b.parameters if p.grad is not None]
        everything = [*waiting, *self.sums.values(), *self.unsent.values()]
        return sum(t.nbytes for t in everything)

    def _on_gradient(self, name: str, parameter: Tensor) -> None:
        self.stages.add(self.bucket_of[name].stage)
        if self.sends:
            self.bucket_of[name].waiting.discard(name)
            self._send_full()
        elif parameter.grad is not None and parameter.grad.dtype != self.wide:
            # low-precision gradients would lose small terms if they were added up as they are
            self.unsent[name] = self._gradient(name, parameter).to(self.wide)
            parameter.grad = None

    def _gradient(self, name: str, parameter: Tensor) -> Tensor:
        """All micro-batches' gradient of a parameter that was not sent yet."""
        earlier = self.unsent.pop(name, None)
        if parameter.grad is None and earlier is None:
            return torch.zeros_like(local(parameter.detach()))
        self.given.add(name)
        if parameter.grad is None:
            return earlier
        gradient = local(parameter.grad)
        return gradient if earlier is None else earlier.add_(gradient)

    def _send_full(self) -> None:
        """Send the full buckets that are next: messages are matched by their order."""
        for bucket in self.buckets[self.next_index :]:
            if bucket.waiting:
                return
            self.next_index += 1
            if self._has_more(bucket):
                self._send(bucket)

    def _has_more(self, bucket: Bucket) -> bool:
        """Has a bucket something to send, which it has not in another stage's backward? In a step's
        last one all of its stage are sent, and what never was: a parameter may have a gradient on
        one rank alone, and all send alike."""
        if any(parameter.grad is not None for parameter in bucket.parameters):
            return True
        sent = all(name in self.sums and name not in self.unsent for name in bucket.names)
        return self.last and (bucket.stage in self.stages or not sent)

    def _send(self, bucket: Bucket) -> None:
        named = zip(bucket.names, bucket.parameters, strict=True)
        gradients = [self._gradient(name, parameter).to(self.dtype) for name, parameter in named]
        for parameter in bucket.parameters:
            parameter.grad = None
        self.start(bucket, gradients)
        self.under_way.append(bucket)
        if self.most_under_way is not None and len(self.under_way) > self.most_under_way:
            self._collect(self.under_way.popleft())

    def _collect(self, bucket: Bucket) -> None:
        for name, total in zip(bucket.names, self.receive(bucket), strict=True):
            earlier = self.sums.get(name)
            self.sums[name] = total.to(self.wide) if earlier is None else earlier.add_(total)
        bucket.flat = bucket.result = bucket.work = None


class AllReduced(Buckets):
    """DDP: every rank of `group` gets every sum, in the place of what it sent.

    Args:
        hook: one of torch's DDP communication hooks, in place of the plain all-reduce.
    """

    def __init__(
        self,
        parameters: dict[str, Tensor],
        stages: dict[str, int],
        dtype: torch.dtype,
        group: ProcessGroup,
        hook: Hook | None = None,
    ) -> None:
        super().__init__(parameters, stages, dtype)
        self.group, self.hook = group, hook

    def start(self, bucket: Bucket, gradients: list[Tensor]) -> None:
        flat = [gradient.flatten() for gradient in gradients]
        bucket.flat = torch.cat(flat) if len(flat) > 1 else flat[0]
        if self.hook is not None:
            bucket.work = self.hook(self.group, GradBucket(bucket))
        else:
            bucket.work = all_reduce(bucket.flat, self.group, async_op=True)

    def receive(self, bucket: Bucket) -> list[Tensor]:
        answer = bucket.work.wait()
        if self.hook is None:
            return bucket.parts(bucket.flat)
        # torch's hooks return the mean over the group; the loss is divided by all tokens already
        mean = answer[0] if isinstance(answer, list) else answer
        return bucket.parts(mean.to(self.wide) * self.group.size())


class ReduceScattered(Buckets):
    """ZeRO-1 and ZeRO-2: a rank of `shard` gets the sums of its chunk of each parameter alone.

    Args:
        replicate: ranks beyond these that hold the same chunks.
    """

    most_under_way = 2  # one is being summed, the next stands ready for the link

    def __init__(
        self,
        parameters: dict[str, Tensor],
        stages: dict[str, int],
        dtype: torch.dtype,
        shard: ProcessGroup,
        replicate: ProcessGroup,
    ) -> None:
        super().__init__(parameters, stages, dtype)
        self.shard, self.replicate = shard, replicate

    def start(self, bucket: Bucket, gradients: list[Tensor]) -> None:
        bucket.flat = rank_major(gradients, self.shard.size())
        bucket.result = bucket.flat.new_empty(bucket.flat.numel() // self.shard.size())
        bucket.work = scatter_single(bucket.result, bucket.flat, group=self.shard, async_op=True)

    def receive(self, bucket: Bucket) -> list[Tensor]:
        bucket.work.wait()
        if self.replicate.size() > 1:
            all_reduce(bucket.result, self.replicate)
        n, rank = self.shard.size(), self.shard.rank()
        sizes = [padded_chunk(local(p), n) for p in bucket.parameters]
        shapes = [chunk(local(p), 0, n, rank).shape for p in bucket.parameters]
        pieces = bucket.result.split(sizes)
        return [p[: s.numel()].view(s) for p, s in zip(pieces, shapes, strict=True)]


def _fill(
    parameters: dict[str, Tensor], stages: dict[str, int], dtype: torch.dtype
) -> list[Bucket]:
    """Buckets of about BUCKET_BYTES, stage by stage, from the last parameter to the first."""
    buckets: list[Bucket] = []
    filled_bytes, last_first = 0, reversed(parameters)
    for name in sorted(last_first, key=stages.__getitem__):
        parameter, stage = parameters[name], stages[name]
        size_bytes = local(parameter).numel() * dtype.itemsize
        full = filled_bytes and filled_bytes + size_bytes > BUCKET_BYTES
        if not buckets or full or buckets[-1].stage != stage:
            buckets.append(Bucket(len(buckets), [], [], stage))
            filled_bytes = 0
        buckets[-1].names.append(name)
        buckets[-1].parameters.append(parameter)
        filled_bytes += size_bytes
    if buckets:
        buckets[-1].last = True
    return buckets
