"""The search: propose, measure in batches beside one control, race those that could still win.

Every block holds the default, the incumbent while it is unsure, the contenders that could still
beat it, and new proposals. Each gets a few pairs, and more only while it could still win; the
decision is made anew from all data before each block, so none is out for ever.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from random import Random

from hztune.blocks import Arm
from hztune.search import proposer
from hztune.search.model import LEAST_WORTH, Model, Places
from hztune.search.proposer import ConfigKey, Observation, config_key
from hztune.search.prospects import Best, prospects
from hztune.space import Config, Space
from hztune.stats import race_margin
from hztune.trial import Bench, Samples

BLOCKS = 50
"""A block of the search takes this part of the whole budget: many configurations, few turns each,
as what neighbours say of each other makes up for it."""

FEWEST_BLOCKS = 12
"""At most this part of it, where warm-up would take more than its share of so short a block."""

SLOTS = 6
"""Candidates that share one control in a block."""

RACING_SLOTS = 2
"""Most of them that go to configurations measured before."""

ENOUGH_PAIRS = 6
"""Pairs after which the incumbent needs no more to be compared with."""

FINAL_SHARE = 0.25
"""Last part of the search's time in which contenders are raced and nothing new is proposed."""

POOL = 64
"""Proposals of which the model chooses."""

VARIETY = 0.3
"""Chance that a value among them, if not inherited, is any: the sampler asks for the same few."""

PARENTS = 4
"""Configurations that proposals inherit from."""

LEAST_TRIALS = 256
"""Configurations of an allocator before which proposals do not end for want of promise; a study of
a few minutes never measures so many. After fewer that are alike, a model expects too little of what
was never tried: of twelve simulated winners that two values make together, 6 were found where 64
sufficed, 8 where 128 did, and all with 256."""


