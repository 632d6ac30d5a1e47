"""Messages between the ranks of a pipeline.

Sends and receives run beside the computing: a receive is posted before its message is needed, and
nobody waits for a send until the end of the step. Messages of one kind from one rank to another
arrive in the order in which they were sent, so that is the order in which they must be expected.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

KINDS = ("F", "I")  # hidden states to the next stage, their gradients to the one before


class MessageKey(NamedTuple):
    """What a message is: the result of this kind of action, for that stage and micro-batch."""

    kind: str
    stage: int
    microbatch: int


@dataclass
class Expected:
    """A receive that was posted."""

    tensor: Tensor
    work: dist.Work

    def wait(self) -> Tensor:
        self.work.wait()
        return self.tensor


class PipelineMessages:
    """What this rank sends and receives along the pipeline axis of a mesh."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.group = mesh.get_group("pp")
        self.rank = mesh.get_local_rank("pp")
        self.groups = _groups(mesh)
        self.inbox: dict[MessageKey, Tensor | Expected] = {}
        self.sent: list[tuple[dist.Work, Tensor]] = []

    def send(self, key: MessageKey, tensor: Tensor, to: int) -> None:
        """Send to pipeline rank `to`; to oneself without a message."""
        if to == self.rank:
            self.inbox[key] = tensor
            return
        self.sent = [(work, sent) for work, sent in self.sent if not work.is_completed()]
        tensor = tensor.contiguous()
        self.sent.append((self._post(dist.isend, key, tensor, to), tensor))

    def expect(self, key: MessageKey, sender: int, make: Callable[[], Tensor]) -> None:
        """Post the receive of a message from pipeline rank `sender` into what `make` makes."""
        if sender == self.rank or key in self.inbox:
            return
        tensor = make()
        self.inbox[key] = Expected(tensor, self._post(dist.irecv, key, tensor, sender))

    def take(self, key: MessageKey) -> Tensor:
        """The message, once it is here."""
        message = self.inbox.pop(key)
        return message.wait() if isinstance(message, Expected) else message

    def finish(self) -> None:
        """Wait until everything that was sent has left."""
        for work, _ in self.sent:
            work.wait()
        self.sent.clear()

    def swap(self, tensor: Tensor, peer: int) -> Tensor:
        """Give pipeline rank `peer` a tensor and get its own of the same shape."""
        theirs = torch.empty_like(tensor)
        low = self.rank < peer
        for turn in (low, not low):  # one sends first, so that no backend waits for ever
            if turn:
                dist.send(tensor, group=self.group, group_dst=peer)
            else:
                dist.recv(theirs, group=self.group, group_src=peer)
        return theirs

    def _post(self, operation: Callable, key: MessageKey, tensor: Tensor, peer: int) -> dist.Work:
        upwards = (self.rank < peer) == (operation is dist.isend)
        group = self.groups[key.kind, upwards]
        other = {"group_dst": peer} if operation is dist.isend else {"group_src": peer}
        return operation(tensor, group=group, tag=KINDS.index(key.kind), **other)


def _groups(mesh: DeviceMesh) -> dict[tuple[str, bool], dist.ProcessGroup]:
    """A group for each kind and direction. gloo tells kinds apart by tags and directions by itself;
    NCCL runs what two ranks exchange in one group strictly in turn, and would wait for ever where
    both send first."""
    own = mesh.get_group("pp")
    keys = [(kind, upwards) for kind in KINDS for upwards in (False, True)]
    if mesh.device_type == "cpu" or own.size() == 1:
        return dict.fromkeys(keys, own)
    axis = mesh.mesh_dim_names.index("pp")
    lines = mesh.mesh.movedim(axis, -1).reshape(-1, own.size()).tolist()
    own_line = next(i for i, ranks in enumerate(lines) if dist.get_rank() in ranks)
    return {key: [dist.new_group(ranks) for ranks in lines][own_line] for key in keys}
