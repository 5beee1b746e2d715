"""The search: what the next block holds, decided anew from all data before each block.

Presets come first. Then the hopeful allocators' proposers are asked (see `proposer`): each slot of
a block goes to a configuration that may be the best, new or measured before. In the last part of
the time only measured ones race, and parts of the best one that are not known by themselves.

Allocators are raced by what more configurations of theirs are expected to add to the best that is
known, and proposals are shared out by the same measure. How far configurations of one allocator lie
apart is learned from those that were measured; until there are some, from what is usual. As every
decision is made anew, none is out for ever.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

import numpy as np

from hztune.arguments import SPARSE
from hztune.blocks import Arm
from hztune.params import Value
from hztune.space import AnySpace
from hztune.sparse.grid import UNCHANGED, LevelRow
from hztune.sparse.sampler import PRICE
from hztune.stats.intervals import NORMAL_95
from hztune.stats.noise import Estimate, expected_improvement
from hztune.study.bench import Workbench
from hztune.study.calibration import LEAST_SLOTS
from hztune.study.finalist import Chain, chain, shortest
from hztune.study.ledger import ArmRecord, Ledger
from hztune.study.proposer import MEMORY, SPEED, Proposer, sampler_named

SEARCH_BLOCKS = 50
"""A block of the search takes this part of the budget: many configurations, few turns each, as what
neighbours say of each other makes up for it."""

FEWEST_BLOCKS = 12
"""At most this part, where warm-up would take more than its share of so short a block."""

SLOTS = 6  # candidates that share one control in a block

ENOUGH_PAIRS = 6  # pairs after which the incumbent needs no more to be compared with

FINAL_SHARE = 0.4  # last part of the search's time: contenders are raced, nothing new is proposed

SHORTER_SLOTS = 2  # slots of a block of that part for the best with one parameter less

LEAST_TRIALS = 256  # configurations of an allocator before proposals may end for want of promise

LEAST_FLOOR = 1e-6  # stands for the noise floor where none was measured

CHANCES = 6  # configurations in which it must promise a gain that can be claimed: one block

_BEHIND = 1.0  # standard errors below the default after which a preset is not repeated

_USUAL_SPREAD = 0.25  # standard deviation of an allocator's log speeds, before any is known

_USUAL_WEIGHT = 4  # configurations whose word the usual spread outweighs


class Ranked(NamedTuple):
    """A configuration with the model's estimate of it. Every block makes thousands."""

    record: ArmRecord
    estimate: Estimate

    @property
    def config(self) -> dict[str, Value]:
        return self.record.arm.config

    @property
    def rank(self) -> float:
        """What configurations are ordered by; the least is the most promising."""
        return PRICE * len(self.record.arm.params) - self.estimate.mean


@dataclass(frozen=True, slots=True)
class FastestGoal:
    """What a search is for: the fastest configuration. Other goals derive from it."""

    objectives: tuple[str, ...] = (SPEED,)  # as proposers name them
    fewest_blocks: int = SEARCH_BLOCKS  # a block takes at most this part of the budget

    def prospects(self, search: Search) -> dict[str, float]:
        return prospects(search.space, search.bench.ledger, search.ranked(), search.bench.floor)

    def leaders(self, search: Search) -> list[str]:
        return [one.record.arm.allocator for one in search.ranked()[:1]]

    def promise(self, search: Search, allocator: str, count: int) -> float:
        """What so many new configurations may be expected to add: 1 is what can be claimed."""
        ranked = search.ranked()
        best = max(0.0, -ranked[0].rank) if ranked else 0.0
        gains = np.maximum(0.0, search.proposers[allocator].outlook()[0] - best).mean(axis=0)
        return float(np.sort(gains)[::-1][:count].sum()) / max(search.bench.floor, LEAST_FLOOR)

    def is_open(self, search: Search) -> bool:
        """Whether measuring known configurations again may change what is proved."""
        least = -math.inf if search.bench.ledger.default_breaks_limit else search.bench.floor
        known = (one.estimate for one in search.ranked())
        hopeful = [one for one in known if one.mean + 2.0 * one.error > least]
        if not hopeful:
            return False
        top = hopeful[0]
        return top.pairs < ENOUGH_PAIRS or any(
            one.pairs < 2 * ENOUGH_PAIRS and one.mean + 2.0 * one.error > top.mean
            for one in hopeful[1:]
        )


