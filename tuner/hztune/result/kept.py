"""What fresh pairs show beside speed, by default and tuned: what stays at rest, what was counted.

A process keeps one amount and has one slope, so that intervals are of processes: those of ratios
and of differences are of pairs, those of a slope are of one arm's processes.

Counters cover a whole process, and the faster process does more work in its time: so what happens
again and again is told per operation, wherever the operations are known. Only pairs of the machine
that confirms are looked at: elsewhere too few show what is usual.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, median

from hztune import artifacts
from hztune.blocks import Arm, Outcome, Pair, Ratio
from hztune.progress import mib
from hztune.rests import Rested
from hztune.stats.intervals import Interval, fixed_interval
from hztune.stats.ratios import logs_of
from hztune.study.ledger import Ledger

SURE = 0.001
"""Two-sided error at which it is said that memory grows: an alarm that is none costs a day."""

_LEAST_PROCESSES = 3

Ends = tuple[float, float, float]  # an estimate with the ends of its 95 % interval


@dataclass(frozen=True, slots=True)
class Keeper:
    """What one arm keeps, means over its processes, KiB."""

    kept_kb: float  # at the end of the last rest
    lazy_kb: float  # what was given back lazily and was still there beside it
    slope_kb: Ends | None  # what a round more keeps; None: too few rounds or processes
    grows: bool  # whether it is shown, at the error SURE, that each round keeps more

    @property
    def words(self) -> str:
        lazy = f" and {mib(1024 * self.lazy_kb)} returned lazily" if self.lazy_kb >= 1.0 else ""
        return f"{mib(1024 * self.kept_kb)}{lazy}"

    @property
    def slope_words(self) -> str:
        """What each round adds: "+12 KiB [-3, +27]"; "" where that is not known."""
        if self.slope_kb is None:
            return ""
        return slope_words(self.slope_kb) + (": it grows, a leak or fragmentation" * self.grows)


@dataclass(frozen=True, slots=True)
class KeptMemory:
    default: Keeper
    tuned: Keeper | None = None  # None: nothing was proved of any configuration
    ratio: Ratio | None = None  # of what is kept, tuned / default; None: too few pairs
    speed: Ratio | None = None  # of the loads, likewise; above 1 the tuned one is faster
    slope_change_kb: Ends | None = None  # slope of the tuned one less that of the default
    pairs: int = 0


def slope_words(slope: Ends) -> str:
    """A slope with its interval: "+12 KiB [-3, +27]"."""
    return "{:+,.0f} KiB [{:+,.0f}, {:+,.0f}]".format(*slope)


def kept_memory(pairs: Sequence[Pair], alone: Sequence[Outcome]) -> KeptMemory | None:
    """What was seen at rest in fresh pairs, else of the control `alone`; None: nothing was."""
    both = [(one, two) for one, two in pairs if one.rested and two.rested and one.ok and two.ok]
    if not both:
        default = keeper([each.rested for each in alone if each.ok])
        return KeptMemory(default) if default else None
    default, tuned = (keeper([pair[side].rested for pair in both]) for side in (0, 1))
    assert default is not None and tuned is not None  # there are pairs
    ratios, speeds = _interval(logs_of("kept", both)), _interval(logs_of("load", both))
    slopes = [[each.rested.slope_kb if each.rested else None for each in pair] for pair in both]
    changes = [two - one for one, two in slopes if one is not None and two is not None]
    return KeptMemory(
        default,
        tuned,
        ratios.ratio if ratios else None,
        speeds.ratio if speeds else None,
        _ends(changes),
        len(both),
    )


def keeper(seen: Sequence[Rested | None]) -> Keeper | None:
    known = [each for each in seen if each is not None]
    if not known:
        return None
    slopes, last = [each.slope_kb for each in known], [each.rounds[-1] for each in known]
    sure = _interval(slopes, SURE)
    return Keeper(
        fmean(each.kept_kb for each in known),
        fmean(each.lazy_kb for each in last),
        _ends(slopes),
        sure is not None and sure.low > 0.0,
    )


def _interval(values: Sequence[float | None], error: float = 0.05) -> Interval | None:
    known = [each for each in values if each is not None]
    return fixed_interval(known, error) if len(known) >= _LEAST_PROCESSES else None


def _ends(values: Sequence[float | None]) -> Ends | None:
    found = _interval(values)
    return (found.estimate, found.low, found.high) if found else None


# ---- what was counted ----------------------------------------------------------------------------


FAULTS = "minor_faults"  # page faults without I/O, which the kernel counts

WHOLE = frozenset({"committed_bytes", "huge_page_bytes", "small_page_bytes", "prefaulted_bytes"})
WHOLE |= {"heaps_born", "background_rounds"}
"""Counters that do not grow with the operations: of the process as a whole."""

_SLIGHT = 100.0  # counts that differ by less say little, however great their ratio is

_OPS = "ops"


@dataclass(frozen=True, slots=True)
class CounterChange:
    counter: str  # its name, or FAULTS
    default: int  # counted in a process of the default
    tuned: int  # the same of the tuned
    # per 1000 operations of the default; None: the operations are not known, or the counter does
    # not grow with them
    default_rate: float | None = None
    tuned_rate: float | None = None  # the same of the tuned

    @property
    def shown(self) -> tuple[float, float]:
        if self.default_rate is None or self.tuned_rate is None:
            return self.default, self.tuned
        return self.default_rate, self.tuned_rate

    @property
    def size(self) -> float:
        """How great the change is, log units: for as many operations as the default's."""
        before, after = self.shown
        tuned = after * self.default / before if before else float(self.tuned)
        return abs(math.log((tuned + _SLIGHT) / (self.default + _SLIGHT)))

    @property
    def noun(self) -> str:
        return _nouns().get(self.counter, self.counter)

    @property
    def unit(self) -> str:
        of = "per process" if self.default_rate is None else "per 1000 operations"
        return f"bytes {of}" if self.counter.endswith("_bytes") else of


