"""The next value of a single range: evenly spread at first, then around the best one so far.

Through the best value and its neighbours on both sides goes a parabola, and its lowest place is
tried next; where that is no news, the larger side is cut by the golden section. So a smooth valley
is found to a few per cent in a dozen trials, which a sampler that must serve any space does not
promise.

Source: Brent 1973, Algorithms for Minimization without Derivatives, chapter 5.
"""

import math
from collections.abc import Sequence

SPREAD = 5  # values that are tried before anything is known
GOLDEN = (3 - math.sqrt(5)) / 2
NEWS = 0.02  # of a bracket's width: a place nearer to a known one tells nothing
FINE = 1e-3  # of the whole range: a bracket of this width is as good as a point


def next_share(known: Sequence[tuple[float, float]]) -> float:
    """Where in a range from 0 to 1 to look next.

    Args:
        known: places and what was found there, to be made small; infinite where a trial failed.
    """
    if len(known) < SPREAD:
        return (len(known) + 0.5) / SPREAD
    places = sorted(known)
    best = min(range(len(places)), key=lambda index: places[index][1])
    left = places[best - 1] if best else None
    right = places[best + 1] if best + 1 < len(places) else None
    if left is None or right is None:  # the best is the outermost: look towards the range's end
        end = 0.0 if left is None else 1.0
        here = places[best][0]
        return end if abs(here - end) < FINE else (here + end) / 2
    return _inside(left, places[best], right)


def _inside(
    left: tuple[float, float], best: tuple[float, float], right: tuple[float, float]
) -> float:
    """A place between the neighbours of the best one."""
    width = right[0] - left[0]
    place = _lowest(left, best, right)
    apart = NEWS * width
    if place is not None and all(abs(place - known) >= apart for known, _ in (left, best, right)):
        return place
    side = right if right[0] - best[0] > best[0] - left[0] else left
    return best[0] + GOLDEN * (side[0] - best[0])


def _lowest(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> float | None:
    """Where the parabola through three places is lowest; None where it has no such place."""
    if not all(math.isfinite(value) for _, value in (a, b, c)):
        return None
    left = (b[0] - a[0]) * (b[1] - c[1])
    right = (b[0] - c[0]) * (b[1] - a[1])
    bend = 2 * (left - right)
    if bend == 0:
        return None
    place = b[0] - ((b[0] - a[0]) * left - (b[0] - c[0]) * right) / bend
    return place if a[0] < place < c[0] else None
