"""The figures behind a result: what the blocks of a study show, worked out for a reader.

They are made from the blocks in `samples.jsonl`, but nothing is judged again: the verdict, the
noise floor, what became of each finalist, and every interval of a proof are those that the result
holds. Of a study that was interrupted, these intervals are made here from the pairs
(`interval_of`), and `Figures.made_anew` says so. Times are seconds since the first block began; log
ratios are to the default, above 0 is better.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np

from hztune import profile as profiles
from hztune.blocks import Arm, Block, Outcome, Role, times_of
from hztune.errors import UsageError
from hztune.params import Param, Value
from hztune.profile import PROFILE, Profile
from hztune.rests import Rested, weighed_memory
from hztune.result import Addition, Result, claimed_interval
from hztune.result import read as read_result
from hztune.result.kept import KeptMemory, kept_memory
from hztune.sparse import Axis, Measurement, SparseModel
from hztune.sparse.grid import FAR, UNCHANGED
from hztune.stats.intervals import NORMAL_95, Interval, fixed_interval
from hztune.stats.noise import pool_plain
from hztune.stats.ratios import block_ratios, pair_ratio
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
_FEWEST = 4
"""Configurations without which nothing is said of what a parameter does."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A configuration that the search measured."""

    number: int
    """In order of first measurement, from 1."""
    record: ArmRecord
    interval: Interval | None
    """95 % interval of its log ratio from the search's pairs; None: it never ran."""
    at_s: float
    """When it was measured first."""

    @property
    def arm(self) -> Arm:
        return self.record.arm


@dataclass(frozen=True, slots=True)
class Effect:
    """What some parameters add to a configuration."""

    names: tuple[str, ...]
    interval: Interval | None
    """95 % interval of the log ratio with / without them; None: too few pairs."""
    pairs: tuple[float, ...]
    """The log ratio of each pair behind it."""
    is_kept: bool
    """Whether the profile carries any of them."""


@dataclass(frozen=True, slots=True)
class Level:
    """All configurations that had one value of a knob, and the interval of their mean."""

    value: Value
    estimates: tuple[Interval, ...]
    interval: Interval


@dataclass(frozen=True, slots=True)
class Curve:
    """What was measured along one knob, in the order of its values."""

    param: Param
    tuned: Value
    levels: tuple[Level, ...]


