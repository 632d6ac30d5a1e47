"""Messages between the ranks of a pipeline.

Sends and receives run beside the computing: a receive is posted before its message is needed, and
nobody waits for a send until the end of the step. Messages of one kind from one rank to another
arrive in the order in which they were sent, so that is the order in which they must be expected.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from ..messages.boards import board_of
from ..messages.carriers import receive, send
from ..messages.mailboxes import neighbours, open_mailboxes

Groups = dict[tuple[str, bool], dist.ProcessGroup]  # by kind, and from a lower rank to a higher?
KINDS = ("F", "I")  # hidden states to the next stage, their gradients to the one before


# of each mesh's pipeline: groups are dear, and the models of a process can share them
_made: WeakKeyDictionary[dist.ProcessGroup, Groups] = WeakKeyDictionary()


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
    group: dist.ProcessGroup

    def wait(self) -> Tensor:
        self.work.wait()
        return self.tensor


class PipelineMessages:
    """What this rank sends and receives along the pipeline axis of a mesh."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.group = mesh.get_group("pp")
        self.rank = mesh.get_local_rank("pp")
        self.groups = message_groups(mesh)
        self.inbox: dict[MessageKey, Tensor | Expected] = {}
        self.sent: list[tuple[dist.Work, Tensor]] = []

    def send(self, key: MessageKey, tensor: Tensor, to: int) -> None:
        """Send to pipeline rank `to`; to oneself without a message."""
        if to == self.rank:
            self.inbox[key] = tensor
            return
        self.sent = [(work, sent) for work, sent in self.sent if not work.is_completed()]
        tensor = tensor.contiguous()
        self.sent.append((self._post(send, key, tensor, to), tensor))

    def expect(self, key: MessageKey, sender: int, make: Callable[[], Tensor]) -> None:
        """Post the receive of a message from pipeline rank `sender` into what `make` makes."""
        if sender == self.rank or key in self.inbox:
            return
        tensor = make()
        work = self._post(receive, key, tensor, sender)
        self.inbox[key] = Expected(tensor, work, self.groups[key.kind, sender < self.rank])

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

    def _post(self, call: Callable, key: MessageKey, tensor: Tensor, peer: int) -> dist.Work:
        upwards = (self.rank < peer) == (call is send)
        return call(tensor, self.groups[key.kind, upwards], peer, KINDS.index(key.kind))


def message_groups(mesh: DeviceMesh) -> Groups:
    """A group for each kind and direction: NCCL runs what two ranks exchange in one group strictly
    in turn, and would wait for ever where both send first. gloo, which needs none of this, gets the
    same, so that what is tested is what runs on GPUs. A pipeline of one rank has no groups."""
    own = mesh.get_group("pp")
    if own.size() == 1:
        return {}
    if own not in _made:
        _made[own] = _make_groups(mesh, own)
        for (_, upwards), group in _made[own].items():
            _connect(group, upwards, mesh.device_type)
            if board_of(own) is not None:
                open_mailboxes(group)
    return _made[own]


def _make_groups(mesh: DeviceMesh, own: dist.ProcessGroup) -> Groups:
    backend = own._get_backend(torch.device(mesh.device_type))
    timeout = getattr(backend.options, "_timeout", None)  # as `own`, not torch's 30 minutes
    keys = [(kind, upwards) for kind in KINDS for upwards in (False, True)]
    # other pipelines make theirs by themselves
    options = {"timeout": timeout, "group_desc": "pp", "use_local_synchronization": True}
    return {key: dist.new_group(dist.get_process_group_ranks(own), **options) for key in keys}


def _connect(group: dist.ProcessGroup, upwards: bool, device_type: str) -> None:
    """A first message between any two neighbours, first and last rank included, in one order.

    NCCL connects two ranks of a group in their first call there, which returns once the other has
    made its own: a receive that is posted early would wait for a rank that waits for this one
    (pytorch issues 108378 and 136248).
    """
    rank = group.rank()
    for low, high in neighbours(group.size()):
        if rank not in (low, high):
            continue
        hello = torch.zeros(1, device=device_type)
        if (rank == low) == upwards:
            dist.send(hello, group=group, group_dst=high if rank == low else low)
        else:
            dist.recv(hello, group=group, group_src=high if rank == low else low)
