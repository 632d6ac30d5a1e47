"""Several documents in one row; engine/models/documents.py keeps attention inside each.

Documents stay whole: rows are filled by best fit, longest first, and what remains is a shorter row.
Only a document that is longer than a row is cut, into parts of its own.

Source: Ding et al. 2024, Fewer Truncations Improve Language Modeling, section 3 (best-fit packing).
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from itertools import pairwise


def cut(length: int, seq_len: int) -> list[range]:
    """A document of `length` tokens in as few parts of at most `seq_len` as can be, about equal."""
    parts = -(-length // seq_len)
    ends = [length * part // parts for part in range(parts + 1)]
    return [range(begin, end) for begin, end in pairwise(ends)]


def pack(lengths: Sequence[int], seq_len: int) -> list[list[int]]:
    """Which documents share a row: each once, at most `seq_len` tokens in a row.

    The longest unplaced document goes where it leaves the least room, and to a new row where it
    fits into none. Depends on the arguments alone.

    Args:
        lengths: tokens of each document, from 1 to `seq_len`.
    """
    rows: list[list[int]] = []
    by_room: dict[int, list[int]] = {}  # room left -> rows
    rooms: list[int] = []  # the keys of by_room, sorted
    for document in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        length = lengths[document]
        place = bisect_left(rooms, length)
        if place == len(rooms):
            row, room = len(rows), seq_len
            rows.append([])
        else:
            room = rooms[place]
            row = by_room[room].pop()
            if not by_room[room]:
                del by_room[room], rooms[place]
        rows[row].append(document)
        left = room - length
        if left:
            if left not in by_room:
                insort(rooms, left)
            by_room.setdefault(left, []).append(row)
    return rows
