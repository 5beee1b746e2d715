"""The figures behind a result: what the blocks of a study show, worked out for a reader.

They are made from the blocks in `samples.jsonl`, but nothing is judged again: the verdict, the
noise floor, what became of each finalist, and every interval of a proof are those that the result
holds. Of a study that was interrupted, these intervals are made here from the pairs
(`interval_of`), and `Figures.made_anew` says so. Times are seconds since the first block began; log
ratios are to the default, above 0 is better.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from hztune import profile as profiles
from hztune.blocks import Arm, Outcome, Role, times_of
from hztune.errors import UsageError
from hztune.params import Param, Value
from hztune.profile import PROFILE, Profile
from hztune.rests import Rested, weighed_memory
from hztune.result import Attempt, Result, claimed_interval
from hztune.result import read as read_result
from hztune.result.effects import likely_effects, ordered
from hztune.result.kept import KeptMemory, kept_memory
from hztune.stats.intervals import NORMAL_95, Interval, fixed_interval
from hztune.stats.noise import pool_plain
from hztune.stats.ratios import block_ratios
from hztune.store import kept_command
from hztune.store.log import SAMPLES, Recording, recording, require_study
from hztune.study.counters import (
    CounterChange,
    Outlier,
    counter_changes,
    fresh_outcomes,
    outlying_pairs,
)
from hztune.study.ledger import ArmRecord, Ledger
from hztune.study.limits import limits_of
from hztune.study.proof import added_to, interval_of

_CHECKPOINTS = 200
_CURVES = 6
_LEAST_LEVELS = 2


@dataclass(frozen=True, slots=True)
class Candidate:
    """A configuration that the search measured.

    Attributes:
        number: In order of first measurement, from 1.
        record: What was measured of it.
        interval: 95 % interval of its log ratio from the search's pairs; None: it never ran.
        at_s: When it was measured first.
    """

    number: int
    record: ArmRecord
    interval: Interval | None
    at_s: float

    @property
    def arm(self) -> Arm:
        """What it is."""
        return self.record.arm


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of time in which blocks of one role were measured."""

    role: Role
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Effect:
    """What some parameters add to a configuration.

    Attributes:
        names: The parameters.
        interval: 95 % interval of the log ratio with / without them; None: too few pairs.
        pairs: The log ratio of each pair behind it.
        is_kept: Whether the profile carries any of them.
    """

    names: tuple[str, ...]
    interval: Interval | None
    pairs: tuple[float, ...]
    is_kept: bool


@dataclass(frozen=True, slots=True)
class Level:
    """All configurations that had one value of a knob.

    Attributes:
        value: The value.
        estimates: Their estimates.
        interval: Of their mean; infinitely wide for a single one.
    """

    value: Value
    estimates: tuple[Interval, ...]
    interval: Interval


@dataclass(frozen=True, slots=True)
class Curve:
    """What was measured along one knob, in the order of its values."""

    param: Param
    tuned: Value
    importance: float
    levels: tuple[Level, ...]


@dataclass(frozen=True, slots=True)
class Failure:
    """One way in which processes failed.

    Attributes:
        status: As `Outcome.failure` tells it.
        count: How many did.
        example: The first of them.
    """

    status: str
    count: int
    example: Outcome


