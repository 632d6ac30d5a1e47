"""Sets of time: sorted lists of (start, end) that do not touch, in seconds."""

from collections.abc import Iterable

Intervals = list[tuple[float, float]]


def union(spans: Iterable[tuple[float, float]], gap: float = 0.0) -> Intervals:
    """All time that is in any of the spans; what lies up to `gap` apart becomes one."""
    merged: Intervals = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1] + gap:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        elif end > start:
            merged.append((start, end))
    return merged


def without(first: Intervals, other: Intervals) -> Intervals:
    """The time of `first` that is not in `other`."""
    left: Intervals = []
    at = 0
    for start, end in first:
        while at < len(other) and other[at][1] <= start:
            at += 1
        here = at
        while here < len(other) and other[here][0] < end:
            if other[here][0] > start:
                left.append((start, other[here][0]))
            start = max(start, other[here][1])
            here += 1
        if start < end:
            left.append((start, end))
    return left


def both(first: Intervals, other: Intervals) -> Intervals:
    """The time that is in both."""
    return without(first, without(first, other))


def clip(spans: Iterable[tuple[float, float]], start: float, end: float) -> Intervals:
    """What of the spans lies between `start` and `end`."""
    inside = ((max(a, start), min(b, end)) for a, b in spans)
    return union((a, b) for a, b in inside if a < b)


def length(spans: Iterable[tuple[float, float]]) -> float:
    """Seconds in the spans together."""
    return sum(end - start for start, end in spans)
