"""The ledger: everything a study has measured, sorted into what each decision may look at.

A decision is a function of the ledger alone. So a study that was stopped goes on by reading its
blocks back: no decision on the way is stored. Pairs of role `confirm` are kept apart: no selection
sees them.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist, fmean, median
from typing import TypeVar

from hztune.blocks import UNCHANGED_PROGRAM, Arm, Block, Outcome, ProofPlan, Role
from hztune.rests import MemoryKind
from hztune.stats.intervals import (
    LEAST_PLANNED,
    NORMAL_95,
    REPORTED_ERROR,
    Interval,
    fixed_interval,
    planned_interval,
)
from hztune.stats.noise import Estimate, Noise, estimate_noise, pool, pool_plain
from hztune.stats.ratios import (
    PairRatio,
    load_ratio,
    log_memory_ratio,
    logs_of,
    pair_ratio,
    part_ratios,
    saving_ratio,
)
from hztune.store.rows import gc_frozen
from hztune.study.limits import LossLimit, MemoryLimit

FAR_BEHIND = -0.35
"""Log ratio below which it does not matter how slow a configuration is: `FAR` of the sparse model,
which knows nothing else of hztune; a test holds both to be equal."""

_USUAL_NOISE = Noise(between=0.05**2, per_round=0.1**2, df=1.0)
"""Stands in until a study has measured its own; a figure for a busy machine."""

_USUAL_SCATTER_SD = 0.02
_USUAL_SCATTER = Noise(between=_USUAL_SCATTER_SD**2, per_round=0.0, df=1.0)  # likewise of memory

_ANY_KB = 1 << 20
"""For the memory of a default that has not run: a relative limit asks for no amount."""

_LEAST_SCATTER = 0.001
"""Standard deviation below which peak memory is not known: it is counted in pages, at moments."""

_Kept = TypeVar("_Kept")


@dataclass
class ArmRecord:
    arm: Arm
    pairs: list[PairRatio] = field(default_factory=list)  # against the default, in order of time
    savings: list[PairRatio] = field(default_factory=list)  # of memory: above 0 it takes less
    peaks: list[float] = field(default_factory=list)  # log ratios of its peak to the default's
    kept: list[float] = field(default_factory=list)  # the same of what it keeps at rest
    excesses: list[float] = field(default_factory=list)  # above the memory limit, log units
    each: list[list[PairRatio]] = field(default_factory=list)  # pairs on each of several workloads
    loss: float = -1.0  # shown below what a workload may lose, log units; -1: nowhere
    failures: list[Outcome] = field(default_factory=list)

    @property
    def log_ratios(self) -> list[float]:
        return [pair.log_ratio for pair in self.pairs]

    @property
    def memory(self) -> list[float]:
        """The log ratio of the study's memory to the default's in each pair where it is known."""
        return [-saving.log_ratio for saving in self.savings]

    @property
    def shares(self) -> tuple[Interval | None, ...]:
        """The 95 % interval on each of several workloads by itself; empty where there is one."""
        return tuple(interval_of([pair.log_ratio for pair in pairs]) for pairs in self.each)

    def ratio_of(self, memory: MemoryKind) -> float | None:
        logs = self.peaks if memory == "rss" else self.kept
        return math.exp(sum(logs) / len(logs)) if logs else None

    @property
    def excess(self) -> float:
        """How far it is above the memory limit on average, in log units; -1 without a limit."""
        return sum(self.excesses) / len(self.excesses) if self.excesses else -1.0

    @property
    def violations(self) -> dict[str, float]:
        """By constraint, above 0 where it is violated; always the same names."""
        ran = 1.0 if self.failures else -1.0
        return {"ran": ran, "max_rss": self.excess, "max_loss": self.loss}

    @property
    def feasible(self) -> bool:
        return bool(self.pairs) and max(self.violations.values()) <= 0.0

    def excess_end(self, scatter: float, among: int) -> float:
        """How far above the memory limit it may be, in log units: the 95 % end of its mean.

        `scatter`: standard deviation of one pair. `among`: configurations of which one is chosen by
        this; all ends hold together.
        """
        if not self.excesses:
            return math.inf
        bound = NormalDist().inv_cdf(1.0 - 0.025 / among)
        return self.excess + bound * scatter / math.sqrt(len(self.excesses))


@dataclass
class Ledger:
    limit: MemoryLimit | None = None
    max_loss: LossLimit | None = None
    blocks: list[Block] = field(default_factory=list)  # in order of time
    # what the search may look at, by the arm's key, in order of first measurement
    searched: dict[str, ArmRecord] = field(default_factory=dict)
    # fresh pairs by the arm's key, for the proof alone: of several attempts, the last one's
    fresh_by_arm: dict[str, ArmRecord] = field(default_factory=dict)
    # A/A processes two by two: pairs that share a process are not independent
    calibration: ArmRecord = field(default_factory=lambda: ArmRecord(Arm(UNCHANGED_PROGRAM)))
    panel: list[Block] = field(default_factory=list)  # nothing but the panel looks at them
    on_program: list[Block] = field(default_factory=list)  # where the rest is of its trace
    # whose pairs confirm, by what tells it from others; "": there is one. All teach the search.
    machine: str = ""
    memory: MemoryKind = "rss"  # which is looked at beside speed
    _memo: dict[str, tuple[int, object]] = field(default_factory=dict, compare=False)
    _fresh: dict[tuple[Arm, Arm], ArmRecord] = field(default_factory=dict, compare=False)
    _held: dict[MemoryKind, list[int]] = field(
        default_factory=lambda: {"rss": [], "kept": []}, compare=False
    )  # by the control, in order

    @classmethod
    def of(
        cls,
        blocks: Iterable[Block],
        limit: MemoryLimit | None = None,
        max_loss: LossLimit | None = None,
        machine: str = "",
        memory: MemoryKind = "rss",
    ) -> Ledger:
        ledger = cls(limit, max_loss, machine=machine, memory=memory)
        with gc_frozen():
            for block in blocks:
                ledger.add(block)
        return ledger

    @property
    def next_number(self) -> int:
        kinds = (self.blocks, self.panel, self.on_program)
        return max((blocks[-1].number for blocks in kinds if blocks), default=-1) + 1

    @property
    def default_breaks_limit(self) -> bool:
        return self.control_excess() > 0.0

    @property
    def seeks_kept(self) -> bool:
        return self.max_loss is not None and self.max_loss.of_load

    def control_excess(self) -> float:
        """How far the default is above the memory limit, in log units; -1 without a limit."""
        found = [-1.0]
        for limit in self.limit.all() if self.limit else ():
            if (known := self._held[limit.memory]) or limit.ratio:
                usual_kb = median(known or [_ANY_KB])
                found.append(limit.excess(usual_kb, usual_kb))
        return max(found[1:] or found)

    def add(self, block: Block) -> None:
        if block.workload or block.role == "panel":
            (self.panel if block.role == "panel" else self.on_program).append(block)
            return
        self.blocks.append(block)
        for memory, held in self._held.items():
            if kb := block.control.memory_kb(memory):
                insort(held, kb)
        for record, control, outcome in self._sorted(block) if block.control.ok else ():
            self._record(record, block, control, outcome)

    def _sorted(self, block: Block) -> Iterator[tuple[ArmRecord, Outcome, Outcome]]:
        first, outcomes = block.control, block.outcomes[1:]
        if block.role == "aa":
            for one, other in zip(block.outcomes[::2], block.outcomes[1::2], strict=False):
                yield self.calibration, one, other
        elif block.role == "search":
            for each in outcomes:
                yield self.searched.setdefault(each.arm.key, ArmRecord(each.arm)), first, each
        elif block.role == "confirm" and self.is_own(block):
            for each in outcomes:
                record = self._fresh.setdefault((outcomes[0].arm, each.arm), ArmRecord(each.arm))
                self.fresh_by_arm[each.arm.key] = record
                yield record, first, each

    def _record(self, record: ArmRecord, block: Block, control: Outcome, outcome: Outcome) -> None:
        if not outcome.ok:
            record.failures.append(outcome)
            return
        pair, saving = pair_ratio(control, outcome), saving_ratio(control, outcome, self.memory)
        for known, found in ((record.pairs, pair), (record.savings, saving)):
            if found is not None:
                known.append(replace(found, machine=block.machine, block=block.number))
        excess = self.limit.excess_of(control, outcome) if self.limit is not None else None
        peak, kept = (log_memory_ratio(control, outcome, memory) for memory in self._held)
        for logs, log in ((record.excesses, excess), (record.peaks, peak), (record.kept, kept)):
            if log is not None:
                logs.append(log)
        speeds = self.speeds(control, outcome)
        record.each.extend([] for _ in speeds[len(record.each) :])
        for pairs, speed in zip(record.each, speeds, strict=True):
            if speed is not None:
                pairs.append(replace(speed, machine=block.machine))
        record.loss = self._loss(record)

    def speeds(self, control: Outcome, outcome: Outcome) -> tuple[PairRatio | None, ...]:
        """What has a limit of its own: the speed of the load, or that on each workload."""
        if self.seeks_kept:
            return (load_ratio(control, outcome),)
        return part_ratios(control, outcome)

    def _loss(self, record: ArmRecord) -> float:
        """How far the worst workload is below what it may lose, log units.

        The upper end of its 95 % interval counts: one bad turn takes no configuration out.
        """
        if self.max_loss is None or not record.each:
            return -1.0
        found = (_pooled(pairs, self.noises_on(part)) for part, pairs in enumerate(record.each))
        return self.max_loss.excess(min(each.high for each in found))

    def interval(self, record: ArmRecord) -> Interval | None:
        """What the search saw of a configuration, 95 %; None: it never ran."""
        return _pooled(record.pairs, self.noises()) if record.pairs else None

    # ---- what there is ---------------------------------------------------------------------------

    def fresh(self, arm: Arm, first: Arm | None = None) -> ArmRecord:
        """The fresh pairs of an arm in one attempt at a proof, as many as there are by now.

        `first`: the arm that only this attempt's chain begins with; None: the arm itself.
        """
        return self._fresh.get((first or arm, arm)) or ArmRecord(arm)

    def fresh_logs(self, one: Arm, other: Arm, first: Arm) -> list[float]:
        """What each fresh block of the chain from `first` says of `other` against `one`."""
        blocks = [block for block in self.proof_blocks([first]) if block.control.ok]
        by_arm = ({outcome.arm: outcome for outcome in block.outcomes} for block in blocks)
        both = [(each[one], each[other]) for each in by_arm if one in each and other in each]
        return logs_of("speed", both)

    def is_own(self, measured: Block | PairRatio) -> bool:
        """Whether the machine that confirms has measured it."""
        return not self.machine or measured.machine == self.machine

    def own_blocks(self, role: Role | None = None) -> list[Block]:
        return [b for b in self.blocks if self.is_own(b) and (role is None or b.role == role)]

    @property
    def own_calibration(self) -> list[PairRatio]:
        return [pair for pair in self.calibration.pairs if self.is_own(pair)]

    @property
    def calm_controls(self) -> list[Outcome]:
        """What the default showed by itself, on that machine: of the calibration."""
        return [outcome for block in self.own_blocks("aa") for outcome in block.outcomes]

    def until(self, last: Block) -> Ledger:
        """What it knew when one of its blocks had just been entered."""
        if self.blocks[-1] is last:
            return self
        count = next(n for n, block in enumerate(self.blocks, start=1) if block is last)
        known = self.blocks[:count]
        return Ledger.of(known, self.limit, self.max_loss, self.machine, self.memory)

    def proof_blocks(self, first: Sequence[Arm]) -> list[Block]:
        """The blocks of a proof, by what stands behind the control in each, in order of time."""
        return [block for block in self.own_blocks("confirm") if block.outcomes[1].arm in first]

    def plan_of(self, first: Sequence[Arm]) -> ProofPlan | None:
        """How a proof was planned that has begun; None: it has not, or that was not kept then."""
        return next((block.plan for block in self.proof_blocks(first)), None)

    def against_itself(self) -> Interval | None:
        """What the default is against itself: no gain, as exactly as the calibration knows."""
        aa = [pair.log_ratio for pair in self.own_calibration]
        if len(aa) < 2:
            return None
        half = fixed_interval(aa, REPORTED_ERROR).half_width
        return Interval(0.0, -half, half, len(aa))

    def has_gone_on(self, last: Block) -> bool:
        """Whether the machine has begun another proof since that block of one, or the panel."""
        first = last.outcomes[1].arm
        others = (b for b in self.own_blocks("confirm") if b.outcomes[1].arm != first)
        later = filter(self.is_own, (*self.panel, *self.on_program))
        return any(block.number > last.number for block in (*later, *others))

    def failures(self) -> Counter[str]:
        outcomes = (outcome for block in self.blocks for outcome in block.outcomes)
        return Counter(outcome.failure for outcome in outcomes if not outcome.ok)

    # ---- what is estimated -----------------------------------------------------------------------

    def noises_on(self, part: int) -> Noise:
        return estimate_noise(self.calibration.each[part : part + 1]) or _USUAL_NOISE

    def noise(self) -> Noise:
        return self.noises().on(self.machine)

    def noises(self) -> Noise:
        """The noise of a pair on each machine, from everything that was measured twice there.

        Without those far slower than the default, which scatter so much that all would seem unsure.
        """

        def estimated() -> Noise:
            records = (*self.searched.values(), *self.fresh_by_arm.values())
            near = [
                record.pairs
                for record in records
                if record.pairs and fmean(record.log_ratios) >= FAR_BEHIND
            ]
            found = estimate_noise([self.calibration.pairs, *near])
            return found or estimate_noise([record.pairs for record in records]) or _USUAL_NOISE

        return self._once("noises", estimated)

    def memory_noises(self) -> Noise:
        """The noise of a log saving of memory on each machine; never below _LEAST_SCATTER."""

        def coarse(noise: Noise) -> Noise:
            return replace(noise, between=max(noise.between, _LEAST_SCATTER**2))

        def estimated() -> Noise:
            groups = [record.savings for record in self.searched.values()]
            found = estimate_noise([self.calibration.savings, *groups]) or _USUAL_SCATTER
            own = {machine: coarse(noise) for machine, noise in found.own.items()}
            return replace(coarse(found), own=own)

        return self._once("memory noises", estimated)

    def excess_scatter(self) -> float:
        """Standard deviation of how far one pair is above the memory limit, in log units."""
        groups = [
            self.calibration.excesses,
            *(record.excesses for record in self.searched.values()),
        ]
        known = [(fmean(group), group) for group in groups if len(group) > 1]
        squares = sum((each - mean) ** 2 for mean, group in known for each in group)
        df = sum(len(group) - 1 for _, group in known)
        return max(_LEAST_SCATTER, math.sqrt(squares / df)) if df else _USUAL_SCATTER_SD

    def estimates(self) -> dict[str, Estimate]:
        def pooled() -> dict[str, Estimate]:
            keys = [key for key, record in self.searched.items() if record.feasible]
            found = pool([self.searched[key].pairs for key in keys], self.noises())
            return dict(zip(keys, found, strict=True))

        return self._once("estimates", pooled)

    def _once(self, what: str, make: Callable[[], _Kept]) -> _Kept:
        """What was made of as many blocks as there are, or is made now."""
        kept = self._memo.get(what)
        if kept is None or kept[0] != len(self.blocks):
            kept = self._memo[what] = len(self.blocks), make()
        return kept[1]  # type: ignore[return-value]


def _pooled(pairs: Sequence[PairRatio], noise: Noise) -> Interval:
    mean, error = pool_plain(pairs, noise)
    return Interval(mean, mean - NORMAL_95 * error, mean + NORMAL_95 * error, len(pairs))


def interval_of(pairs: Sequence[float]) -> Interval | None:
    """The 95 % interval of log ratios that are looked at once; None while there are too few."""
    if len(pairs) < LEAST_PLANNED:
        return None
    return planned_interval(pairs, REPORTED_ERROR, len(pairs), is_last=True)


def loss_words(ledger: Ledger, record: ArmRecord) -> str:
    limit, each = ledger.max_loss, record.shares
    assert limit is not None and each  # or it was not refused for that
    ends = [-math.inf if interval is None else interval.low for interval in each]
    part = ends.index(min(ends))
    seen, name = each[part], limit.workloads[part] if limit.workloads else f"workload {part + 1}"
    told = f", which is {seen.text} of the default's on {seen.pairs} pairs" if seen else ""
    return f"it may lose more than {limit.text} on {name}{told}"
