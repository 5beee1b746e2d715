"""The ledger: everything a study has measured, sorted into what each decision may look at.

A decision is a function of the ledger alone. So a study that was stopped goes on by reading its
blocks back: no decision on the way is stored. Pairs of role `confirm` are kept apart: no selection
sees them.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist, fmean

from hztune.blocks import Arm, Block, Outcome
from hztune.gc_freeze import gc_frozen
from hztune.rests import MemoryKind
from hztune.stats import (
    NORMAL_95,
    Estimate,
    Noise,
    Noises,
    PairRatio,
    estimate_noises,
    log_memory_ratio,
    pair_ratio,
    part_ratios,
    pool,
    pool_plain,
    saving_ratio,
)
from hztune.trial.limits import LossLimit, MemoryLimit

FAR_BEHIND = -0.35
"""Log ratio below which it does not matter how slow a configuration is: `FAR` of the sparse model,
which is a room of its own and knows nothing else of hztune; a test holds both to be equal."""

_USUAL_NOISE = Noises(Noise(between=0.05**2, per_round=0.1**2, df=1.0), {})
"""Stands in until a study has measured its own; a figure for a busy machine."""

_USUAL_SCATTER_SD = 0.02
_USUAL_SCATTER = Noises(Noise(between=_USUAL_SCATTER_SD**2, per_round=0.0, df=1.0), {})
"""The same of peak memory."""

_ANY_KB = 1 << 20
"""Stands for the memory of a default that has not run: a relative limit asks for no amount."""

_LEAST_SCATTER = 0.001
"""Standard deviation below which peak memory is not known: it is counted in pages, at moments."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What a record takes in of a pair beside its speed.

    Attributes:
        limit: The memory limit; None: there is none.
        max_loss: What may be lost of several speeds; None: there is one only.
        memory: Which memory the study looks at.
    """

    limit: MemoryLimit | None = None
    max_loss: LossLimit | None = None
    memory: MemoryKind = "rss"

    def each(self, control: Outcome, outcome: Outcome) -> tuple[PairRatio | None, ...]:
        """What a pair says of each of several speeds; empty where there is one only."""
        if self.max_loss is not None:
            return self.max_loss.ratios(control, outcome)
        return part_ratios(control, outcome)


@dataclass
class ArmRecord:
    """What was measured of one arm in one role; variables call it a record.

    Attributes:
        arm: Whose it is.
        pairs: Against the default, in order of time.
        savings: The same of the memory that the study looks at: log ratios of the default's to its
            own.
        peaks: Log ratios of its peak memory to the default's.
        kept: The same of what it keeps at rest.
        excesses: How far it was above the memory limit, in log units; empty without a limit.
        each: The pairs on each of several workloads; empty where there is one only.
        loss: How far it is shown to be below what one of them may lose, in log units; -1: nowhere.
        failures: Outcomes that were not ok.
        last: The last outcome that was ok.
    """

    arm: Arm
    pairs: list[PairRatio] = field(default_factory=list)
    savings: list[PairRatio] = field(default_factory=list)
    peaks: list[float] = field(default_factory=list)
    kept: list[float] = field(default_factory=list)
    excesses: list[float] = field(default_factory=list)
    each: list[list[PairRatio]] = field(default_factory=list)
    loss: float = -1.0
    failures: list[Outcome] = field(default_factory=list)
    last: Outcome | None = None

    @property
    def log_ratios(self) -> list[float]:
        """The log ratio of each pair."""
        return [pair.log_ratio for pair in self.pairs]

    @property
    def memory(self) -> list[float]:
        """The log ratio of the study's memory to the default's in each pair where it is known."""
        return [-saving.log_ratio for saving in self.savings]

    @property
    def rss_ratio(self) -> float | None:
        """Peak memory to the default's, the mean of all pairs; None: not known."""
        return math.exp(sum(self.peaks) / len(self.peaks)) if self.peaks else None

    def ratio_of(self, memory: MemoryKind) -> float | None:
        """One of these two."""
        return self.rss_ratio if memory == "rss" else self.kept_ratio

    @property
    def kept_ratio(self) -> float | None:
        """What it keeps at rest to what the default keeps, likewise."""
        return math.exp(sum(self.kept) / len(self.kept)) if self.kept else None

    @property
    def violations(self) -> dict[str, float]:
        """By constraint, above 0 where it is violated; always the same names."""
        return {
            "ran": 1.0 if self.failures else -1.0,
            "max_rss": self._excess(),
            "max_loss": self.loss,
        }

    @property
    def feasible(self) -> bool:
        """Whether it never failed and keeps the limit on average."""
        keeps = not self.failures and self.loss <= 0.0 and self._excess() <= 0.0
        return bool(self.pairs) and keeps

    @property
    def is_far_behind(self) -> bool:
        """Whether it is so slow that it does not matter how slow."""
        ratios = self.log_ratios
        return bool(ratios) and sum(ratios) < FAR_BEHIND * len(ratios)

    def excess_end(self, scatter: float, among: int) -> float:
        """How far above the memory limit it may be, in log units: the 95 % end of its mean.

        Args:
            scatter: Standard deviation of one pair.
            among: Configurations of which one is chosen by this; all ends hold together.
        """
        if not self.excesses:
            return math.inf
        bound = NormalDist().inv_cdf(1.0 - 0.025 / among)
        return self._excess() + bound * scatter / math.sqrt(len(self.excesses))

    def _excess(self) -> float:
        """How far it is above the memory limit on average, in log units; -1 without a limit."""
        return sum(self.excesses) / len(self.excesses) if self.excesses else -1.0

    def add(self, block: Block, outcome: Outcome, rules: Rules) -> None:
        """Takes what one block says about the arm."""
        control = block.control
        if not outcome.ok:
            self.failures.append(outcome)
            return
        self.last = outcome
        pair, saving = pair_ratio(control, outcome), saving_ratio(control, outcome, rules.memory)
        if pair is not None:
            self.pairs.append(replace(pair, machine=block.machine, block=block.number))
        if saving is not None:
            self.savings.append(replace(saving, machine=block.machine, block=block.number))
        _append(self.peaks, log_memory_ratio(control, outcome, "rss"))
        _append(self.kept, log_memory_ratio(control, outcome, "kept"))
        if rules.limit is not None:
            _append(self.excesses, rules.limit.excess_of(control, outcome))
        _enter(self.each, rules.each(control, outcome), block.machine)