@dataclass(frozen=True)
class Figures:
    """A study that is read back."""

    result: Result | None
    """What the study came to; None when it was interrupted."""
    profile: Profile
    """What it claims: the result's, or what the interrupted study left in its file."""
    samples: Recording
    ledger: Ledger
    """The samples, sorted as the study had them."""
    place: Path = Path(PROFILE)
    """Where the profile stands."""
    command: tuple[str, ...] = ()
    """The words that asked for the study; () where they were not kept."""

    @property
    def control(self) -> Arm:
        """The default that everything was compared with."""
        return self.samples.blocks[0].control.arm

    @cached_property
    def winner(self) -> Arm:
        """What the profile carries, as the samples know it."""
        name = self.profile.allocator.name
        bare = self._reduced(self.profile.params)
        for records in (self.ledger.fresh_by_arm, self.ledger.searched):
            for arm in (record.arm for record in records.values()):
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
        for block, begin, end in self.timed:
            others = block.outcomes[1:] if block.role == "search" else ()
            for index, outcome in enumerate(others):
                share = (index + 1) / (len(others) + 1)
                seen.setdefault(outcome.arm.key, begin + share * (end - begin))
        return tuple(
            Candidate(number, record, self._interval(record), seen.get(key, 0.0))
            for number, (key, record) in enumerate(self.ledger.searched.items(), start=1)
        )

    @cached_property
    def timed(self) -> list[tuple[Block, float, float]]:
        """Each block with when it began and ended; pauses between sessions are left out."""
        blocks = self.samples.blocks
        return [(block, *ends) for block, ends in zip(blocks, times_of(blocks), strict=True)]

    @property
    def phases(self) -> list[tuple[Role, float, float]]:
        """The study's phases, in order: blocks of one role, with their begin and end."""
        phases: list[tuple[Role, float, float]] = []
        for block, begin, end in self.timed:
            begin = phases[-1][2] if phases else begin
            if phases and phases[-1][0] == block.role:
                _, begin, _ = phases.pop()
            phases.append((block.role, begin, end))
        return phases

    @cached_property
    def trace(self) -> tuple[tuple[float, float], ...]:
        """(Seconds, greatest pooled mean by then), at least 0; the search itself asks its model."""
        ledger = Ledger(self.ledger.limit, self.ledger.max_loss, memory=self.ledger.memory)
        searches = sum(block.role == "search" for block in self.samples.blocks)
        every = max(1, searches // _CHECKPOINTS)
        steps: list[tuple[float, float]] = []
        for block, _, end in self.timed:
            ledger.add(block)
            if block.role == "search" and block.control.ok:
                searches -= 1
                if searches % every == 0:
                    means = [estimate.mean for estimate in ledger.estimates().values()]
                    steps.append((end, max(0.0, *means) if means else 0.0))
        return tuple(steps)

    @property
    def shares(self) -> list[tuple[str, list[float], Interval | None]]:
        """What the profile does on each of several workloads: name, fresh pairs, interval."""
        record = self.ledger.fresh_by_arm.get(self.winner.key)
        told = []
        for share, pairs in zip(self.profile.shares, record.each if record else (), strict=False):
            ratios = [pair.log_ratio for pair in pairs]
            told.append((share.workload.label, ratios, claimed_interval(share, len(pairs))))
        return told

    @property
    def fresh_pairs(self) -> tuple[tuple[float, float], ...]:
        """When each fresh pair was measured, and its log ratio."""
        return tuple(
            (0.5 * (begin + end), pair.log_ratio)
            for block, begin, end in self.timed
            if block.role == "confirm" and self.ledger.is_own(block)
            for pair in block_ratios(block)
            if pair is not None
        )

    @property
    def proofs(self) -> list[ArmRecord]:
        """Every arm that was measured on fresh pairs, in order."""
        return list(self.ledger.fresh_by_arm.values())

    def proved(self, record: ArmRecord) -> Interval | None:
        """The interval of an arm's fresh pairs: as its proof judged it, where that is stored."""
        if record.arm in self._judged:
            return self._judged[record.arm]
        return interval_of(record.log_ratios) or _plain_interval(record.log_ratios)

    @cached_property
    def _judged(self) -> Mapping[Arm, Interval | None]:
        """What stands in the result and the profile of an arm's fresh pairs; None: too few."""
        found: dict[Arm, Interval | None] = {}
        for attempt in self.result.account.attempts if self.result else ():
            found[attempt.arm] = claimed_interval(attempt, attempt.pairs)
            for step in attempt.steps:
                found[step.arm] = claimed_interval(step.total, step.total.pairs)
        claim = self.profile.claim
        if (claimed := claimed_interval(claim, claim.pairs)) is not None:
            found[self.winner] = claimed
        return found

    @property
    def made_anew(self) -> bool:
        """Whether some interval of fresh pairs is not stored, so that it is made here."""
        return self.result is None and bool(self.proofs)

    def answer(self, arm: Arm) -> str:
        """What the study said of a finalist; empty for one that was no finalist or not judged."""
        attempts = self.result.account.attempts if self.result else ()
        return next((each.answer for each in attempts if each.arm == arm), "")

    @cached_property
    def added(self) -> Mapping[Arm, Addition]:
        """What each arm of the last attempt was judged to add; empty where none is stored."""
        attempts = self.result.account.attempts if self.result else ()
        return {step.arm: step for step in attempts[-1].steps} if attempts else {}

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
        adds = self.added[arm].adds if arm in self.added else None
        interval = claimed_interval(adds, adds.pairs) if adds else interval_of(pairs)
        return Effect(added_to(arm, before), interval, pairs, is_kept)

    @cached_property
    def importance(self) -> Mapping[str, float]:
        """How likely each knob has an effect, by the model of the search; empty: too few ran."""
        return likely_effects(self.ledger, self.profile.allocator.name, self.params)

    @cached_property
    def curves(self) -> tuple[Curve, ...]:
        """The knobs that matter and had several values: those of the profile, by importance."""
        chance = self.importance
        names = (name for name in dict.fromkeys([*self.tuned, *chance]) if name in self.params)
        ranked = sorted(names, key=lambda name: (name not in self.tuned, -chance.get(name, 0.0)))
        curves = (self._curve(name) for name in ranked)
        return tuple(curve for curve in curves if len(curve.levels) > 1)[:_CURVES]

    @property
    def failures(self) -> list[tuple[str, int, Outcome]]:
        """What failed and how often, the most frequent first, with the first example."""
        failed = [one for block in self.samples.blocks for one in block.outcomes if not one.ok]
        return [
            (how, count, next(each for each in failed if each.failure == how))
            for how, count in self.ledger.failures().most_common()
        ]

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
        half = NORMAL_95 * error
        return Interval(mean, mean - half, mean + half, len(record.pairs))

    def _curve(self, name: str) -> Curve:
        param = self.params[name]
        found: dict[Value, list[Interval]] = {}
        for candidate in self.candidates:
            if candidate.interval and candidate.arm.allocator == self.profile.allocator.name:
                value = candidate.arm.config.get(name, param.default)
                found.setdefault(value, []).append(candidate.interval)
        values = ordered(found)
        if param.choices:  # words as the knob lists them, then numbers
            values.sort(key=lambda value: param.choices.index(str(value)))
        levels = tuple(
            Level(value, tuple(found[value]), fixed_interval([p.estimate for p in found[value]]))
            for value in values
        )
        return Curve(param, self.tuned.get(name, param.default), levels)


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


def likely_effects(ledger: Ledger, allocator: str, params: Mapping[str, Param]) -> dict[str, float]:
    """How likely each parameter of an allocator has an effect on the speed, the likeliest first.

    Returns:
        Parameters that were changed at all; empty for fewer than four configurations.
    """
    records = [each for each in ledger.searched.values() if each.arm.allocator == allocator]
    arms = [each.arm for each in records if each.pairs]
    if len(arms) < _FEWEST:
        return {}
    seen = {
        name: ordered([param.default, *(arm.config[name] for arm in arms if name in arm.config)])
        for name, param in params.items()
    }
    seen = {name: values for name, values in seen.items() if len(values) > 1}
    defaults = {name: params[name].default for name in seen}
    axes = [
        Axis(name, len(values), values.index(defaults[name]), params[name].kind == "int")
        for name, values in seen.items()
    ]
    levels = np.full((len(arms), len(axes)), UNCHANGED, dtype=np.int64)
    for row, arm in enumerate(arms):
        for column, (name, values) in enumerate(seen.items()):
            value = arm.config.get(name, defaults[name])
            if value != defaults[name]:
                levels[row, column] = values.index(value)
    # Defaults that were measured beside the control are another configuration than it is.
    is_control = not any(each.arm.is_default for each in records)
    told = _measurements(ledger, {arm: number for number, arm in enumerate(arms)})
    model = SparseModel(axes, levels, told, is_control=is_control)
    likely = zip(seen, model.matters().tolist(), strict=True)
    return dict(sorted(likely, key=lambda each: -each[1]))


def _measurements(ledger: Ledger, numbers: Mapping[Arm, int]) -> list[Measurement]:
    noises, found = ledger.noises(), []
    for block in ledger.blocks:
        for outcome in block.outcomes[1:] if block.role == "search" and block.control.ok else ():
            pair = pair_ratio(block.control, outcome) if outcome.arm in numbers else None
            if pair is not None:
                variance = noises.on(block.machine).of_pair(pair.rounds)
                value = max(FAR, pair.log_ratio)
                found.append(Measurement(numbers[outcome.arm], block.number, value, variance))
    return found


def ordered(values: Iterable[Value]) -> list[Value]:
    """Values from the least to the greatest, words first."""
    return sorted(set(values), key=lambda value: (not isinstance(value, str), value))


def _plain_interval(log_ratios: Sequence[float]) -> Interval | None:
    return fixed_interval(log_ratios) if len(log_ratios) > 1 else None