def prospects(
    space: AnySpace, ledger: Ledger, ranked: Sequence[Ranked], floor: float
) -> dict[str, float]:
    """What each allocator that may still win promises, log units; `ranked`: the best first."""
    known = defaultdict(list)
    for one in ranked:
        known[one.record.arm.allocator].append(one.estimate)
    best = ranked[0].estimate.mean if ranked else 0.0
    if not ledger.default_breaks_limit:
        best = max(0.0, best)
    records = ledger.searched.values()
    broken = {each.arm.allocator for each in records if each.arm.is_default and each.failures}
    promised = {
        part.allocator: _promise(known[part.allocator], best)
        for part in space.parts
        if known[part.allocator] or part.allocator not in broken
    }
    return {name: promise for name, promise in promised.items() if promise > floor}


def _promise(estimates: Sequence[Estimate], best: float) -> float:
    """What a block of an allocator's further configurations may add, log units."""
    if not estimates:
        return CHANCES * expected_improvement(0.0, _USUAL_SPREAD, best)
    centre = sum([one.raw for one in estimates]) / len(estimates)
    squares = sum([(one.raw - centre) ** 2 for one in estimates])
    variance = (_USUAL_WEIGHT * _USUAL_SPREAD**2 + squares) / (_USUAL_WEIGHT + len(estimates) - 1)
    noise = sum([one.raw_error**2 for one in estimates]) / len(estimates) ** 2
    return CHANCES * expected_improvement(centre, math.sqrt(variance + noise), best)


