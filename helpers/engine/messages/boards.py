"""Which groups have a board: it is opened at the group's first message."""

from weakref import WeakKeyDictionary

from torch import Tensor
from torch.distributed import ProcessGroup

from .shared_files import open_shared
from .shared_memory import Board, board_bytes

_boards: WeakKeyDictionary[ProcessGroup, Board | None] = WeakKeyDictionary()


def board_of(group: ProcessGroup) -> Board | None:
    """The group's board; None where gloo, or NCCL, carries its messages. Every rank must ask."""
    if group not in _boards:
        _boards[group] = open_shared(
            group,
            "board",
            board_bytes(group.size()),
            lambda pids, memory, wait_s: Board(group.rank(), pids, memory, wait_s),
        )
    return _boards[group]


def without_board(group: ProcessGroup) -> None:
    """Let gloo carry the group's messages. Every rank must call it."""
    _boards[group] = None


def calls_on_board(group: ProcessGroup) -> int:
    """How many collectives of the group this rank has begun there."""
    board = _boards.get(group)
    return board.calls if board else 0


def memory_of_boards() -> list[Tensor]:
    """What this process has mapped for them."""
    return [board.slots for board in _boards.values() if board]