@dataclass(frozen=True)
class Figures:
    """A study that is read back.

    Attributes:
        result: What the study came to; None when it was interrupted.
        profile: What it claims: the result's, or what the interrupted study left in its file.
        samples: What it rests on.
        ledger: The samples, sorted as the study had them.
        place: Where the profile stands.
        command: The words that asked for the study; () where they were not kept.
    """

    result: Result | None
    profile: Profile
    samples: Recording
    ledger: Ledger
    place: Path = Path(PROFILE)
    command: tuple[str, ...] = ()

    @property
    def control(self) -> Arm:
        """The default that everything was compared with."""
        return self.samples.blocks[0].control.arm

    @cached_property
    def winner(self) -> Arm:
        """What the profile carries, as the samples know it."""
        name = self.profile.allocator.name
        bare = self._reduced(self.profile.params)
        for arm in self._arms():
            if arm.allocator == name and self._reduced(arm.config) == bare:
                return arm
        return Arm.of(name, bare)

    @cached_property
    def params(self) -> Mapping[str, Param]:
        """The knobs of the profile's allocator, by name."""
        knobs = self.profile.adapter.knobs(self.profile.allocator.as_installed())
        return {knob.name: knob for knob in knobs}

    @property
    def tuned(self) -> Mapping[str, Value]:
        """What the profile changes, but for knobs that are there no more."""
        changed = self._reduced(self.profile.params)
        return {name: value for name, value in changed.items() if name in self.params}

    @cached_property
    def candidates(self) -> tuple[Candidate, ...]:
        """Every configuration of the search, in order of first measurement."""
        seen: dict[str, float] = {}
        for block, (begin, end) in zip(self.samples.blocks, self.times, strict=True):
            others = block.outcomes[1:] if block.role == "search" else ()
            for index, outcome in enumerate(others):
                share = (index + 1) / (len(others) + 1)
                seen.setdefault(outcome.arm.key, begin + share * (end - begin))
        return tuple(
            Candidate(number, record, self._interval(record), seen.get(key, 0.0))
            for number, (key, record) in enumerate(self.ledger.searched.items(), start=1)
        )

    @cached_property
    def times(self) -> tuple[tuple[float, float], ...]:
        """When each block began and ended; pauses between sessions are left out."""
        return tuple(times_of(self.samples.blocks))

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The study's phases, in order."""
        phases: list[Phase] = []
        for block, (begin, end) in zip(self.samples.blocks, self.times, strict=True):
            if phases and phases[-1].role == block.role:
                phases[-1] = Phase(block.role, phases[-1].begin_s, end)
            else:
                phases.append(Phase(block.role, phases[-1].end_s if phases else begin, end))
        return tuple(phases)

    @cached_property
    def trace(self) -> tuple[tuple[float, float], ...]:
        """(Seconds, greatest pooled mean by then), at least 0; the search itself asks its model."""
        ledger = Ledger(self.ledger.limit, self.ledger.max_loss, memory=self.ledger.memory)
        searches = sum(block.role == "search" for block in self.samples.blocks)
        every = max(1, searches // _CHECKPOINTS)
        steps: list[tuple[float, float]] = []
        for block, (_, end) in zip(self.samples.blocks, self.times, strict=True):
            ledger.add(block)
            if block.role == "search" and block.control.ok:
                searches -= 1
                if searches % every == 0:
                    means = [estimate.mean for estimate in ledger.estimates().values()]
                    steps.append((end, max(0.0, *means) if means else 0.0))
        return tuple(steps)

    @property
    def shares(self) -> tuple[tuple[str, list[float], Interval | None], ...]:
        """What the profile does on each of several workloads: name, fresh pairs, interval."""
        record = self.ledger.fresh_by_arm.get(self.winner.key)
        each = zip(self.profile.shares, record.each, strict=False) if record else ()
        return tuple(
            (
                share.workload.label,
                [pair.log_ratio for pair in pairs],
                claimed_interval(share, len(pairs)),
            )
            for share, pairs in each
        )

    @property
    def fresh_pairs(self) -> tuple[tuple[float, float], ...]:
        """When each fresh pair was measured, and its log ratio."""
        return tuple(
            (0.5 * (begin + end), pair.log_ratio)
            for block, (begin, end) in zip(self.samples.blocks, self.times, strict=True)
            if block.role == "confirm" and self.ledger.is_own(block)
            for pair in block_ratios(block)
            if pair is not None
        )

    @property
    def proofs(self) -> tuple[tuple[Arm, ArmRecord], ...]:
        """Every arm that was measured on fresh pairs, in order."""
        return tuple((record.arm, record) for record in self.ledger.fresh_by_arm.values())

    def proved(self, record: ArmRecord) -> Interval | None:
        """The interval of an arm's fresh pairs: as its proof judged it, where that is stored."""
        if record.arm in self._judged:
            return self._judged[record.arm]
        return interval_of(record.log_ratios) or _plain_interval(record.log_ratios)

    @cached_property
    def _judged(self) -> Mapping[Arm, Interval | None]:
        """What stands in the result and the profile of an arm's fresh pairs; None: too few."""
        found: dict[Arm, Interval | None] = {}
        for attempt in self._attempts:
            found[attempt.arm] = claimed_interval(attempt, attempt.pairs)
            for step in attempt.steps:
                found[step.arm] = claimed_interval(step.total, step.total.pairs)
        claim = self.profile.claim
        if (claimed := claimed_interval(claim, claim.pairs)) is not None:
            found[self.winner] = claimed
        return found

    @property
    def _attempts(self) -> tuple[Attempt, ...]:
        return self.result.account.attempts if self.result else ()

    @property
    def made_anew(self) -> bool:
        """Whether some interval of fresh pairs is not stored, so that it is made here."""
        return self.result is None and bool(self.proofs)

    def answer(self, arm: Arm) -> str:
        """What the study said of a finalist; empty for one that was no finalist or not judged."""
        return next((each.answer for each in self._attempts if each.arm == arm), "")

    def step_answer(self, arm: Arm) -> str:
        """The same of what an arm of the last attempt adds to the one before it."""
        steps = self._attempts[-1].steps if self._attempts else ()
        return next((step.answer for step in steps if step.arm == arm), "")

    @property
    def seeks_front(self) -> bool:
        """Whether the study had two objectives, speed and memory."""
        return "objectives" in self.samples.identity

    @property
    def front(self) -> tuple[Profile, ...]:
        """The confirmed members of the front, the fastest first."""
        return self.result.front if self.result else ()

    @property
    def floor(self) -> float:
        """Noise floor, log units: the study's own, or what the A/A pairs alone say."""
        if self.result is not None and self.result.account.noise_floor is not None:
            return math.log1p(self.result.account.noise_floor)
        return self.calibration.half_width if self.calibration else 0.0

    @property
    def calibration(self) -> Interval | None:
        """The default against itself; None: not measured twice."""
        return _plain_interval(self.calibration_pairs)

    @property
    def calibration_pairs(self) -> list[float]:
        """The log ratio of each pair of the default with itself."""
        return [pair.log_ratio for pair in self.ledger.own_calibration]

    @property
    def control_speeds(self) -> list[float]:
        """Operations a second of the default when it was measured last, on each workload."""
        outcomes = [block.control for block in self.samples.blocks if block.control.ok]
        last = outcomes[-1].parts or outcomes[-1:] if outcomes else ()
        return [outcome.ops_per_s for outcome in last] or [1.0]

    @cached_property
    def steps(self) -> tuple[Effect, ...]:
        """What each configuration of the last proof added; empty where a front was sought."""
        blocks = [block for block in self.ledger.own_blocks() if block.role == "confirm"]
        chains = [tuple(outcome.arm for outcome in block.outcomes) for block in blocks]
        chains = [chain for chain in chains if self.winner in chain]
        if self.seeks_front or not chains:
            return ()
        whole = max((chain for chain in chains if chain[1] == chains[-1][1]), key=len)
        proved = whole[: whole.index(self.winner) + 1]
        return tuple(
            self._step(before, arm, whole[1], is_kept=arm in proved)
            for before, arm in pairwise(whole)
        )

    def _step(self, before: Arm, arm: Arm, first: Arm, *, is_kept: bool) -> Effect:
        pairs = tuple(pair.log_ratio for pair in self.ledger.fresh_pairs(before, arm, first))
        interval = self._added[arm] if arm in self._added else interval_of(pairs)
        return Effect(added_to(arm, before), interval, pairs, is_kept)

    @cached_property
    def _added(self) -> Mapping[Arm, Interval | None]:
        """What each arm of the last attempt was judged to add; empty where none is stored."""
        steps = self._attempts[-1].steps if self._attempts else ()
        return {step.arm: claimed_interval(step.adds, step.adds.pairs) for step in steps}

    @cached_property
    def importance(self) -> Mapping[str, float]:
        """How likely each knob has an effect, by the model of the search; empty: too few ran."""
        return likely_effects(self.ledger, self.profile.allocator.name, self.params)

    @cached_property
    def curves(self) -> tuple[Curve, ...]:
        """The knobs that matter: those of the profile, then by importance."""
        names = dict.fromkeys([*self.tuned, *self.importance])
        ranked = sorted(
            names,
            key=lambda name: (
                name not in self.tuned,
                -self.importance.get(name, 0.0),
            ),
        )
        curves = (self._curve(name) for name in ranked if name in self.params)
        return tuple(curve for curve in curves if len(curve.levels) >= _LEAST_LEVELS)[:_CURVES]

    @property
    def failures(self) -> tuple[Failure, ...]:
        """What failed, the most frequent first."""
        failed = [
            outcome for block in self.samples.blocks for outcome in block.outcomes if not outcome.ok
        ]
        counted = self.ledger.failures().most_common()
        return tuple(
            Failure(how, count, next(each for each in failed if each.failure == how))
            for how, count in counted
        )

    @property
    def rss_ratio(self) -> float | None:
        """Peak memory of the profile to the default's, on fresh pairs; None: not measured."""
        record = self.ledger.fresh_by_arm.get(self.winner.key)
        return record.rss_ratio if record else None

    @property
    def kept(self) -> KeptMemory | None:
        """What stays at rest, by default and tuned; None: nothing was looked at."""
        return kept_memory(fresh_outcomes(self.ledger, self.winner), self.ledger.calm_controls)

    @property
    def rested(self) -> tuple[list[Rested], list[Rested]]:
        """The rounds of the default's processes and of the profile's, of fresh pairs."""
        pairs = fresh_outcomes(self.ledger, self.winner)
        default = [one for one, _ in pairs] or self.ledger.calm_controls
        tuned = [other for _, other in pairs]
        seen = ([each.rested for each in group if each.ok] for group in (default, tuned))
        before, after = ([each for each in group if each is not None] for group in seen)
        return before, after

    @property
    def changes(self) -> tuple[CounterChange, ...]:
        """What was counted differently by default and tuned, the greatest change first."""
        return counter_changes(fresh_outcomes(self.ledger, self.winner))

    @property
    def outliers(self) -> list[Outlier]:
        """The pairs that lie far from the others of their kind."""
        return outlying_pairs(self.ledger)

    @property
    def turns(self) -> tuple[int, int]:
        """Number of turns, and how many of them something disturbed."""
        turns = [t for b in self.samples.blocks for o in b.outcomes for t in o.all_turns]
        return len(turns), sum(bool(turn.disturbed) for turn in turns)

    def _arms(self) -> Iterator[Arm]:
        for records in (self.ledger.fresh_by_arm, self.ledger.searched):
            yield from (record.arm for record in records.values())

    def _reduced(self, config: Mapping[str, Value]) -> dict[str, Value]:
        """Only what differs from a default."""
        return {
            name: value
            for name, value in config.items()
            if name not in self.params or self.params[name].default != value
        }

    def _interval(self, record: ArmRecord) -> Interval | None:
        if not record.pairs:
            return None
        mean, error = pool_plain(record.pairs, self.ledger.noises())
        return _around(mean, error, len(record.pairs))

    def _curve(self, name: str) -> Curve:
        param = self.params[name]
        found: dict[Value, list[Interval]] = {}
        for candidate in self.candidates:
            if candidate.interval and candidate.arm.allocator == self.profile.allocator.name:
                value = candidate.arm.config.get(name, param.default)
                found.setdefault(value, []).append(candidate.interval)
        levels = tuple(
            Level(value, tuple(found[value]), fixed_interval([p.estimate for p in found[value]]))
            for value in _in_order(found, param)
        )
        tuned = self.tuned.get(name, param.default)
        return Curve(param, tuned, self.importance.get(name, 0.0), levels)


def read(folder: Path) -> Figures:
    """Reads a results directory.

    Raises:
        UsageError: It holds no study with a profile, or the two do not belong together.
        HztuneError: Its samples are damaged.
    """
    require_study(folder)
    if not (folder / PROFILE).is_file():
        raise UsageError(
            f"{str(folder)!r} has no {PROFILE}, so it is no finished study "
            "(an unfinished one ends with `hztune tune ... --resume --out` and that directory; "
            "`hztune report --dashboard` shows it meanwhile; if it holds a comparison, `hztune "
            "compare ... --resume --out` and that directory prints its table again)"
        )
    samples, claimed = recording(folder), profiles.load(folder / PROFILE)
    if samples.identity.get("space") != claimed.search.space_sha256:
        raise UsageError(f"{PROFILE} and {SAMPLES} in {str(folder)!r} are of different studies")
    if not samples.blocks:
        raise UsageError(f"{str(folder / SAMPLES)!r} holds no measurement yet")
    result = read_result(samples.ending, folder) if samples.ending else None
    made = result.profile if result else claimed
    limits = limits_of(made.objective.limits)
    weighed = weighed_memory(samples.identity.get("objectives", ""))
    ledger = Ledger.of(samples.blocks, *limits, samples.machine.fingerprint, weighed)
    place, words = folder / PROFILE, tuple[str, ...]()
    with suppress(UsageError):  # another user's, say: that one is not repeated here
        words = kept_command.read(place)
    return Figures(result, made, samples, ledger, place, words)


def _plain_interval(log_ratios: Sequence[float]) -> Interval | None:
    return fixed_interval(log_ratios) if len(log_ratios) > 1 else None


def _in_order(values: Iterable[Value], param: Param) -> list[Value]:
    """Values in the order of a knob: words as it lists them, then numbers."""
    found = ordered(values)
    if not param.choices:
        return found
    return sorted(found, key=lambda value: param.choices.index(str(value)))


def _around(mean: float, error: float, pairs: int) -> Interval:
    half = NORMAL_95 * error
    return Interval(mean, mean - half, mean + half, pairs)
