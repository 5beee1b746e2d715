"""What the blocks of one row say: each contender against the first, the first against the best."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median

from hztune.blocks import CPU_TIME, Block, Outcome, fixed
from hztune.compare.contenders import Amount
from hztune.compare.gate import Horizon
from hztune.result.kept import Keeper, keeper
from hztune.stats.intervals import Interval, fixed_interval
from hztune.stats.noise import pooled_mean
from hztune.stats.ratios import log_memory_ratio, pair_ratio

ALPHA = 0.05
"""Every interval covers with 95 %."""

_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Standing:
    """One contender on one row.

    Attributes:
        name: Whose.
        ops_per_s: Median over the blocks in which it ran well; 0.0 if there is none.
        rss_mb: Median of its peak resident memory, MiB; 0.0 when unknown.
        speed: Log of its speed over the first one's; None when they were never both well.
        memory: Log of its peak memory over the first one's; None when unknown.
        cpu: The same of the CPU time of a program's run; None when it is none.
        failures: How it failed, one phrase for each block in which it did.
        counters: What the allocator counted in a process, and what is known of the process itself
            (ops, minor_faults), mean over the blocks; by name.
        instructions: Of one operation of the workload; None: not counted.
        keeps: What it keeps at rest; None: it was not looked at while it rested.
        kept: Log of that over what the first one keeps; None when unknown.
    """

    name: str
    ops_per_s: float
    rss_mb: float
    speed: Interval | None
    memory: Interval | None
    cpu: Interval | None = None
    failures: tuple[str, ...] = ()
    counters: Mapping[str, float] = field(default_factory=dict)
    instructions: float | None = None
    keeps: Keeper | None = None
    kept: Interval | None = None

    def __post_init__(self) -> None:
        """Takes a copy of the counters, which nothing can change."""
        object.__setattr__(self, "counters", fixed(self.counters))


@dataclass(frozen=True, slots=True)
class Standings:
    """All contenders on one row, the first one first.

    Attributes:
        label: The row, as WorkloadSpec.label has it.
        all: One for each contender.
        best: Name of the fastest of the others; "" when none of them ran.
        lead: Log of the first one's speed over that one's. The best is chosen by the same
            measurements, so that with several of nearly the same speed this leans against the
            first one, never towards it.
        frugality: The first one's peak memory over the median of the others'; None when unknown.
        amount: What `ops_per_s` of its contenders is.
    """

    label: str
    all: tuple[Standing, ...]
    best: str
    lead: Interval | None
    frugality: float | None
    amount: Amount = "ops_per_s"

    def of(self, name: str) -> Standing:
        """Returns the standing of the contender called `name`."""
        return next(each for each in self.all if each.name == name)

    def rate(self, standing: Standing) -> float:
        """What is shown beside its ratio: the first one's median times that ratio.

        Its own median is of other moments: beside a load it contradicts the ratio of the pairs.
        """
        first = self.all[0].ops_per_s
        is_paired = standing.speed is not None and first > 0.0
        return first * math.exp(_estimate(standing.speed)) if is_paired else standing.ops_per_s

    def cpu_s(self, standing: Standing) -> float | None:
        """The same of its CPU time, seconds; None where that is not known."""
        first = self.all[0].counters.get(CPU_TIME)
        return 1e-6 * first * math.exp(standing.cpu.estimate) if first and standing.cpu else None


def standings(
    label: str,
    names: Sequence[str],
    blocks: Sequence[Block],
    instructions: Sequence[float] = (),
    *,
    amount: Amount = "ops_per_s",
    horizon: Horizon | None = None,
) -> Standings:
    """Returns what the blocks of a row say.

    Args:
        label: The row.
        names: The contenders, in the order of every block's outcomes.
        blocks: All of the row.
        instructions: Of one operation of each contender; () when they were not counted.
        amount: What their figures are.
        horizon: The plan of a gate, whose intervals allow for its looks; None: no ratio decided
            the number of blocks.
    """
    found = tuple(
        replace(
            _standing(name, i, blocks, horizon),
            instructions=_rounded(instructions[i]) if instructions else None,
        )
        for i, name in enumerate(names)
    )
    others = [each for each in found[1:] if each.speed is not None]
    best = max(others, key=lambda each: _estimate(each.speed), default=None)
    lead = best.speed.reciprocal if best is not None and best.speed is not None else None
    return Standings(label, found, best.name if best else "", lead, _frugality(found), amount)


def between(
    blocks: Sequence[Block], over: int, arm: int, horizon: Horizon | None = None
) -> tuple[Interval | None, Interval | None]:
    """Returns the logs of speed and of peak memory of one contender over another's.

    Args:
        blocks: All of a row.
        over: The index of the one that the other is compared with.
        arm: The index of the other.
        horizon: The plan of a gate, by which alone its speeds are tested; None: there is none.

    Returns:
        Speed and memory; None: unknown.
    """
    pairs = [(block.outcomes[over], block.outcomes[arm]) for block in blocks]
    speeds = [pair_ratio(*pair) for pair in pairs]
    memory = [log_memory_ratio(*pair) for pair in pairs]
    return (
        _interval([each.log_ratio for each in speeds if each is not None], horizon),
        _interval([each for each in memory if each is not None]),
    )


def geometric_mean(intervals: Sequence[Interval]) -> Interval | None:
    """Returns the mean of independent log ratios with its interval; None when there are none.

    The standard errors add up in squares, the degrees of freedom after Welch and Satterthwaite
    (Biometrics Bulletin 2, 1946); see `stats.pooled_mean`.
    """
    known = [each for each in intervals if math.isfinite(each.half_width)]
    return pooled_mean(known, ALPHA) if known else None


def _standing(name: str, index: int, blocks: Sequence[Block], horizon: Horizon | None) -> Standing:
    """Returns one contender's standing from all blocks of a row."""
    pairs = [(block.control, block.outcomes[index]) for block in blocks]
    outcomes = [outcome for _, outcome in pairs]
    well = [outcome for outcome in outcomes if outcome.ok]
    speed, memory = between(blocks, 0, index, horizon)
    kept = [log_memory_ratio(*pair, "kept") for pair in pairs]
    cpu = [_log_cpu_ratio(*pair) for pair in pairs]
    return Standing(
        name=name,
        ops_per_s=_rounded(median([o.ops_per_s for o in well] or [0.0])),
        rss_mb=_rounded(median([o.rss_peak_kb / 1024 for o in well] or [0.0])),
        speed=speed,
        memory=memory,
        cpu=_interval([each for each in cpu if each is not None]),
        failures=tuple(f"{o.status}: {o.detail}" for o in outcomes if not o.ok),
        counters=_counters(well),
        keeps=keeper([o.rested for o in well]),
        kept=_interval([each for each in kept if each is not None]),
    )


