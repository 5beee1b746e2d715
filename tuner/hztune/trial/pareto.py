"""The plane of speed and memory: what is beaten in both, what covers most of it, what stands apart.

A place is (log speed, log saving of peak memory) against the control, both better the greater; the
control is at (0, 0). Pure functions, which the search uses on estimates and the confirmation on
proofs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol, TypeVar

Place = tuple[float, float]
"""Log speed and log saving of peak memory, against the control."""

CONTROL: Place = (0.0, 0.0)

LEAST_SAVING = -math.log(0.99)
"""Least difference in peak memory that an arm is kept or claimed for, log units: 1 %."""

_BELOW = 0.25
"""How far below the worst place the reference point lies, in parts of the range."""

_WORTH = 0.03
"""Least part of all that can be covered for which one more place is chosen."""


class Placed(Protocol):
    """Whatever has a place."""

    @property
    def place(self) -> Place:
        """Where it is."""


P = TypeVar("P", bound=Placed)


def dominates(one: Place, other: Place) -> bool:
    """Whether `one` is nowhere worse than `other`, and somewhere better."""
    return one != other and one[0] >= other[0] and one[1] >= other[1]


def unbeaten(points: Sequence[P]) -> list[P]:
    """Those that none beats in both, the fastest first.

    One that is slower has to save more by LEAST_SAVING: an additive epsilon-dominance (Laumanns,
    Thiele, Deb & Zitzler, Evol. Comput. 10, 2002), without which the scatter of memory would put
    many equals onto the front.
    """
    ahead: list[P] = []
    for point in sorted(points, key=lambda each: each.place, reverse=True):
        if not ahead or point.place[1] > ahead[-1].place[1] + LEAST_SAVING:
            ahead.append(point)
    return ahead


def spread(points: Sequence[P], most: int, *, beyond: Sequence[Place] = (CONTROL,)) -> list[P]:
    """Chooses those that together cover most of the plane, the fastest first.

    Greedy hypervolume subset selection (Guerreiro, Fonseca & Paquete, Evol. Comput. 24, 2016) with
    the reference point a quarter of the range below the worst, so that five evenly spaced places
    weigh the same, the ends too (Ishibuchi, Imada, Setoguchi & Nojima, Evol. Comput. 26, 2018).

    Args:
        points: What to choose from.
        most: How many at most; fewer where one more would add next to nothing.
        beyond: Places that are had anyway: what they cover does not count.
    """
    if not points:
        return []
    low = _reference([*(point.place for point in points), *beyond])
    had = [*beyond]
    bare = _area(had, low)
    all_of_it = _area([*had, *(point.place for point in points)], low) - bare
    chosen: list[P] = []
    left = list(points)
    while left and len(chosen) < most:
        covered = _area(had, low)
        best = max(left, key=lambda point: _area([*had, point.place], low))
        if _area([*had, best.place], low) - covered <= _WORTH * all_of_it:
            break
        left.remove(best)
        chosen.append(best)
        had.append(best.place)
    return sorted(chosen, key=lambda point: point.place, reverse=True)


def _reference(places: Sequence[Place]) -> Place:
    """A point below all of them; where all are alike along an axis, one unit below."""
    first, second = (_below([place[axis] for place in places]) for axis in (0, 1))
    return first, second


def _below(values: Sequence[float]) -> float:
    return min(values) - _BELOW * ((max(values) - min(values)) or 1.0)


def _area(places: Sequence[Place], low: Place) -> float:
    """What some places dominate, above a reference point below all of them."""
    area, reached = 0.0, low[1]
    for speed, saving in sorted(places, reverse=True):
        area += (speed - low[0]) * max(0.0, saving - reached)
        reached = max(reached, saving)
    return area
