"""What the rows of a canary say: promote, hold or revert.

*Promote* needs each metric to be no worse than its margin, and a target to be better. *Revert*
needs one metric to be worse than its margin, or a guard rail to be crossed. Each is false in at
most `error` of canaries, whenever one looks: of all metrics being no worse each is tested at the
full error (Berger, Technometrics 24, 1982); targets share it, and so do the ways to revert.

Events of a rail come in clusters: one broken host restarts all night. So the first event of each
unit counts. Were the change nothing, the next one would hit a treated unit with the share of those
that have had none, t / (t + c), as units were drawn at random. A bet that treated ones are r times
as likely multiplies by r (t + c) / (r t + c) or by (t + c) / (r t + c): a fair bet, whose product
over all events ever reaches 1 / error with a probability of at most `error` (Ville's inequality;
the safe logrank test of ter Schure, Perez-Ortiz, Ly and Grunwald). Where most units have had one,
their counts are compared as a metric is. `most` reverts without a test.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hztune.canary.effects import LEAST_UNITS, FloatTable, UnitEffects, critical, effect_of, levels
from hztune.canary.sources import FleetRow
from hztune.canary.spec import Canary, CanaryMetric, GuardRail
from hztune.canary.timetable import LEAST_SHARE, FleetTables, events, silences, tabled
from hztune.stats.intervals import Interval

CanaryAnswer = Literal["promote", "hold", "revert"]

_TIMES_AS_LIKELY = np.array([2.0, 4.0, 16.0, 256.0])
_MOST_UNITS = 10_000
_LEAST_BLOCKS = 5
_MOST_ZEROS = 0.05  # or infinite ones, of the figures of a metric
_SILENT = GuardRail(name="silent")  # the rail that each canary has


class MetricEffect(NamedTuple):
    """Treated to control: log ratio, or difference."""

    metric: CanaryMetric
    why: str  # it is not decided
    least: float = -math.inf  # that it may have become worse by, at all times
    most: float = math.inf
    interval: Interval | None = None  # the same ends as they are read; `pairs` are units
    deviations: Sequence[float] = ()  # of each treated unit

    @property
    def is_better(self) -> bool:
        return self.most < 0.0

    @property
    def is_no_worse(self) -> bool:
        return self.most < self.metric.worst

    @property
    def is_worse(self) -> bool:
        return self.least > self.metric.worst


class RailEvents(NamedTuple):
    name: str
    events: tuple[int, int]  # of control, treated
    hit: tuple[int, int]  # units with one
    is_crossed: bool


class CanaryVerdict(NamedTuple):
    answer: CanaryAnswer
    reasons: tuple[str, ...]
    effects: tuple[MetricEffect, ...]
    rails: tuple[RailEvents, ...]
    passed_s: float  # since the start
    unseen: tuple[str, ...]  # units of which there is no row
    is_settled: bool  # nothing is to be waited for


def verdict_of(rows: Iterable[FleetRow], canary: Canary) -> CanaryVerdict:
    """The verdict on all rows so far, in any order."""
    return decided(tabled(rows, canary), canary)


def decided(tables: FleetTables, canary: Canary) -> CanaryVerdict:
    treated = np.array([unit.is_treated for unit in canary.units])
    rails = tuple(_rails(tables, canary, treated))
    effects = tuple(_effect(tables, canary, treated, each) for each in canary.spec.metrics)
    seen = tables.blocks[tables.seen.any(axis=1)]
    passed_s = canary.spec.step_s * max(0, int(seen.max(initial=-1)) + 1)
    bad = [f"the guard rail {each.name} is crossed" for each in rails if each.is_crossed]
    bad += [f"{each.metric.name} is worse by more than {each.metric.margin}"
            for each in effects if each.is_worse]  # fmt: skip
    better = [each.metric.name for each in effects if each.metric.target and each.is_better]
    is_safe = all(each.is_no_worse for each in effects)
    are_alike = is_safe and all(each.least > -each.metric.worst for each in effects)
    answer: CanaryAnswer = "revert" if bad else "promote" if better and is_safe else "hold"
    open_ = [f"{each.metric.name}: {each.why}" for each in effects
             if not each.is_no_worse or (each.metric.target and not better)]  # fmt: skip
    if answer == "promote" or are_alike:
        open_ = [f"{name} is better, and no metric is worse by its margin" for name in better]
        open_ = open_ or ["both groups are alike within all margins"]
    if not passed_s:
        open_ = [f"it begins at {canary.spec.start}, and no row is of that time or later"]
    unseen = tuple(canary.units[at].name for at in np.flatnonzero(~tables.seen.any(axis=0)))
    is_over = answer != "hold" or are_alike
    return CanaryVerdict(answer, tuple(bad or open_), effects, rails, passed_s, unseen, is_over)


def _rails(tables: FleetTables, canary: Canary, treated: NDArray[np.bool_]) -> Iterator[RailEvents]:
    error, unknown = canary.spec.revert_error, np.full(len(treated), math.nan)
    for rail in (*canary.spec.rails, _SILENT):
        found = silences(tables) if rail is _SILENT else events(tables, rail.rows)
        found = found[tables.blocks > 0]  # what a counter shows in block 0 may be of before
        each = found.sum(axis=0)
        own, other = each[treated], each[~treated]
        beyond = own.sum() - other.sum() * len(own) / len(other)
        is_crossed = log_odds(found, treated) >= -math.log(error)
        is_crossed |= rail.most is not None and bool(beyond > rail.most)
        rate = effect_of(each, unknown, treated, _strata(canary), np.ones(len(each)))
        if rate is not None and each.any():
            passed = len(found) * canary.spec.step_s / canary.spec.planned_s
            is_crossed |= rate.estimate > critical(passed, error, rate.df) * rate.error
        hit = int((other > 0.0).sum()), int((own > 0.0).sum())
        yield RailEvents(rail.name, (int(other.sum()), int(own.sum())), hit, is_crossed)


def _strata(canary: Canary) -> NDArray[np.int_]:
    return np.unique([unit.stratum for unit in canary.units], return_inverse=True)[1]


def log_odds(found: FloatTable, treated: NDArray[np.bool_]) -> float:
    """What bets have won that treated units have their first event sooner, log.

    `found`: events, shape (blocks, units).
    """
    hit = np.flatnonzero((found > 0.0).any(axis=0))
    clean = [int((~treated).sum()), int(treated.sum())]
    won = np.zeros(len(_TIMES_AS_LIKELY))
    for unit in sorted(hit, key=lambda unit: int((found[:, unit] > 0.0).argmax())):
        own = int(treated[unit])
        share = sum(clean) / (_TIMES_AS_LIKELY * clean[1] + clean[0])
        won += np.log(share * (_TIMES_AS_LIKELY if own else 1.0))
        clean[own] -= 1
    return float(np.logaddexp.reduce(won)) - math.log(len(won))


def _effect(
    tables: FleetTables, canary: Canary, treated: NDArray[np.bool_], metric: CanaryMetric
) -> MetricEffect:
    figures = tables.figures(metric)
    shares = [np.isfinite(figures)[:, each].mean(axis=1) for each in (treated, ~treated)]
    use = np.minimum(*shares) >= LEAST_SHARE
    after = figures[use & (tables.blocks >= math.ceil(canary.spec.settle_s / canary.spec.step_s))]
    before = figures[use & (tables.blocks < 0)]
    rows = tables.means[metric.rows]
    seen, endless = int((~np.isnan(rows)).sum()), int(np.isinf(rows).sum())
    zeros = int((rows <= 0.0).sum())
    if not seen:
        return MetricEffect(metric, "there is no row of it")
    if endless > _MOST_ZEROS * seen:
        return MetricEffect(metric, f"{endless} of {seen} figures are infinite")
    if metric.is_ratio and not metric.counter and zeros > _MOST_ZEROS * seen:
        return MetricEffect(metric, f"{zeros} of {seen} figures are 0 or less, which have no "
                            "ratio; a number as its margin compares differences")  # fmt: skip
    if len(after) < _LEAST_BLOCKS:
        return MetricEffect(metric, f"{len(after)} blocks of the {_LEAST_BLOCKS} that are needed")
    weights = np.isfinite(after).mean(axis=0)
    found = effect_of(levels(after), levels(before), treated, _strata(canary), weights)
    if found is None:
        return MetricEffect(metric, f"it needs {LEAST_UNITS} units of each group at least that "
                            "report it, in strata with both groups")  # fmt: skip
    passed = len(after) * canary.spec.step_s / canary.spec.planned_s
    return _judged(metric, canary, found, passed)


def _judged(
    metric: CanaryMetric, canary: Canary, found: UnitEffects, passed: float
) -> MetricEffect:
    sign = -1.0 if metric.more_is_better else 1.0
    targets = sum(each.target for each in canary.spec.metrics)
    risks = canary.spec.revert_error, canary.spec.error / targets
    halves = [critical(passed, risk, found.df) * found.error for risk in risks]
    cost = sign * found.estimate
    units = int(np.isfinite(found.deviations).sum())
    shown = Interval(cost, cost - halves[0], cost + halves[1], units)
    aim = metric.worst - (0.0 if metric.target else cost)
    needed = _units_for(aim, found, units, lambda df: critical(passed, risks[1], df))
    why = f"not decided; about {needed} units a group would tell its margin by now"
    why = why if 0.0 < aim < halves[1] else "not decided"
    own = [float(each) for each, unit in zip(found.deviations, canary.units, strict=True)
           if unit.is_treated and math.isfinite(each)]  # fmt: skip
    read = shown if sign > 0.0 else shown.reciprocal
    return MetricEffect(metric, why, shown.low, shown.high, read, own)


def _units_for(aim: float, found: UnitEffects, units: int, bound: Callable[[float], float]) -> int:
    """How many of a group make half of the interval as narrow as `aim`."""
    needed = units
    while needed < _MOST_UNITS:
        df = max(1.0, needed - units + found.df)
        if bound(df) * found.error * math.sqrt(units / needed) <= aim:
            break
        needed = math.ceil(1.05 * needed)
    return math.ceil(needed / 2)
