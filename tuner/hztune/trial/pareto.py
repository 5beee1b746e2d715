"""The plane of speed and memory: what is beaten in both, what covers most of it, what stands apart.

A point is (log speed, log saving of peak memory) against the control, both better the greater; the
control is at (0, 0). Pure functions, which the search uses on estimates and the confirmation on
proofs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol, TypeVar

Point = tuple[float, float]
"""Log speed and log saving of peak memory, against the control."""

CONTROL: Point = (0.0, 0.0)

LEAST_SAVING = -math.log(0.99)
"""Least difference in peak memory that an arm is kept or claimed for, log units: 1 %."""

_BELOW = 0.25
"""How far below the worst point the reference point lies, in parts of the range."""

_WORTH = 0.03
"""Least part of all that can be covered for which one more point is chosen."""


class HasPoint(Protocol):
    """Whatever has a point in the plane."""

    @property
    def point(self) -> Point:
        """Where it is."""


P = TypeVar("P", bound=HasPoint)


def dominates(one: Point, other: Point) -> bool:
    """Whether `one` is nowhere worse than `other`, and somewhere better."""
    return one != other and one[0] >= other[0] and one[1] >= other[1]


def unbeaten(candidates: Sequence[P]) -> list[P]:
    """Those that none beats in both, the fastest first.

    One that is slower has to save more by LEAST_SAVING: an additive epsilon-dominance (Laumanns,
    Thiele, Deb & Zitzler, Evol. Comput. 10, 2002), without which the scatter of memory would put
    many equals onto the front.
    """
    ahead: list[P] = []
    for candidate in sorted(candidates, key=lambda each: each.point, reverse=True):
        if not ahead or candidate.point[1] > ahead[-1].point[1] + LEAST_SAVING:
            ahead.append(candidate)
    return ahead


def spread(candidates: Sequence[P], most: int, *, beyond: Sequence[Point] = (CONTROL,)) -> list[P]:
    """Chooses those that together cover most of the plane, the fastest first.

    Greedy hypervolume subset selection (Guerreiro, Fonseca & Paquete, Evol. Comput. 24, 2016) with
    the reference point a quarter of the range below the worst, so that five evenly spaced points
    weigh the same, the ends too (Ishibuchi, Imada, Setoguchi & Nojima, Evol. Comput. 26, 2018).

    Args:
        candidates: What to choose from.
        most: How many at most; fewer where one more would add next to nothing.
        beyond: Points that are had anyway: what they cover does not count.
    """
    if not candidates:
        return []
    low = _reference([*(each.point for each in candidates), *beyond])
    had = [*beyond]
    bare = _area(had, low)
    all_of_it = _area([*had, *(each.point for each in candidates)], low) - bare
    chosen: list[P] = []
    left = list(candidates)
    while left and len(chosen) < most:
        covered = _area(had, low)
        best = max(left, key=lambda each: _area([*had, each.point], low))
        if _area([*had, best.point], low) - covered <= _WORTH * all_of_it:
            break
        left.remove(best)
        chosen.append(best)
        had.append(best.point)
    return sorted(chosen, key=lambda each: each.point, reverse=True)


def _reference(points: Sequence[Point]) -> Point:
    """A point below all of them; where all are alike along an axis, one unit below."""
    first, second = (_below([point[axis] for point in points]) for axis in (0, 1))
    return first, second


def _below(values: Sequence[float]) -> float:
    return min(values) - _BELOW * ((max(values) - min(values)) or 1.0)


def _area(points: Sequence[Point], low: Point) -> float:
    """What some points dominate, above a reference point below all of them."""
    area, reached = 0.0, low[1]
    for speed, saving in sorted(points, reverse=True):
        area += (speed - low[0]) * max(0.0, saving - reached)
        reached = max(reached, saving)
    return area
