"""The plane of speed and memory: what is beaten in both, what covers most of it, what stands apart.

The search uses the plane on estimates, the confirmation on proofs. Blocks of the search for a front
are longer: of memory no neighbour says anything, and one peak is as good as many.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from hztune.blocks import Arm
from hztune.stats.noise import Estimate, pool
from hztune.study.ledger import ArmRecord
from hztune.study.proposer import MEMORY, SPEED
from hztune.study.search import (
    ENOUGH_PAIRS,
    FEWEST_BLOCKS,
    FastestGoal,
    Ranked,
    Search,
    prospects,
)

Point = tuple[float, float]  # log speed and log saving of peak memory, against the control

CONTROL: Point = (0.0, 0.0)

LEAST_SAVING = -math.log(0.99)  # least difference in peak memory that is claimed, log units: 1 %

_BELOW = 0.25  # how far below the worst point the reference point lies, in parts of the range

_WORTH = 0.03  # least part of all that can be covered for which one more point is chosen


class HasPoint(Protocol):
    @property
    def point(self) -> Point:
        """Where it is."""


P = TypeVar("P", bound=HasPoint)


def dominates(one: Point, other: Point) -> bool:
    return one != other and one[0] >= other[0] and one[1] >= other[1]


def unbeaten(candidates: Sequence[P]) -> list[P]:
    """Those that none beats in both, the fastest first.

    One that is slower has to save more by LEAST_SAVING: an additive epsilon-dominance (Laumanns,
    Thiele, Deb & Zitzler, Evol. Comput. 10, 2002); else the scatter of memory makes many equals.
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
    What `beyond` covers is had anyway, and does not count.
    """
    if not candidates:
        return []
    axes = zip(*(each.point for each in candidates), *beyond, strict=True)
    below = [min(each) - _BELOW * ((max(each) - min(each)) or 1.0) for each in axes]
    low = below[0], below[1]
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


def _area(points: Sequence[Point], low: Point) -> float:
    area, reached = 0.0, low[1]
    for speed, saving in sorted(points, reverse=True):
        area += (speed - low[0]) * max(0.0, saving - reached)
        reached = max(reached, saving)
    return area


_SURELY_BEATEN = 0.95  # how likely it is behind another one before it gets no more time


@dataclass(frozen=True, slots=True)
class Compromise:
    record: ArmRecord  # what was measured of it
    speed: Estimate  # its log ratio to the control
    saving: Estimate  # logarithm of the control's / its own peak memory; above 0 it takes less

    @property
    def point(self) -> Point:
        return self.speed.mean, self.saving.mean


@dataclass(frozen=True, slots=True)
class FrontGoal(FastestGoal):
    objectives: tuple[str, ...] = (SPEED, MEMORY)
    fewest_blocks: int = FEWEST_BLOCKS

    def prospects(self, search: Search) -> dict[str, float]:
        savers = sorted(compromises(search), key=lambda each: -each.saving.mean)
        ranked = [Ranked(each.record, each.saving) for each in savers]
        ledger = search.bench.ledger
        saving = prospects(search.space, ledger, ranked, LEAST_SAVING)
        speed = prospects(search.space, ledger, search.ranked(), search.bench.floor)
        return {name: max(speed.get(name, 0.0), saving.get(name, 0.0)) for name in speed | saving}

    def leaders(self, search: Search) -> list[str]:
        ahead = unbeaten(compromises(search))
        return [*dict.fromkeys(each.record.arm.allocator for each in ahead)]

    def promise(self, search: Search, allocator: str, count: int) -> float:
        """A front has room everywhere between its members: its search ends with its time."""
        return math.inf

    def is_open(self, search: Search) -> bool:
        found = compromises(search)
        ahead = unbeaten(found)
        return any(_could_be_on(search, each, ahead) for each in found)


def compromises(search: Search) -> list[Compromise]:
    ledger, ranked = search.bench.ledger, search.ranked()
    known = [each for each in ranked if each.record.savings]
    saved = pool([each.record.savings for each in known], ledger.memory_noises())
    both = zip(known, saved, strict=True)
    return [Compromise(each.record, each.estimate, saving) for each, saving in both]


def members(search: Search, most: int) -> list[Arm]:
    """The arms to prove: spread along the estimated front, the fastest first, each shortened."""
    floor, breaks_limit = search.bench.floor, search.bench.ledger.default_breaks_limit
    ahead = unbeaten(compromises(search))
    promising = [each for each in ahead if breaks_limit or _promises(each.point, floor)]
    found = spread(promising, most, beyond=() if breaks_limit else (CONTROL,))
    slack = floor, LEAST_SAVING
    return [*dict.fromkeys(search.shortened(each.record.arm, slack) for each in found)]


def _could_be_on(search: Search, one: Compromise, ahead: Sequence[Compromise]) -> bool:
    """Whether it is unsure, may be worth a claim, and is not surely beaten in both."""
    speed, saving = one.speed, one.saving
    lucky = speed.mean + 2.0 * speed.error, saving.mean + 2.0 * saving.error
    ledger = search.bench.ledger
    return (
        speed.pairs < ENOUGH_PAIRS
        and (ledger.default_breaks_limit or _promises(lucky, search.bench.floor))
        and not dominates(CONTROL, lucky)
        and all(_beaten(one, other) < _SURELY_BEATEN for other in ahead)
    )


def _beaten(one: Compromise, other: Compromise) -> float:
    """How likely `other` is faster and takes at most LEAST_SAVING more memory."""
    eased = other.saving._replace(mean=other.saving.mean + LEAST_SAVING)
    return other.speed.beats(one.speed) * eased.beats(one.saving)


def _promises(point: Point, floor: float) -> bool:
    speed, saving = point
    return speed > floor or saving > LEAST_SAVING