@dataclass
class Search:
    """The search for a finalist.

    Attributes:
        bench: Where blocks are measured.
        space: What may be proposed.
        seed: The study's own.
        max_trials: Most configurations to measure; None: as many as there is time for.
    """

    bench: Bench
    space: Space
    seed: int
    max_trials: int | None = None

    def __post_init__(self) -> None:
        """Starts with no arm refused."""
        self._refused: set[str] = set()
        self._identities: dict[str, ConfigKey] = {}
        self._beliefs: tuple[int, Model] | None = None
        self._ranked: tuple[tuple[int, int], list[Best]] | None = None
        self._places: Places = {}

    @property
    def control(self) -> Arm:
        """The allocator as it comes, or the program as it is."""
        return self.space.control

    def run(self, share: float) -> None:
        """Searches until `share` of the budget is used, or there is nothing left to measure.

        After LEAST_TRIALS, nothing new is tried where a block of proposals is not expected to add
        the noise floor to the best. Then those race that were measured, usually until the time is
        up: among so many, one nearly always needs to be known better. Where several workers
        take part, it ends as soon as one of them proves a finalist.
        """
        has_measured = False
        began = self.bench.budget.elapsed()
        until = self.bench.budget.total_s * share
        while self.bench.catch_up():
            rounds = self._rounds()
            if not self.bench.budget.allows(self.bench.executor.cost(1 + SLOTS, rounds), share):
                return
            proposing_until = until - FINAL_SHARE * (until - began)
            proposing = self.bench.budget.elapsed() < proposing_until and self._has_trials_left()
            batch = self._batch(proposing)
            if not batch:
                if proposing and has_measured:
                    self._tell_early_end(share)
                return
            if arms := self.bench.reserve(batch):
                self.bench.measure([self.control, *arms], "search", rounds)
                has_measured = True
                self._tell()

    def _rounds(self) -> int:
        """How many each process of the next block gets."""
        bench, total_s = self.bench, self.bench.budget.total_s
        usual, most = (bench.rounds(1 + SLOTS, total_s / n) for n in (BLOCKS, FEWEST_BLOCKS))
        return max(usual, min(bench.least_rounds(), most))

    def refuse(self, finalist: Arm) -> None:
        """Leaves an arm out for good: its proof has failed."""
        self._refused.add(finalist.key)

    def best(self) -> Best | None:
        """The incumbent: the configuration that promises most.

        None when none beats the default, unless the default itself breaks the memory limit: then
        whatever keeps the limit beats it.
        """
        ranked = self.ranked()
        return ranked[0] if ranked and self._may_win(ranked[0].estimate.mean) else None

    def ranked(self) -> list[Best]:
        """Every feasible configuration that was not refused, the most promising first.

        Of two that are as good as equal, the one that changes less.
        """
        when = len(self.bench.ledger.blocks), len(self._refused)
        if self._ranked is None or self._ranked[0] != when:
            found = self._believed().estimates
            records = self.bench.ledger.searched
            bests = [Best(records[key], e) for key, e in found.items() if key not in self._refused]
            self._ranked = when, sorted(bests, key=_rank)
        return self._ranked[1]

    def _believed(self) -> Model:
        """What is believed after the blocks so far."""
        blocks = len(self.bench.ledger.blocks)
        if self._beliefs is None or self._beliefs[0] != blocks:
            self._beliefs = blocks, Model(self.space, self.bench.ledger, self._places)
        return self._beliefs[1]

    def _batch(self, proposing: bool) -> list[Arm]:
        """New configurations beside the incumbent and its rival; without any, those that race."""
        racing = self._racing(RACING_SLOTS) if proposing else []
        room = SLOTS - len(racing)
        if self.max_trials is not None:
            known = self.bench.ledger.trials + len(self.bench.held)
            room = max(0, min(room, self.max_trials - known))
        new = self._new(room) if proposing else []
        return racing + new if new else self._racing(SLOTS)

    def _new(self, room: int) -> list[Arm]:
        """Every allocator as it comes, then presets, then proposals; what was measured is left out.

        What is still unknown is looked at before the others get more.
        """
        chances = self._chances()
        space = self.space.narrowed(chances)
        taken = self._taken()
        waiting = [
            dict(preset.config)
            for preset in space.presets
            if config_key(preset.config) not in taken
        ]
        unknown = [config for config in waiting if config in space.defaults]
        configs = (unknown or waiting)[:room]
        if not unknown:
            taken |= {config_key(config) for config in configs}
            configs += self._proposals(chances, room - len(configs), taken)
        return [space.arm(config) for config in configs]

    def _taken(self) -> set[ConfigKey]:
        """Every configuration that was measured, or that another worker is measuring now."""
        for key, record in self.bench.ledger.searched.items():
            if key not in self._identities:
                self._identities[key] = config_key(self.space.config(record.arm))
        held = (config_key(self.space.config(arm)) for arm in self.bench.held)
        return {*self._identities.values(), *held}

    def _chances(self) -> dict[str, float]:
        """What each hopeful allocator promises; where none is, only the leader's is left.

        A model that knows it says then whether its proposals promise anything.
        """
        every = [part.allocator for part in self.space.parts]
        return self._prospects() or dict.fromkeys(self._leaders() or every, 1.0)

    def _prospects(self) -> dict[str, float]:
        """What each hopeful allocator promises."""
        return prospects(self.space, self.bench.ledger, self.ranked(), self.bench.floor)

    def _leaders(self) -> list[str]:
        """The allocator of the most promising configuration, if there is any."""
        return [one.record.arm.allocator for one in self.ranked()[:1]]

    def _proposals(
        self, chances: Mapping[str, float], count: int, taken: Collection[ConfigKey]
    ) -> list[Config]:
        """New configurations, shared out between the allocators by what each one promises."""
        names = [name for name in chances if self.space.part(name).dimensions]
        if count <= 0 or not names:
            return []
        rng = Random(f"{self.seed} {self.bench.ledger.trials}")
        configs: list[Config] = []
        while names and not configs:
            drawn = Counter(rng.choices(names, [chances[name] for name in names], k=count))
            configs = [new for name in drawn for new in self._inside(name, drawn[name], taken)]
            names = [name for name in names if name not in drawn]
        return configs

    def _inside(self, name: str, count: int, taken: Collection[ConfigKey]) -> list[Config]:
        """New configurations of one allocator: of many proposals those that promise most.

        None where they do not promise enough together.
        """
        space = self.space.narrowed({name})
        beliefs = self._believed()
        knows = beliefs.knows(name)
        winners = self._winners(space)
        known = self._known(space)
        told = proposer.worth_telling([worth for _, worth in known])
        proposals = proposer.propose(
            space,
            self._findings(space, [known[place] for place in told]),
            POOL if knows else count,
            incumbents=self._incumbents(space, winners),
            taken=taken,
            seed=self.seed,
            in_turn=self._families(space, winners),
            variety=VARIETY if knows else 0.0,
            known=len(known),
        )
        if not knows:
            return proposals
        bold = self.bench.ledger.trials
        chosen, promise = beliefs.choose(proposals, count, self._to_beat(), bold=bold)
        return chosen if self._is_early(name) or promise > self.bench.floor * count / SLOTS else []

    def _is_early(self, name: str) -> bool:
        """Whether too little of an allocator was measured to say that nothing is to win."""
        return self._measured()[name] < LEAST_TRIALS

    def _measured(self) -> Counter[str]:
        """Feasible configurations of each allocator, those that were refused among them."""
        records = self.bench.ledger.searched
        return Counter(records[key].arm.allocator for key in self._believed().estimates)

    def _to_beat(self) -> float:
        """What proposals must be better than, see `Model.choose`."""
        ranked = self.ranked()
        best = -_rank(ranked[0]) if ranked else 0.0
        return best if self.bench.ledger.default_breaks_limit else max(0.0, best)

    def _incumbents(self, space: Space, winners: Sequence[Best]) -> list[Config]:
        """The best configuration of each allocator, the best of all last.

        The control stays its own allocator's incumbent until something beats it.
        """
        best: dict[str, Config] = {}
        for one in winners:
            if one.record.arm.allocator not in best:
                best[one.record.arm.allocator] = space.config(one.record.arm)
        return [*space.defaults, *reversed(best.values())]

    def _families(self, space: Space, winners: Sequence[Best]) -> list[tuple[Config, ...]]:
        """The best configuration alone, and by turns with one of those that come next."""
        best = [space.config(one.record.arm) for one in winners[:PARENTS]]
        return [parents for other in best[1:] for parents in ((best[0],), (best[0], other))]

    def _winners(self, space: Space) -> list[Best]:
        """The configurations of a space that may win, the most promising first."""
        own = self.control.allocator
        return [
            one
            for one in self.ranked()
            if space.holds(one.record.arm)
            and (self._may_win(one.estimate.mean) or one.record.arm.allocator != own)
        ]

    def _known(self, space: Space) -> list[tuple[Samples, float]]:
        """What was measured of a space, its control first, each with what it is worth.

        That is its estimate; -inf where it is not feasible.
        """
        ledger = self.bench.ledger
        estimates = ledger.estimates()
        control = Samples(space.control, excesses=[ledger.control_excess()])
        known = [(control, -math.inf if ledger.default_breaks_limit else 0.0)]
        for key, record in ledger.searched.items():
            if space.holds(record.arm):
                known.append((record, estimates[key].mean if key in estimates else -math.inf))
        return known

    def _findings(self, space: Space, known: Iterable[tuple[Samples, float]]) -> list[Observation]:
        """What is known of some configurations, as the sampler is told of it."""
        return [
            Observation(
                space.config(record.arm),
                worth if math.isfinite(worth) else 0.0,
                record.violations,
            )
            for record, worth in known
        ]

    def _racing(self, most: int) -> list[Arm]:
        """The incumbent while it is unsure, and what could still beat it, most likely first."""
        ranked = self._hopeful()
        if not ranked:
            return []
        top = ranked[0]
        looks = len(self.bench.ledger.blocks)
        margin = race_margin(max(1, looks), len(ranked))
        contenders = [one for one in ranked[1:] if self._could_beat(one, top, margin)]
        sure = top.estimate.pairs >= ENOUGH_PAIRS
        if sure and not contenders:
            return []
        likely = nsmallest(
            most,
            contenders,
            key=lambda one: (-one.estimate.beats(top.estimate), one.estimate.pairs),
        )
        arms = [] if sure and len(contenders) >= most else [top.record.arm]
        return (arms + [one.record.arm for one in likely])[:most]

    def _could_beat(self, one: Best, top: Best, margin: float) -> bool:
        """Whether it is not yet shown to be slower, and better known does not mean beaten."""
        mine, best = one.estimate, top.estimate
        return (
            mine.pairs < 2 * ENOUGH_PAIRS
            and mine.mean + 2.0 * mine.error > best.mean
            and best.mean - mine.mean < margin * math.hypot(mine.raw_error, best.raw_error)
        )

    def _hopeful(self) -> list[Best]:
        """What may still turn out to be better than the default by what can be claimed."""
        if self.bench.ledger.default_breaks_limit:
            return self.ranked()
        floor = self.bench.floor
        return [
            one for one in self.ranked() if one.estimate.mean + 2.0 * one.estimate.error > floor
        ]

    def _may_win(self, mean: float) -> bool:
        """Whether a log ratio to the default is a reason to leave it."""
        return mean > 0.0 or self.bench.ledger.default_breaks_limit

    def _has_trials_left(self) -> bool:
        """Whether more configurations may be searched."""
        known = self.bench.ledger.trials + len(self.bench.held)
        return self.max_trials is None or known < self.max_trials

    def _tell_early_end(self, share: float) -> None:
        left_s = self.bench.budget.left(share)
        self.bench.reporter.say(
            f"the search ends {left_s:.0f} s early: nothing more promises a gain above the noise "
            "floor; the time is left for the proof"
        )

    def _tell(self) -> None:
        best = self.best()
        if best is None:
            self.bench.tell("search")
        else:
            self.bench.tell("search", best.estimate.mean, 1.96 * best.estimate.error)


def _rank(one: Best) -> float:
    """What configurations are ordered by; the least is the most promising."""
    return LEAST_WORTH * len(one.record.arm.params) - one.estimate.mean