@cache
def _nouns() -> Mapping[str, str]:
    """What each counter counts, so that "more" can stand before it."""
    table = (artifacts.include_dir() / "hz" / "stats.def").read_text()
    return {FAULTS: "page faults", **dict(re.findall(r'^HZ_STAT\((\w+), *"(.+)"\)', table, re.M))}


def fresh_outcomes(ledger: Ledger, arm: Arm) -> list[Pair]:
    """The control and an arm in each fresh pair of this machine, of its last attempt, in order."""
    found = [
        (block.outcomes[1].arm, (block.control, outcome))
        for block in ledger.own_blocks("confirm")
        for outcome in block.outcomes[1:]
        if outcome.arm == arm
    ]
    return [pair for first, pair in found if first == found[-1][0]]


def counter_changes(pairs: Sequence[Pair]) -> tuple[CounterChange, ...]:
    well = [(_counted(one), _counted(two)) for one, two in pairs if one.ok and two.ok]
    names = [
        name
        for name in (well[0][0] if well else ())
        if name != _OPS and all(name in each for pair in well for each in pair)
    ]
    found = (_change(name, well) for name in names)
    return tuple(
        sorted((each for each in found if each.default != each.tuned), key=lambda each: -each.size)
    )


def _counted(outcome: Outcome) -> Mapping[str, int]:
    facts = {name: outcome.facts[name] for name in (FAULTS, _OPS) if name in outcome.facts}
    return {**outcome.counters, **facts}


def _change(
    name: str, pairs: Sequence[tuple[Mapping[str, int], Mapping[str, int]]]
) -> CounterChange:
    sides = [[pair[side] for pair in pairs] for side in (0, 1)]
    default, tuned = (round(median(each[name] for each in side)) for side in sides)
    if name in WHOLE or not all(each.get(_OPS) for side in sides for each in side):
        return CounterChange(name, default, tuned)
    rates = (median(1000.0 * each[name] / each[_OPS] for each in side) for side in sides)
    return CounterChange(name, default, tuned, *rates)
