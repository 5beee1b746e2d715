"""The search for a front: configurations that none beats in speed and in memory at once.

The same blocks, the same ledger and the same story as the search for one finalist; what differs is
what gets more pairs (all that could be on the front), what the sampler is told (two objectives, or
one of them) and from what proposals inherit (members of the present front).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from hztune.blocks import Arm
from hztune.search import proposer
from hztune.search.proposer import ConfigKey, Observation, config_key
from hztune.search.prospects import Best, prospects
from hztune.search.race import ENOUGH_PAIRS, FEWEST_BLOCKS, SLOTS, Search
from hztune.space import Config, Space
from hztune.stats import Estimate, pool
from hztune.trial import LEAST_SAVING, Ledger, Place, Samples, unbeaten
from hztune.trial.pareto import CONTROL, dominates, room, spread

_PARENTS = 5
"""Members of the present front from which proposals inherit."""

_SURELY_BEATEN = 0.95
"""How likely a candidate is behind another one before it gets no more time."""

_DRAWS = 256
"""Possible places of each proposal, over which its promise is averaged."""

_LEAST_FLOOR = 1e-6
"""Stands for the noise floor where none was measured."""


@dataclass(frozen=True, slots=True)
class Point:
    """A configuration in the plane of speed and memory.

    Attributes:
        record: What was measured of it.
        speed: Its log ratio to the control.
        saving: Logarithm of the control's / its own peak memory; above 0 it takes less.
    """

    record: Samples
    speed: Estimate
    saving: Estimate

    @property
    def place(self) -> Place:
        """The estimates of both."""
        return self.speed.mean, self.saving.mean


class ParetoSearch(Search):
    """The search for members of a front."""

    def _rounds(self) -> int:
        """Rounds of longer blocks: of memory no neighbour says anything here."""
        return self.bench.rounds(1 + SLOTS, self.bench.budget.total_s / FEWEST_BLOCKS)

    def points(self) -> list[Point]:
        """Every feasible configuration whose memory is known, the fastest first."""
        known = savings(self.bench.ledger)
        return [
            Point(one.record, one.estimate, known[one.record.arm.key])
            for one in self.ranked()
            if one.record.arm.key in known
        ]

    def members(self, most: int) -> list[Arm]:
        """The arms to prove: spread along the front as it is estimated, the fastest first."""
        return [point.record.arm for point in self._spread(self.points(), most)]

    def _spread(self, points: Sequence[Point], most: int) -> list[Point]:
        """Of the unbeaten that promise something, those that cover most of the plane."""
        promising = [point for point in unbeaten(points) if self._promises(point.place)]
        had = () if self.bench.ledger.default_breaks_limit else (CONTROL,)
        return spread(promising, most, beyond=had)

    def _promises(self, place: Place) -> bool:
        """Whether there is something to claim, if the estimates are true."""
        if self.bench.ledger.default_breaks_limit:
            return True
        speed, saving = place
        return speed > self.bench.floor or saving > LEAST_SAVING

    def _racing(self, most: int) -> list[Arm]:
        """All that could be on the front and are not well known.

        Those that would be proved now come first, the least known before the others; then the least
        crowded.
        """
        points = self.points()
        ahead = unbeaten(points)
        places = [point.place for point in ahead]
        chosen = self._spread(points, _PARENTS)

        def urgency(point: Point) -> tuple[bool, int, float]:
            return point not in chosen, point.speed.pairs, -room(point.place, places)

        hopeful = sorted((p for p in points if self._could_be_on(p, ahead)), key=urgency)
        return [point.record.arm for point in hopeful[:most]]

    def _could_be_on(self, point: Point, ahead: Sequence[Point]) -> bool:
        """Whether it is unsure, may be worth a claim, and is not surely beaten in both."""
        speed, saving = point.speed, point.saving
        lucky = speed.mean + 2.0 * speed.error, saving.mean + 2.0 * saving.error
        return (
            speed.pairs < ENOUGH_PAIRS
            and self._promises(lucky)
            and not dominates(CONTROL, lucky)
            and all(_beaten(point, other) < _SURELY_BEATEN for other in ahead)
        )

    def _prospects(self) -> dict[str, float]:
        """What each hopeful allocator promises in speed or in memory, whichever is more."""
        savers = sorted(self.points(), key=lambda point: -point.saving.mean)
        ranked = [Best(point.record, point.saving) for point in savers]
        saving = prospects(self.space, self.bench.ledger, ranked, LEAST_SAVING)
        speed = super()._prospects()
        return {
            name: max(speed.get(name, 0.0), saving.get(name, 0.0)) for name in {**speed, **saving}
        }

    def _leaders(self) -> list[str]:
        """The allocators on the present front."""
        return [point.record.arm.allocator for point in unbeaten(self.points())]

    def _inside(self, name: str, count: int, taken: Collection[ConfigKey]) -> list[Config]:
        """New configurations of one allocator.

        After LEAST_TRIALS, none where they promise too little together.
        """
        proposals = self._from_all_views(self.space.narrowed({name}), count, taken)
        if not proposals or self._is_early(name) or not self._believed().knows(name):
            return proposals
        return proposals if self._promise(proposals) > count / SLOTS else []

    def _measured(self) -> Counter[str]:
        """Configurations of each allocator of which the memory is known, too."""
        return Counter(point.record.arm.allocator for point in self.points())

    def _promise(self, proposals: Sequence[Config]) -> float:
        """What proposals may be expected to add to the front, at most: 1 is what can be claimed.

        How far each is beyond the front, in the noise floor and in LEAST_SAVING, whichever is more:
        the additive epsilon of Zitzler et al. (IEEE Trans. Evol. Comput. 7, 2003), its mean over
        what the models hold possible.
        """
        beliefs, ledger = self._believed(), self.bench.ledger
        units = np.array([max(self.bench.floor, _LEAST_FLOOR), LEAST_SAVING])
        known = [beliefs.expected(proposals), beliefs.learned(ledger, savings(ledger), proposals)]
        mean, sd = (np.stack(both, axis=1) / units for both in zip(*known, strict=True))
        had = [] if ledger.default_breaks_limit else [CONTROL]
        front = np.array([*had, *(point.place for point in unbeaten(self.points()))]) / units
        drawn = np.random.default_rng(self.seed).standard_normal((_DRAWS, 1, *mean.shape))
        beyond = (mean + sd * drawn - front[:, None]).max(axis=-1).min(axis=1)
        return float(np.maximum(beyond, 0.0).mean(axis=0).sum())

    def _from_all_views(
        self, space: Space, count: int, taken: Collection[ConfigKey]
    ) -> list[Config]:
        """New configurations from three points of view in turn."""
        views = self._views(space)
        first = self.bench.ledger.trials
        drawn = Counter((first + number) % len(views) for number in range(count))
        configs: list[Config] = []
        for which, share in drawn.items():
            findings, in_turn = views[which]
            told = proposer.worth_telling(
                [max(one.objectives) if one.feasible else -math.inf for one in findings]
            )
            configs += proposer.propose(
                space,
                [findings[place] for place in told],
                share,
                incumbents=space.defaults,
                taken={*taken, *map(config_key, configs)},
                seed=self.seed + which,
                in_turn=in_turn,
                known=len(findings),
            )
        return configs

    def _views(self, space: Space) -> list[tuple[list[Observation], list[tuple[Config, ...]]]]:
        """What the sampler may be told, and from what proposals then inherit.

        Both objectives, with two members of the front in turn, between which there may be more;
        and each objective alone with the member that is best in it, since two draw proposals to the
        middle, and the ends would be missed.
        """
        findings = self._placed(space)
        members: list[tuple[Config, ...]] = [(member,) for member in self._parents(space)]
        between = [one + other for one, other in combinations(members, 2)] or members
        turn = self.bench.ledger.trials % max(1, len(between))
        return [
            (findings, between[turn:] + between[:turn]),
            ([replace(one, saving=None) for one in findings], members[:1]),
            (
                [replace(one, value=one.saving or 0.0, saving=None) for one in findings],
                members[-1:],
            ),
        ]

    def _parents(self, space: Space) -> list[Config]:
        """The members of the front in a space, the fastest first.

        Of another allocator than the control's, those nearest to it where none promises anything.
        """
        own = [point for point in self.points() if space.holds(point.record.arm)]
        chosen = self._spread(own, _PARENTS)
        if not chosen and not space.holds(self.control):
            chosen = unbeaten(own)
        return [space.config(point.record.arm) for point in chosen]

    def _placed(self, space: Space) -> list[Observation]:
        """What is known of the configurations of a space, memory as a second objective."""
        records, known = self.bench.ledger.searched, savings(self.bench.ledger)
        saved = {
            config_key(self.space.config(records[key].arm)): estimate.mean
            for key, estimate in known.items()
        }
        return [
            replace(finding, saving=saved.get(config_key(finding.config), 0.0))
            for finding in self._findings(space, self._known(space))
        ]


def savings(ledger: Ledger) -> dict[str, Estimate]:
    """The pooled log saving of each feasible configuration whose memory is known, by its key."""
    known = {
        key: record.savings
        for key, record in ledger.searched.items()
        if record.feasible and record.savings
    }
    return dict(zip(known, pool([*known.values()], ledger.memory_noises()), strict=True))


def _beaten(point: Point, other: Point) -> float:
    """How likely `other` is faster and takes at most LEAST_SAVING more memory."""
    eased = other.saving._replace(mean=other.saving.mean + LEAST_SAVING)
    return other.speed.beats(point.speed) * eased.beats(point.saving)
