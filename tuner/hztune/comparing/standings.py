"""What the blocks of one row say: each contender against the first, the first against the best."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from hztune.blocks import CPU_TIME, Block, Outcome, fixed
from hztune.comparing.contenders import Amount
from hztune.comparing.gate import Horizon
from hztune.result.kept import Keeper, keeper
from hztune.stats.intervals import Interval, fixed_interval
from hztune.stats.noise import pooled_mean
from hztune.stats.ratios import log_memory_ratio, pair_ratio

ALPHA = 0.05  # every interval covers with 95 %


@dataclass(frozen=True, slots=True)
class Standing:
    name: str
    ops_per_s: float  # median over the blocks in which it ran well; 0.0 if there is none
    rss_mb: float  # median of its peak resident memory, MiB; 0.0 when unknown
    speed: Interval | None  # log of it over the first one's; None when they were never both well
    memory: Interval | None  # the same of its peak memory
    cpu: Interval | None = None  # the same of the CPU time of a program's run
    failures: tuple[str, ...] = ()  # how it failed, one phrase for each block in which it did
    # what the allocator counted in a process, and what is known of the process itself (ops,
    # minor_faults), mean over the blocks; by name
    counters: Mapping[str, float] = field(default_factory=dict)
    keeps: Keeper | None = None  # what it keeps at rest; None: it was not looked at then
    kept: Interval | None = None  # log of that over what the first one keeps

    def __post_init__(self) -> None:
        object.__setattr__(self, "counters", fixed(self.counters))


@dataclass(frozen=True, slots=True)
class Standings:
    """All contenders on one row, the first one first."""

    label: str  # the row, as WorkloadSpec.label has it
    all: tuple[Standing, ...]
    best: str  # name of the fastest of the others; "" when none of them ran
    # Log of the first one's speed over that one's. The best is chosen by the same measurements, so
    # that with several of nearly the same speed this leans against the first one.
    lead: Interval | None
    amount: Amount = "ops_per_s"  # what `ops_per_s` of its contenders is

    def of(self, name: str) -> Standing:
        return next(each for each in self.all if each.name == name)

    def rate(self, standing: Standing) -> float:
        """The first one's median times the ratio: a median of other moments may contradict that."""
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
    *,
    amount: Amount = "ops_per_s",
    horizon: Horizon | None = None,
) -> Standings:
    """What the blocks of a row say; under a gate (`horizon`) its intervals allow for the looks."""
    found = tuple(_standing(name, i, blocks, horizon) for i, name in enumerate(names))
    others = [each for each in found[1:] if each.speed is not None]
    best = max(others, key=lambda each: _estimate(each.speed), default=None)
    lead = best.speed.reciprocal if best is not None and best.speed is not None else None
    return Standings(label, found, best.name if best else "", lead, amount)


def between(
    blocks: Sequence[Block], over: int, arm: int, horizon: Horizon | None = None
) -> tuple[Interval | None, Interval | None]:
    """Logs of speed and of peak memory, contender `arm` over contender `over`; None: unknown."""
    pairs = [(block.outcomes[over], block.outcomes[arm]) for block in blocks]
    speeds = [ratio.log_ratio if (ratio := pair_ratio(*pair)) else None for pair in pairs]
    return _interval(speeds, horizon), _interval([log_memory_ratio(*pair) for pair in pairs])


def geometric_mean(intervals: Sequence[Interval]) -> Interval | None:
    """The mean of independent log ratios (`stats.noise.pooled_mean`); None: there are none."""
    known = [each for each in intervals if math.isfinite(each.half_width)]
    return pooled_mean(known, ALPHA) if known else None


def _standing(name: str, index: int, blocks: Sequence[Block], horizon: Horizon | None) -> Standing:
    pairs = [(block.control, block.outcomes[index]) for block in blocks]
    outcomes = [outcome for _, outcome in pairs]
    well = [outcome for outcome in outcomes if outcome.ok]
    counted = [{**outcome.facts, **outcome.counters} for outcome in well]
    shared = [key for key in counted[0] if all(key in each for each in counted)] if well else []
    speed, memory = between(blocks, 0, index, horizon)
    return Standing(
        name=name,
        ops_per_s=median([o.ops_per_s for o in well] or [0.0]),
        rss_mb=median([o.rss_peak_kb / 1024 for o in well] or [0.0]),
        speed=speed,
        memory=memory,
        cpu=_interval([_log_cpu_ratio(*pair) for pair in pairs]),
        failures=tuple(f"{o.status}: {o.detail}" for o in outcomes if not o.ok),
        counters={key: fmean(each[key] for each in counted) for key in shared},
        keeps=keeper([o.rested for o in well]),
        kept=_interval([log_memory_ratio(*pair, "kept") for pair in pairs]),
    )


def _log_cpu_ratio(reference: Outcome, candidate: Outcome) -> float | None:
    before, after = ({**o.facts, **o.counters}.get(CPU_TIME, 0) for o in (reference, candidate))
    return math.log(after / before) if reference.ok and candidate.ok and before and after else None


def _interval(values: Sequence[float | None], horizon: Horizon | None = None) -> Interval | None:
    """The interval of log ratios that are known; infinitely wide where they are too few."""
    logs = [each for each in values if each is not None]
    if not logs or horizon is None:
        return fixed_interval(logs, ALPHA) if logs else None
    endless = Interval(fmean(logs), -math.inf, math.inf, len(logs))
    return horizon.question(logs).reported() or endless


def _estimate(interval: Interval | None) -> float:
    return interval.estimate if interval is not None else -math.inf
