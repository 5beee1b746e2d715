"""What stays at rest, by default and tuned: figures of the fresh pairs, and whether it grows.

A process keeps one amount and has one slope, so that intervals are of processes: those of ratios
and of differences are of pairs, those of a slope are of one arm's processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from hztune.blocks import Outcome, Ratio
from hztune.progress import mib
from hztune.rests import Rested
from hztune.stats.intervals import Interval, fixed_interval
from hztune.stats.ratios import load_ratio, log_memory_ratio

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


def kept_memory(
    pairs: Sequence[tuple[Outcome, Outcome]], alone: Sequence[Outcome]
) -> KeptMemory | None:
    """What was seen at rest in fresh pairs, else of the control `alone`; None: nothing was."""
    both = [(one, two) for one, two in pairs if one.rested and two.rested and one.ok and two.ok]
    if not both:
        default = keeper([each.rested for each in alone if each.ok])
        return KeptMemory(default) if default else None
    default, tuned = (keeper([pair[side].rested for pair in both]) for side in (0, 1))
    assert default is not None and tuned is not None  # there are pairs
    ratios = _interval([log_memory_ratio(*pair, "kept") for pair in both])
    loads = [load_ratio(*pair) for pair in both]
    speeds = _interval([each.log_ratio if each else None for each in loads])
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
