"""What one row of a check showed, contender by contender, block by block."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from hztune.blocks import Block
from hztune.stats import Interval, fixed_interval, pair_ratio

_KIB = 1024.0
_DIGITS = 5


@dataclass(frozen=True, slots=True)
class Readings:
    """What one row showed.

    Attributes:
        speeds: Logarithms of the ratio of speed to the first contender, shape (contenders, blocks).
        peaks_mb: Peak memory, MiB, shape (contenders, blocks).
        seconds: What the first contender took for the whole row once: a run of the program, a round
            of the trace. 0.0: it is not known, or has no meaning.
    """

    speeds: tuple[tuple[float, ...], ...]
    peaks_mb: tuple[tuple[float, ...], ...]
    seconds: float = 0.0

    def speed(self, one: int, over: int, alpha: float) -> Interval:
        """Interval of the log ratio of speed of one contender over another."""
        both = zip(self.speeds[one], self.speeds[over], strict=True)
        return fixed_interval([a - b for a, b in both], alpha)

    def peak_mb(self, one: int) -> float:
        """Mean peak memory of a contender, MiB."""
        return fmean(self.peaks_mb[one])

    def more_mb(self, one: int, alpha: float) -> Interval:
        """Interval of how much more memory than the first contender one takes, MiB."""
        both = zip(self.peaks_mb[one], self.peaks_mb[0], strict=True)
        found = [a - b for a, b in both]
        if len(found) > 1 and stdev(found) == 0.0:
            return Interval(found[0], found[0], found[0], len(found))
        return fixed_interval(found, alpha)

    def only(self, kept: Sequence[int]) -> Readings:
        """The same of some contenders, the first one among them."""
        return Readings(
            tuple(self.speeds[each] for each in kept),
            tuple(self.peaks_mb[each] for each in kept),
            self.seconds,
        )


def readings_of(blocks: Sequence[Block], seconds: float = 0.0) -> tuple[Readings, tuple[str, ...]]:
    """Returns what the blocks of a row showed, and how each contender failed ("": it did not).

    Blocks count in which the first contender ran well, and a contender counts that ran well in all
    of them; of the others the figures are NaN.
    """
    counted = [block for block in blocks if block.control.ok] or list(blocks)
    speeds, peaks, failures = [], [], []
    for index in range(len(counted[0].outcomes)):
        outcomes = [block.outcomes[index] for block in counted]
        pairs = [pair_ratio(block.control, block.outcomes[index]) for block in counted]
        speeds.append(tuple(math.nan if p is None else round(p.log_ratio, _DIGITS) for p in pairs))
        peaks.append(tuple(round(o.rss_peak_kb / _KIB, _DIGITS) for o in outcomes))
        bad = next((o for o in outcomes if not o.ok), None)
        failures.append("" if bad is None else f"{bad.status}: {bad.detail}")
    return Readings(tuple(speeds), tuple(peaks), seconds), tuple(failures)
