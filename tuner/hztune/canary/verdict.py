"""What the rows of a canary say: promote, hold or revert.

*Promote* needs each metric to be no worse than its margin, and a target to be better. *Revert*
needs one metric to be worse than its margin, or a guard rail to be crossed. However often one
looks, a change that is no better is promoted with a probability of at most `error`, and one that is
no worse is reverted with at most as much: targets share it, and so do the ways to revert.

Events of a rail come in clusters: one broken host restarts all night. So the first event of each
unit counts. Were the change nothing, the next one in a stratum would hit a treated unit with the
share of those that have had none, t / (t + c), as units were drawn at random. A bet that treated
ones are r times as likely multiplies by r (t + c) / (r t + c) or by (t + c) / (r t + c): a fair
bet, whose product over all events ever reaches 1 / error with a probability of at most `error`
(Ville's inequality; the safe logrank test of ter Schure, Perez-Ortiz, Ly and Grunwald). All events
are compared as a metric is, too, for where most units have had one. `most` reverts without a test.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hztune.canary.effects import LEAST_UNITS, FloatTable, UnitEffects, critical, effect_of, levels
from hztune.canary.sources import FleetRow
from hztune.canary.spec import Canary, CanaryMetric, GuardRail
from hztune.canary.timetable import (
    LEAST_SHARE,
    SILENT_BLOCKS,
    FleetTables,
    events,
    of_groups,
    silences,
    tabled,
)
from hztune.progress import duration
from hztune.stats.intervals import Interval, t_quantile

CanaryAnswer = Literal["promote", "hold", "revert"]

_TIMES_AS_LIKELY = np.array([2.0, 4.0, 16.0, 256.0])
_MOST_UNITS = 10_000  # of both groups, that a reason tells
_LEAST_BLOCKS = 5  # that a metric needs, or a rail to be told all the time, or to be missed
_LEAST_TIME = 0.25  # of the planned time, before groups are better or alike: a leak needs time
_LATE = 0.25  # of the time that has passed: its end
_MOST_ZEROS = 0.05  # or infinite ones, of the figures of a metric
_MOST_MISSING = 0.1  # of the figures of a unit, or of the treated units, by chance
_MORE_MISSING = 0.05  # of those of treated units than of control, but where one alone has died
_LEAST_MISSING = 0.001  # of them is a difference
_CHANCE = 0.025  # that a look holds though units of both groups lose as many: the next may not
_ROLLOUT = 0.25  # of the baseline: its end, which does not count
_FEW = 2  # blocks in which a unit tells a rail, which are no habit
_STEADY = 0.8  # of the blocks in which a unit is there: a rail that is told all the time
_SILENT = GuardRail(name="silent")  # the rail that each canary has


class MetricEffect(NamedTuple):
    """Treated to control: log ratio, or difference."""

    metric: CanaryMetric
    why: str  # it is not decided
    is_current: bool = False  # its rows reach far enough, and to the end
    least: float = -math.inf  # that it may have become worse by, at all times
    most: float = math.inf
    interval: Interval | None = None  # the same ends as they are read; `pairs` are units
    deviations: Sequence[float] = ()  # of each treated unit

    @property
    def is_better(self) -> bool:
        return self.is_current and self.most < 0.0

    @property
    def is_no_worse(self) -> bool:
        return self.is_current and self.most < self.metric.worst

    @property
    def is_worse(self) -> bool:
        return self.least > self.metric.worst


class RailEvents(NamedTuple):
    name: str
    events: tuple[int, int]  # of control, treated
    hit: tuple[int, int]  # units with one
    is_crossed: bool
    is_known: bool  # whether there is any row of it
    is_over: bool  # whether there is none any more


class CanaryVerdict(NamedTuple):
    answer: CanaryAnswer
    reasons: tuple[str, ...]
    effects: tuple[MetricEffect, ...]
    rails: tuple[RailEvents, ...]
    passed_s: float  # since the start
    unseen: tuple[str, ...]  # units of which no row is of that time
    is_settled: bool  # nothing is to be waited for


def verdict_of(rows: Iterable[FleetRow], canary: Canary) -> CanaryVerdict:
    return decided(tabled(rows, canary), canary)


def decided(tables: FleetTables, canary: Canary) -> CanaryVerdict:
    spec = canary.spec
    rails = tuple(_rails(tables, canary))
    effects = tuple(_effect(tables, canary, each) for each in spec.metrics)
    passed_s = spec.step_s * tables.passed
    old, here = (np.logical_or.reduce(tables.seen[lines])
                 for lines in (_baseline(tables, canary), tables.blocks >= 0))  # fmt: skip
    # one that never was there is not lost, unless others are new, and not one alone
    lost = ~here & (tables.seen.any(axis=0) | bool((here & ~old).sum() > 1))
    bad = [f"the guard rail {each.name} is crossed" for each in rails if each.is_crossed]
    if rails[-1].is_crossed:
        bad[-1] += "; if units were still being restarted, start is too early"
    bad += [f"{each.metric.name} is worse by more than {each.metric.margin}"
            for each in effects if each.is_worse]  # fmt: skip
    open_ = [f"the guard rail {each.name} is not told any more; if no series means no event, let "
             "its query give 0" for each in rails if each.is_over]  # fmt: skip
    if _too_many(lost, of_groups(canary)):
        open_.append("more of the treated units than of the control were not seen since the start")
    better = [each.metric.name for each in effects if each.metric.target and each.is_better]
    is_safe = not open_ and all(each.is_no_worse for each in effects)
    are_alike = is_safe and all(each.least > -each.metric.worst for each in effects)
    answer: CanaryAnswer = "revert" if bad else "promote" if better and is_safe else "hold"
    open_ += [f"{each.metric.name}: {each.why}" for each in effects
              if not each.is_no_worse or (each.metric.target and not better)]  # fmt: skip
    if answer == "promote" or are_alike:
        open_ = [f"{name} is better, and no metric is worse by its margin" for name in better]
        open_ = open_ or ["both groups are alike within all margins"]
    if not passed_s:
        open_ = [f"it begins at {spec.start}, and no row of a metric is of a later time"]
    names = tuple(canary.units[at].name for at in np.flatnonzero(~here) if passed_s)
    is_over = answer != "hold" or are_alike
    return CanaryVerdict(answer, tuple(bad or open_), effects, rails, passed_s, names, is_over)


def _rails(tables: FleetTables, canary: Canary) -> Iterator[RailEvents]:
    groups, risk = of_groups(canary), canary.spec.revert_error
    lines = tables.blocks >= -SILENT_BLOCKS  # when the change came, and after it
    for rail in (*canary.spec.rails, _SILENT):
        is_silence = rail is _SILENT
        rows = tables.seen if is_silence else np.isfinite(tables.lasts[rail.rows])
        found = silences(tables, canary) if is_silence else events(tables, rail.rows)
        # a unit that was never there since then is none to bet on, nor is one before it came
        seen = (tables.seen | rows)[lines].cumsum(axis=0) > 0
        here = seen.any(axis=0)
        found = found[tables.blocks >= 0][:, here]
        (treated, control), strata = (each[here] for each in groups), _strata(canary)[here]
        each = found.sum(axis=0)
        own, other = each[treated], each[control]
        beyond = own.sum() - other.sum() * len(own) / max(1, len(other))
        came = tables.blocks[lines].min(initial=0) + (~seen[:, here]).sum(axis=0)
        is_crossed = log_odds(found, treated, strata, came) >= -math.log(risk)
        is_crossed |= rail.most is not None and bool(beyond > rail.most)
        rate = effect_of(each, np.full(len(each), np.nan), treated, strata, np.ones(len(each)))
        if rate is not None and each.any():
            passed = len(found) * canary.spec.step_s / canary.spec.planned_s
            # at least the error of independent (Poisson) events: few counts may be equal by chance
            least = math.sqrt(own.sum() / len(own) ** 2 + other.sum() / len(other) ** 2)
            spread = max(rate.error, least)
            is_crossed |= rate.estimate > critical(passed, risk, rate.df) * spread
        hit = int((other > 0.0).sum()), int((own > 0.0).sum())
        counts = int(other.sum()), int(own.sum())
        told, lively = rows[:, here], tables.seen[:, here]
        since = np.maximum.accumulate(np.where(told, tables.blocks[:, None], -math.inf))
        is_later = tables.blocks[:, None] > since[-1]
        is_told = lively & ~is_later & (tables.blocks[:, None] - since < _LEAST_BLOCKS)
        # since any told it: one that is told at events alone is told in few blocks
        could = lively & (told.any(axis=1).cumsum() > 0)[:, None]
        is_steady = is_told.sum(axis=0) > _STEADY * (could & ~is_later).sum(axis=0)
        is_steady &= told.sum(axis=0) > _FEW
        # what most tell, a new unit should
        is_new = ~could[_baseline(tables, canary)].any(axis=0)
        is_steady |= is_new & (2 * is_steady[control].sum() > control.sum())
        is_mute = is_steady & (tables.passed - 1 - since[-1] > _late(tables))
        is_mute &= (lively & is_later).sum(axis=0) > _LEAST_BLOCKS
        is_over = _too_many(is_mute, (treated & is_steady, control & is_steady))
        is_over |= (is_mute & treated).sum() > max(1.0, (is_steady & treated).sum() / 2.0)
        yield RailEvents(rail.name, counts, hit, is_crossed, bool(rows.any()), is_over)


def _too_many(bad: NDArray[np.bool_], groups: Sequence[NDArray[np.bool_]]) -> bool:
    # treated beside control: one more is chance, or one SD, of a tenth of the treated at most
    (own, units), (other, others) = ((int(bad[each].sum()), int(each.sum())) for each in groups)
    ratio = units / max(1, others)
    chance = max(1.0, min(math.sqrt((own + other) * ratio), _MOST_MISSING * units))
    return own > chance + other * ratio


def _late(tables: FleetTables) -> float:
    # blocks at the end of the time, which alone say what is so now
    return max(_LEAST_BLOCKS, _LATE * tables.passed)


def _baseline(tables: FleetTables, canary: Canary) -> NDArray[np.bool_]:
    # without its end: there the rollout may have begun
    begin = -canary.spec.baseline_s / canary.spec.step_s
    return (tables.blocks < _ROLLOUT * begin) & (tables.blocks >= begin)


def _strata(canary: Canary) -> NDArray[np.int_]:
    # one that has one group alone joins another: else its units were compared with none
    names, (treated, control) = np.array([unit.stratum for unit in canary.units]), of_groups(canary)
    both = np.intersect1d(names[treated], names[control])
    return np.unique(np.where(np.isin(names, both), names, [*both, ""][0]), return_inverse=True)[1]


def log_odds(
    found: FloatTable, treated: NDArray[np.bool_], strata: NDArray[np.int_], came: NDArray[np.int_]
) -> float:
    """What bets have won that treated units have their first event sooner, log.

    `found`: events, shape (blocks, units); `came`: block in which a unit is there for the first
    time. In one block, events of control are taken for the first.
    """
    hit = np.flatnonzero((found > 0.0).any(axis=0))
    if not len(hit):
        return 0.0
    first, is_clean = (found > 0.0).argmax(axis=0), np.ones(len(treated), dtype=bool)
    won = np.zeros(len(_TIMES_AS_LIKELY))
    for unit in hit[np.lexsort((treated[hit], first[hit]))]:
        at_risk = is_clean & (strata == strata[unit]) & (came <= first[unit])
        left = np.bincount(treated[at_risk], minlength=2)
        share = left.sum() / (_TIMES_AS_LIKELY * left[1] + left[0])
        won += np.log(share * (_TIMES_AS_LIKELY if treated[unit] else 1.0))
        is_clean[unit] = False
    return float(np.logaddexp.reduce(won)) - math.log(len(won))


def _effect(tables: FleetTables, canary: Canary, metric: CanaryMetric) -> MetricEffect:
    figures, groups, spec = tables.figures(metric), of_groups(canary), canary.spec
    is_after = tables.blocks >= math.ceil(spec.settle_s / spec.step_s)
    is_before = _baseline(tables, canary)
    if np.isnan(tables.means[metric.rows]).all():
        return MetricEffect(metric, "no figure of it is known")
    for part in (figures[lines][:, each] for lines in (is_after, is_before) for each in groups):
        if why := _unfit(part, metric):
            return MetricEffect(metric, why)
    with np.errstate(divide="ignore", invalid="ignore"):
        figures = np.log(figures) if metric.is_ratio else figures
    known = np.isfinite(figures)
    figures = np.where(known, figures, np.nan)
    is_used = np.minimum(*(known[:, each].mean(axis=1) for each in groups)) >= LEAST_SHARE
    after, before = figures[is_after & is_used], figures[is_before & is_used]
    if len(after) < _LEAST_BLOCKS:
        return MetricEffect(metric, f"{len(after)} blocks of the {_LEAST_BLOCKS} that are needed")
    weights = known[is_after & is_used].mean(axis=0)
    level, prior = levels(after), levels(before)
    found = effect_of(level, prior, groups[0], _strata(canary), weights)
    if found is None:
        return MetricEffect(metric, f"it needs {LEAST_UNITS} units of each group at least that "
                            "report it, in strata with both groups")  # fmt: skip
    judged = _judged(metric, canary, found, len(after) * spec.step_s / spec.planned_s)
    last = int(tables.blocks[is_after & is_used].max())
    told_s, least_s = spec.step_s * (last + 1), _LEAST_TIME * spec.planned_s
    if told_s < least_s:
        return judged._replace(why=f"it needs {duration(least_s)}, a quarter of planned_s")
    if tables.passed - 1 - last > _late(tables):
        return judged._replace(why=f"it is not told since {duration(told_s)}")
    new = np.isfinite(level) & ~np.isfinite(prior) & np.isfinite(prior).any()
    if _too_many(new, groups):
        own, others = (int(new[each].sum()) for each in groups)
        return judged._replace(why=f"{own} treated units are new, and {others} of control")
    if why := _missing(known, is_before, is_after, tables, canary):
        return judged._replace(why=why)
    return judged._replace(is_current=True)


def _missing(
    known: NDArray[np.bool_], is_before: NDArray[np.bool_], is_after: NDArray[np.bool_],
    tables: FleetTables, canary: Canary,
) -> str:  # fmt: skip
    """Why it matters that treated units tell fewer figures than control does; "": it does not.

    Not missed is what a unit never told while others did, and one gap as short as a restart.
    """
    groups, strata = of_groups(canary), _strata(canary)
    is_late = tables.blocks >= tables.passed - _late(tables)
    is_common = known.mean(axis=1) >= LEAST_SHARE
    here, was_here = (np.logical_or.reduce(tables.seen[lines])
                      for lines in (tables.blocks >= 0, is_before & is_common))  # fmt: skip
    had, ones = known[tables.blocks < 0].any(axis=0), np.ones(len(here))
    # the share that each told of it where it was seen; a unit without a past, all
    usual = known[is_before].sum(axis=0) / np.maximum(tables.seen[is_before].sum(axis=0), 1)
    usual = np.where(usual > 0.0, usual, 1.0)
    restart = max(1.0, min(SILENT_BLOCKS, canary.spec.settle_s / canary.spec.step_s))
    for lines in (is_after, is_after & is_late):
        lost = np.maximum(usual - _told(known[lines], restart), 0.0)
        lost = np.where(here & (had | ~was_here), lost, np.nan)
        rate = effect_of(lost, np.nan * ones, groups[0], strata, ones)
        if rate is None:
            continue  # nor is there an effect
        limit = t_quantile(_CHANCE, rate.df) * rate.error + _LEAST_MISSING
        many = groups[0] & (lost > _MOST_MISSING)
        if many.sum() > 1 or known[is_late][:, many].any():
            limit = min(limit, _MORE_MISSING)
        if rate.estimate > limit:
            return f"treated units tell {rate.estimate:.1%} less of it than control does"
    seen = tables.seen[is_late].sum(axis=0)
    told = known[is_late].sum(axis=0) / np.maximum(seen, 1)
    is_mute = had & (seen > 0) & (told < np.minimum(usual, np.median(told[seen > 0])) / 2)
    treated, control = (int(is_mute[each].sum()) for each in groups)
    if treated * groups[1].sum() > control * groups[0].sum():
        return f"{treated} treated units that are there seldom tell it, and {control} of control"
    return ""


def _told(known: NDArray[np.bool_], restart: float) -> FloatTable:
    """The share of blocks in which each unit told a figure, or was in its one gap of a restart."""
    gap = longest = np.zeros(known.shape[1])
    for is_known in known:
        gap = np.where(is_known, 0.0, gap + 1.0)
        longest = np.maximum(longest, gap)
    excused = np.minimum(longest, min(restart, _MOST_MISSING * len(known)))
    return np.asarray((known.sum(axis=0) + excused) / len(known))


def _unfit(figures: FloatTable, metric: CanaryMetric) -> str:
    """Why too many figures of a group cannot be compared; "": they can."""
    told = int((~np.isnan(figures)).sum())
    endless, zeros = int((figures == math.inf).sum()), int((figures <= 0.0).sum())
    if endless > _MOST_ZEROS * told:
        return f"{endless} of {told} figures of a group are infinite, or divided by 0"
    if metric.is_ratio and zeros > _MOST_ZEROS * told:
        return (f"{zeros} of {told} figures of a group are 0 or less, which have no ratio; a number"
                " as its margin compares differences")  # fmt: skip
    return ""


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
    why, needed, half = "not decided", units, halves[1]
    while 0.0 < aim < half and needed < _MOST_UNITS:
        needed = math.ceil(1.05 * needed)
        half = critical(passed, risks[1], needed - units + found.df) * found.error
        half *= math.sqrt(units / needed)
    if units < needed < _MOST_UNITS:
        why += f"; {math.ceil(needed / 2)} units a group would show a change of its margin by now"
    own = [float(each) for each, unit in zip(found.deviations, canary.units, strict=True)
           if unit.is_treated and math.isfinite(each)]  # fmt: skip
    read = shown if sign > 0.0 else shown.reciprocal
    return MetricEffect(metric, why, False, shown.low, shown.high, read, own)