@dataclass
class Ledger:
    """All blocks of a study.

    Attributes:
        limit: The memory limit under which the study runs.
        max_loss: What each of several workloads may lose; None: there is one only.
        blocks: In order of time.
        searched: What the search may look at, by the arm's key, in order of first measurement.
        fresh_by_arm: The fresh pairs of each arm that was to be proved, by its key; only the proof
            may look at them. Of an arm that was in several attempts, what the last one measured.
        calibration: A/A pairs.
        calibration_each: The same on each of several workloads.
        calibration_memory: The same of peak memory.
        panel: Blocks on workloads of the panel, in order of time: nothing else may look at them.
        on_program: Blocks of the program itself, where the rest is of its trace, in order of time:
            nothing else may look at them.
        void: Blocks in which the control failed; they say nothing about any arm.
        machine: Whose pairs confirm, by what tells it from others; "" where there is
            one only. The search learns from all machines.
        memory: Which memory is looked at beside speed.
    """

    limit: MemoryLimit | None = None
    max_loss: LossLimit | None = None
    blocks: list[Block] = field(default_factory=list)
    searched: dict[str, ArmRecord] = field(default_factory=dict)
    fresh_by_arm: dict[str, ArmRecord] = field(default_factory=dict)
    calibration: list[PairRatio] = field(default_factory=list)
    calibration_each: list[list[PairRatio]] = field(default_factory=list)
    calibration_memory: list[PairRatio] = field(default_factory=list)
    panel: list[Block] = field(default_factory=list)
    on_program: list[Block] = field(default_factory=list)
    void: list[Block] = field(default_factory=list)
    machine: str = ""
    memory: MemoryKind = "rss"
    _pooled: tuple[int, dict[str, Estimate]] | None = field(default=None, compare=False)
    _noises: tuple[int, Noises] | None = field(default=None, compare=False)
    _memory_noises: tuple[int, Noises] | None = field(default=None, compare=False)
    _fresh: dict[tuple[Arm, Arm], ArmRecord] = field(default_factory=dict, compare=False)
    _between: dict[tuple[Arm, Arm, Arm], tuple[int, list[PairRatio]]] = field(
        default_factory=dict, compare=False
    )
    _own_excesses: list[float] = field(default_factory=list, compare=False)  # of the control
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
        """The ledger of a study that was measured before."""
        ledger = cls(limit, max_loss, machine=machine, memory=memory)
        with gc_frozen():
            for block in blocks:
                ledger.add(block)
        return ledger

    @property
    def next_number(self) -> int:
        """Number of the next block."""
        kinds = (self.blocks, self.panel, self.on_program)
        last = [blocks[-1].number for blocks in kinds if blocks]
        return max(last, default=-1) + 1

    @property
    def configurations(self) -> int:
        """Number of different configurations that the search has measured."""
        return len(self.searched)

    @property
    def default_breaks_limit(self) -> bool:
        """Whether the default breaks the memory limit, so that something else has to be found."""
        return self.control_excess() > 0.0

    @property
    def seeks_kept(self) -> bool:
        """Whether memory at rest is what is made less."""
        return self.max_loss is not None and self.max_loss.of_load

    def control_excess(self) -> float:
        """How far the default is above the memory limit, in log units; -1 without a limit."""
        if self.limit is None:
            return -1.0
        held = ((limit, self._held[limit.memory]) for limit in self.limit.all())
        found = [
            limit.excess(*2 * (_middle(known or [_ANY_KB]),))
            for limit, known in held
            if known or limit.ratio
        ]
        return max(found, default=-1.0)

    @property
    def rules(self) -> Rules:
        """What its records take in of a pair."""
        return Rules(self.limit, self.max_loss, self.memory)

    def add(self, block: Block) -> None:
        """Takes a block in."""
        if block.workload or block.role == "panel":
            (self.panel if block.role == "panel" else self.on_program).append(block)
            return
        self.blocks.append(block)
        self._note_memory(block.control)
        if not block.control.ok:
            self.void.append(block)
        elif block.role == "aa":
            self._calibrate(block)
        elif block.role == "search":
            for outcome in block.outcomes[1:]:
                record = self.searched.setdefault(outcome.arm.key, ArmRecord(outcome.arm))
                self._record(record, block, outcome)
        elif block.role == "confirm" and self.is_own(block):
            for arm, outcome in ((each.arm, each) for each in block.outcomes[1:]):
                record = self._fresh.setdefault((block.outcomes[1].arm, arm), ArmRecord(arm))
                self._record(record, block, outcome)
                self.fresh_by_arm[arm.key] = record

    def _note_memory(self, control: Outcome) -> None:
        """Notes what the control held."""
        for memory, held in self._held.items():
            if kb := control.memory_kb(memory):
                insort(held, kb)

    def fresh(self, arm: Arm, first: Arm | None = None) -> ArmRecord:
        """The fresh pairs of an arm in one attempt at a proof, as many as there are by now.

        Args:
            arm: Whose.
            first: The first arm of the attempt's chain, which no other attempt begins with; None:
                the arm itself.
        """
        return self._fresh.get((first or arm, arm)) or ArmRecord(arm)

    def fresh_pairs(self, one: Arm, other: Arm, first: Arm) -> list[PairRatio]:
        """What each fresh block that holds both says of `other` against `one`, in order of time.

        Args:
            one: What is compared with.
            other: What is compared.
            first: The first arm of the attempt's chain.
        """
        seen, found = self._between.get((one, other, first), (0, []))
        for block in filter(self.is_own, self.blocks[seen:]):
            if block.role == "confirm" and block.control.ok and block.outcomes[1].arm == first:
                by_arm = {outcome.arm: outcome for outcome in block.outcomes}
                if one in by_arm and other in by_arm:
                    pair = pair_ratio(by_arm[one], by_arm[other])
                    found += [pair] if pair is not None else []
        self._between[one, other, first] = len(self.blocks), found
        return [*found]

    def _record(self, record: ArmRecord, block: Block, outcome: Outcome) -> None:
        """Enters what one block says about an arm."""
        record.add(block, outcome, self.rules)
        record.loss = self._loss(record)

    def is_own(self, measured: Block | PairRatio) -> bool:
        """Whether the machine that confirms has measured it."""
        return not self.machine or measured.machine == self.machine

    @property
    def own_calibration(self) -> list[PairRatio]:
        """The A/A pairs of that machine."""
        return [pair for pair in self.calibration if self.is_own(pair)]

    @property
    def calm_controls(self) -> list[Outcome]:
        """What the default showed by itself, on that machine: of the calibration."""
        blocks = (block for block in self.own_blocks() if block.role == "aa")
        return [outcome for block in blocks for outcome in block.outcomes]

    def own_blocks(self) -> list[Block]:
        """Every block of that machine, in order of time."""
        return [block for block in self.blocks if self.is_own(block)]

    def until(self, last: Block) -> Ledger:
        """What it knew when one of its blocks had just been entered."""
        if self.blocks[-1] is last:
            return self
        count = next(n for n, block in enumerate(self.blocks, start=1) if block is last)
        known = self.blocks[:count]
        return Ledger.of(known, self.limit, self.max_loss, self.machine, self.memory)

    def as_calibrated(self) -> Ledger:
        """What it knew when the machine had calibrated; itself where it has not."""
        calibration = [block for block in self.own_blocks() if block.role == "aa"]
        return self.until(calibration[-1]) if calibration else self

    def has_gone_on(self, last: Block) -> bool:
        """Whether the machine has begun another proof since that block of one, or the panel."""
        later = (block for block in (*self.panel, *self.on_program) if self.is_own(block))
        first = last.outcomes[1].arm
        others = (
            block
            for block in self.own_blocks()
            if block.role == "confirm" and block.outcomes[1].arm != first
        )
        return any(block.number > last.number for block in (*later, *others))

    def _loss(self, record: ArmRecord) -> float:
        """How far the worst workload is below what it may lose, even if it was lucky to seem so.

        A configuration leaves the search for what it is shown to lose, not for one bad turn: so it
        is the upper end of its 95 % interval that counts.
        """
        if self.max_loss is None or not record.each:
            return -1.0
        ends = [
            mean + NORMAL_95 * error
            for mean, error in (
                pool_plain(pairs, self._noises_on(part)) for part, pairs in enumerate(record.each)
            )
        ]
        return self.max_loss.excess(min(ends))

    def _noises_on(self, part: int) -> Noises:
        """The noise of a pair on one of several workloads."""
        calibration = self.calibration_each[part : part + 1]
        return estimate_noises(calibration) or _USUAL_NOISE

    def noise_on(self, part: int) -> Noise:
        """The noise of a pair on one of several workloads, on the machine that confirms."""
        return self._noises_on(part).on(self.machine)

    def noise(self) -> Noise:
        """The noise of a pair on the machine that confirms."""
        return self.noises().on(self.machine)

    def noises(self) -> Noises:
        """The noise of a pair on each machine, from everything that was measured twice there.

        Those of configurations far slower than the default are left out: they scatter far more,
        and all others would seem unsure because of them.
        """
        if self._noises is None or self._noises[0] != len(self.blocks):
            self._noises = len(self.blocks), self._estimated_noises()
        return self._noises[1]

    def _estimated_noises(self) -> Noises:
        records = (*self.searched.values(), *self.fresh_by_arm.values())
        near = [record.pairs for record in records if not record.is_far_behind]
        return (
            estimate_noises([self.calibration, *near])
            or estimate_noises([record.pairs for record in records])
            or _USUAL_NOISE
        )

    def memory_noise(self) -> Noise:
        """The noise of a log saving of memory on the machine that confirms."""
        return self.memory_noises().on(self.machine)

    def memory_noises(self) -> Noises:
        """The noise of a log saving of memory on each machine.

        From the control itself, and from each that came twice.
        """
        if self._memory_noises is None or self._memory_noises[0] != len(self.blocks):
            groups = [record.savings for record in self.searched.values()]
            found = estimate_noises([self.calibration_memory, *groups]) or _USUAL_SCATTER
            own = {machine: _coarse(noise) for machine, noise in found.own.items()}
            self._memory_noises = len(self.blocks), Noises(_coarse(found.pooled), own)
        return self._memory_noises[1]

    def excess_scatter(self) -> float:
        """Standard deviation of how far one pair is above the memory limit, in log units.

        From each configuration that came twice, and from the control itself.
        """
        groups = [record.excesses for record in self.searched.values()]
        both = [self._own_excesses, *groups]
        known = [(fmean(group), group) for group in both if len(group) > 1]
        squares = sum((each - mean) ** 2 for mean, group in known for each in group)
        df = sum(len(group) - 1 for _, group in known)
        return max(_LEAST_SCATTER, math.sqrt(squares / df)) if df else _USUAL_SCATTER_SD

    def estimates(self) -> dict[str, Estimate]:
        """The pooled estimate of every feasible configuration of the search, by the arm's key."""
        if self._pooled is None or self._pooled[0] != len(self.blocks):
            self._pooled = len(self.blocks), self._pool()
        return self._pooled[1]

    def _pool(self) -> dict[str, Estimate]:
        keys = [key for key, record in self.searched.items() if record.feasible]
        pooled = pool([self.searched[key].pairs for key in keys], self.noises())
        return dict(zip(keys, pooled, strict=True))

    def failures(self) -> Counter[str]:
        """Number of failed outcomes by how they failed."""
        outcomes = (outcome for block in self.blocks for outcome in block.outcomes)
        return Counter(outcome.failure for outcome in outcomes if not outcome.ok)

    def _calibrate(self, block: Block) -> None:
        """A/A processes are taken two by two: pairs that share a process are not independent."""
        for one, other in zip(block.outcomes[::2], block.outcomes[1::2], strict=False):
            pair, saving = pair_ratio(one, other), saving_ratio(one, other, self.memory)
            if saving is not None:
                self.calibration_memory.append(replace(saving, machine=block.machine))
            if self.limit is not None:
                _append(self._own_excesses, self.limit.excess_of(one, other))
            if pair is not None:
                self.calibration.append(replace(pair, machine=block.machine))
                _enter(self.calibration_each, self.rules.each(one, other), block.machine)


def _coarse(noise: Noise) -> Noise:
    """The noise of memory, which is never known better than _LEAST_SCATTER."""
    return replace(noise, between=max(noise.between, _LEAST_SCATTER**2))


def _middle(values: Sequence[int]) -> float:
    """The median of values that are in order."""
    last = len(values) - 1
    return 0.5 * (values[last // 2] + values[(last + 1) // 2])


def _append(values: list[float], found: float | None) -> None:
    """Adds what is known."""
    if found is not None:
        values.append(found)


def _enter(each: list[list[PairRatio]], found: Sequence[PairRatio | None], machine: str) -> None:
    """Adds what one pair of outcomes says on each workload."""
    each.extend([] for _ in found[len(each) :])
    for pairs, pair in zip(each, found, strict=True):
        if pair is not None:
            pairs.append(replace(pair, machine=machine))