@dataclass
class Search:
    bench: Workbench
    space: AnySpace
    seed: int
    max_trials: int | None = None  # most configurations to measure; None: as time allows
    goal: FastestGoal = field(default_factory=FastestGoal)
    sampler: str = SPARSE  # what proposes new configurations, by name

    def __post_init__(self) -> None:
        self._refused: dict[str, Arm] = {}
        self._ranked: tuple[tuple[int, int], list[Ranked]] | None = None
        self.proposers = {
            part.allocator: Proposer(
                part,
                self.bench.ledger,
                seed=self.seed,
                objectives=self.goal.objectives,
                is_control=part.allocator in self.space.unchanged,
                sampler=sampler_named(self.sampler, self.seed),
            )
            for part in self.space.parts
        }

    def run(self, share: float, latest: float = 0.0) -> None:
        """Searches until `share` of the budget is used, or there is nothing left to measure.

        `latest`: the part by which the study's first block must end where it does not by `share`;
        then it holds as many candidates as there is time for.
        """
        bench, has_measured = self.bench, False
        began, until = bench.budget.elapsed(), bench.budget.total_s * share
        proposing_until = until - FINAL_SHARE * (until - began)
        while True:
            rounds = self._rounds()
            slots = self._slots(rounds, share, latest)
            if not slots:
                while bench.collect():
                    pass
                return
            is_early = bench.budget.elapsed() < proposing_until
            proposing = self._room() > 0 and (is_early or not bench.ledger.searched)
            if batch := self._batch(proposing, slots):
                bench.search([self.space.control, *batch], rounds)
                has_measured = True
                best = self.best()
                known = (best.estimate.mean, NORMAL_95 * best.estimate.error) if best else ()
                bench.tell("search", *known)
            elif not bench.collect():
                if proposing and has_measured:
                    bench.reporter.say(
                        f"the search ends {bench.budget.left(share):.0f} s early: nothing more "
                        "promises a gain above the noise floor; the time is left for the proof"
                    )
                return

    @property
    def starts(self) -> tuple[Arm, ...]:
        return tuple(dict.fromkeys((*self._returning(), *self.space.starts)))

    @property
    def cut_short(self) -> str:
        """Why its end says little of what there is, in words; "": it was a search."""
        tried = self.bench.ledger.searched
        is_all_known = all(arm.key in tried for arm in self._returning())
        any_changed = any(record.arm.params for record in tried.values())
        if is_all_known and (any_changed or not self.space.dimensions):
            return ""
        return (
            f"not searched: {'the budget' if self._room() > 0 else '--trials'} allowed "
            f"{len(tried)} configuration{'s' * (len(tried) != 1)}"
        )

    # ---- what is known ---------------------------------------------------------------------------

    def ranked(self) -> list[Ranked]:
        """What is feasible and not refused, the most promising first; of equals the shorter one."""
        when = len(self.bench.ledger.blocks), len(self._refused)
        if self._ranked is None or self._ranked[0] != when:
            self._ranked = when, sorted(self._estimated(), key=lambda one: one.rank)
        return self._ranked[1]

    def _estimated(self) -> list[Ranked]:
        records = self.bench.ledger.searched
        predictions = {name: each.predictions() for name, each in self.proposers.items()}
        found = []
        for key, plain in self.bench.ledger.estimates().items():
            arm = records[key].arm
            if key not in self._refused and arm.allocator in predictions:
                known, row = predictions[arm.allocator], self._row(arm)
                found.append(Ranked(records[key], _estimate(plain, row, known)))
        return found

    def _row(self, arm: Arm) -> LevelRow:
        return self.proposers[arm.allocator].level_row(arm)

    def best(self) -> Ranked | None:
        """The incumbent; None: none beats the default, or keeps a limit that the default breaks."""
        ranked = self.ranked()
        may_win = self.bench.ledger.default_breaks_limit
        return ranked[0] if ranked and (may_win or ranked[0].estimate.mean > 0.0) else None

    def refuse(self, finalist: Arm) -> None:
        self._refused[finalist.key] = finalist

    def finalist(self, most: int) -> Chain | None:
        """What to prove now, of at most so many configurations; None: nothing promises anything."""
        best = self.best()
        if best is None:
            return None
        if self.bench.ledger.default_breaks_limit:
            return (self._surely_within().record.arm,)
        arm = best.record.arm
        proposer, refused = self.proposers[arm.allocator], self._refused_rows(arm.allocator)
        row = shortest(proposer, arm, refused)
        return chain(proposer, row, refused, most=most) if row is not None else (arm,)

    def shortened(self, arm: Arm, slack: Sequence[float]) -> Arm:
        proposer = self.proposers[arm.allocator]
        row = shortest(proposer, arm, self._refused_rows(arm.allocator), slack)
        return (row and proposer.arm(row)) or arm

    def _refused_rows(self, allocator: str) -> set[LevelRow]:
        return {self._row(each) for each in self._out() if each.allocator == allocator}

    def _surely_within(self) -> Ranked:
        """The fastest whose pairs exclude that it breaks the memory limit, or else the surest.

        Of many that break it by little some seem to keep it by chance: the proof would refuse them.
        """
        scatter, ranked = self.bench.ledger.excess_scatter(), self.ranked()
        ends = [(one, one.record.excess_end(scatter, len(ranked))) for one in ranked]
        sure = (one for one, end in ends if end <= 0.0)
        return next(sure, min(ends, key=lambda each: each[1])[0])

    # ---- the next block --------------------------------------------------------------------------

    def _rounds(self) -> int:
        bench, total_s = self.bench, self.bench.budget.total_s
        most_blocks = (self.goal.fewest_blocks, FEWEST_BLOCKS)
        usual, most = (bench.rounds(1 + SLOTS, total_s / n) for n in most_blocks)
        return max(usual, min(bench.least_rounds(), most))

    def _slots(self, rounds: int, share: float, latest: float) -> int:
        """Candidates of the next block, few where nothing is to be proved yet; 0: no time."""
        allows, cost = self.bench.budget.allows, self.bench.executor.cost
        if allows(cost(1 + SLOTS, rounds), share):
            return SLOTS
        if self.best() is not None:
            return 0
        until = share if self.bench.ledger.searched else max(share, latest)
        counts = range(SLOTS, LEAST_SLOTS - 1, -1)
        return next((n for n in counts if allows(cost(1 + n, rounds), until)), 0)

    def _room(self) -> int:
        known = {*self.bench.ledger.searched, *(arm.key for arm in self.bench.executor.pending)}
        return SLOTS if self.max_trials is None else max(0, self.max_trials - len(known))

    def _batch(self, proposing: bool, slots: int = SLOTS) -> list[Arm]:
        room = self._room() if proposing else 0
        if arms := self._unknown()[: min(room, slots)]:
            return arms
        arms = self._presets(min(room, slots))
        if not proposing:
            if not self.goal.is_open(self):
                return []
            arms = self._shorter(min(SHORTER_SLOTS, self._room()))
        fresh = room - sum(map(self._is_new, arms))
        for name, count in self._shared_out(slots - len(arms)).items():
            new = self.proposers[name].suggest(
                count,
                fresh=max(0, fresh) if self._promises(name, count) else 0,
                out=[*self._out(), *self.bench.executor.pending, *arms],
                pending=self.bench.executor.pending,
            )
            fresh -= sum(map(self._is_new, new))
            arms += new
        return arms if any(map(self._is_new, arms)) or self.goal.is_open(self) else []

    def _out(self) -> list[Arm]:
        broken = [r.arm for r in self.bench.ledger.searched.values() if r.pairs and not r.feasible]
        return [*self._refused.values(), *broken]

    def _is_out(self, arm: Arm) -> bool:
        return arm.key in {each.key for each in (*self._out(), *self.bench.executor.pending)}

    def _is_new(self, arm: Arm) -> bool:
        return arm.key not in self.bench.ledger.searched

    def _unknown(self) -> list[Arm]:
        """What is looked at first: what returns memory, where that is sought; then all defaults."""
        returning = self._returning()
        first = (arm for arm in self.starts if arm in returning or arm.is_default)
        return [arm for arm in first if self._is_new(arm) and not self._is_out(arm)]

    def _returning(self) -> tuple[Arm, ...]:
        ledger = self.bench.ledger
        seeks_less = ledger.default_breaks_limit or ledger.seeks_kept
        return self.space.returning if seeks_less or MEMORY in self.goal.objectives else ()

    def _presets(self, most: int) -> list[Arm]:
        """Presets, twice each unless behind: the error of one measurement may hide the gain."""
        hopeful = self._chances()
        return [
            arm
            for arm in self.starts
            if arm.allocator in hopeful
            and self._is_little_known(arm)
            and not self._is_out(arm)
            and not self.proposers[arm.allocator].is_refused(arm.config)
        ][:most]

    def _is_little_known(self, arm: Arm) -> bool:
        """Whether an arm has at most one pair, and may be faster than the default."""
        record = self.bench.ledger.searched.get(arm.key)
        if record is None or record.failures or len(record.pairs) != 1:
            return record is None
        (pair,) = record.pairs
        error = math.sqrt(self.bench.ledger.noises().on(pair.machine).of_pair(pair.rounds))
        return pair.log_ratio + _BEHIND * error > 0.0

    def _chances(self) -> dict[str, float]:
        """What each hopeful allocator promises; where none is, only the leader's is left."""
        every = [part.allocator for part in self.space.parts]
        return self.goal.prospects(self) or dict.fromkeys(self.goal.leaders(self) or every, 1.0)

    def _shared_out(self, count: int) -> dict[str, int]:
        """Slots of a block for each allocator, by what it promises; a leader has one at least."""
        chances = self._chances()
        names = [name for name in chances if self.space.part(name).dimensions]
        leaders = [name for name in self.goal.leaders(self) if name not in names]
        if not names or count <= 0:
            return dict.fromkeys(leaders[:count], count)
        rng = Random(f"{self.seed} {len(self.bench.ledger.blocks)}")
        drawn = Counter(leaders[: count - 1])
        left = count - drawn.total()
        drawn.update(rng.choices(names, [chances[name] for name in names], k=left))
        return dict(drawn)

    def _promises(self, name: str, count: int) -> bool:
        """Whether new configurations of an allocator are worth their part of a block."""
        records = self.bench.ledger.searched.values()
        tried = sum(record.arm.allocator == name for record in records)
        return tried < LEAST_TRIALS or self.goal.promise(self, name, count) > count / SLOTS

    def _shorter(self, most: int) -> list[Arm]:
        """What the best comes to with one parameter less, where that was not measured."""
        best = self.best()
        if best is None or most <= 0:
            return []
        arm = best.record.arm
        proposer, row = self.proposers[arm.allocator], self._row(arm)
        changed = [axis for axis, level in enumerate(row) if level != UNCHANGED]
        parts = [(*row[:axis], UNCHANGED, *row[axis + 1 :]) for axis in changed if len(changed) > 1]
        seen = {*proposer.known().rows, *proposer.known().failed}
        found = [proposer.arm(part) for part in parts if part not in seen]
        return [arm for arm in dict.fromkeys(found) if arm is not None][:most]


def _estimate(
    plain: Estimate, row: LevelRow, known: Mapping[LevelRow, tuple[float, float]]
) -> Estimate:
    """The model's estimate of a configuration; of one that it does not hold, the pooled one.

    Such a one is old and hardly raced, and not taken for better than all that are in the model.
    """
    if row in known:
        mean, error = known[row]
        return plain._replace(mean=mean, error=error)
    highest = max((mean for mean, _ in known.values()), default=plain.mean)
    return plain._replace(mean=min(plain.mean, highest))