def _log_cpu_ratio(reference: Outcome, candidate: Outcome) -> float | None:
    """Log of the CPU time over the first one's; None where one is not known."""
    before, after = ({**o.facts, **o.counters}.get(CPU_TIME, 0) for o in (reference, candidate))
    return math.log(after / before) if reference.ok and candidate.ok and before and after else None


def _interval(logs: Sequence[float], horizon: Horizon | None = None) -> Interval | None:
    """Returns the interval of some log ratios, rounded so that it can be written and read."""
    if not logs:
        return None
    found = (
        fixed_interval(logs, ALPHA)
        if horizon is None
        else horizon.question(logs).reported()
        or Interval(fmean(logs), -math.inf, math.inf, len(logs))
    )
    ends = (_rounded(found.estimate), _rounded(found.low), _rounded(found.high))
    return Interval(*ends, found.pairs)


def _estimate(interval: Interval | None) -> float:
    """Returns the estimate, below all others when there is none."""
    return interval.estimate if interval is not None else -math.inf


def _frugality(found: Sequence[Standing]) -> float | None:
    """Returns the first one's memory over the median of the others'."""
    others = [each.rss_mb for each in found[1:] if each.rss_mb > 0.0]
    return _rounded(found[0].rss_mb / median(others)) if others and found[0].rss_mb else None


def _counters(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Returns the mean of each counter; only those that every process has."""
    if not outcomes:
        return {}
    found = [{**outcome.facts, **outcome.counters} for outcome in outcomes]
    shared = [name for name in found[0] if all(name in each for each in found)]
    return {name: _rounded(fmean(each[name] for each in found)) for name in shared}


def _rounded(value: float) -> float:
    return round(value, _DIGITS)
