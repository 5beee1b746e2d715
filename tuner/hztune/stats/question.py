"""A question about the mean of log ratios, and the looks at which it is asked.

Some hypotheses have to hold together, as a gain and a memory limit. Each of them may use the whole
error: what lacks one is claimed only where the test of that one errs (the intersection-union test
of Berger, Technometrics 24, 1982). Where one of several suffices for an answer, they share it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from hztune.stats.intervals import Interval, Spread, fixed_interval, planned_interval, planned_looks

Answer = Literal["yes", "no", "open"]

REPORTED_ERROR = 0.05  # two-sided error of printed intervals, and of refusals: they are no claims

PRECISE = 0.2  # a proved gain is measured on until its half-width is below this share of it

FUTILE_FROM = 5  # pairs from which on one may say that more would be in vain

_HOPEFUL_ERROR = 0.1
_FUTILE_GROWTH = 4.0 / 3.0


@dataclass(frozen=True, slots=True)
class Looks:
    counts: tuple[int, ...]  # pairs at each look that was due so far, rising
    planned: int  # pairs of the whole plan, known before the first was measured
    # whether time is up, so that the last look spends all the error that is left. The clock must
    # have chosen its moment, not the data.
    is_last: bool = False

    @classmethod
    def due(cls, pairs: int, least: int, planned: int, *, is_last: bool = False) -> Looks:
        counts = [each for each in planned_looks(planned) if least <= each <= pairs]
        if is_last and pairs >= least and pairs not in counts:
            counts.append(pairs)
        return cls(tuple(counts), planned, is_last)

    def newest(self) -> Looks:
        return Looks(self.counts[-1:], self.planned, self.is_last)


@dataclass(frozen=True, slots=True)
class Question:
    """Is the mean above a margin? Values are turned so that more is better."""

    values: Sequence[float]  # log units, one a fresh pair, in order of time, shape (pairs,)
    looks: Looks  # when it is asked
    error: float  # two-sided error of a yes, over all looks together
    margin: float = 0.0  # what the interval must exclude, log units
    least: float = -math.inf  # what the estimate must reach besides
    prior: Spread | None = None  # what other pairs say of the scatter of these
    refusal: float = 0.0  # two-sided error of a no; 0: the looks never say no
    may_touch: bool = False  # whether a mean that is exactly at the margin is a yes, as for a limit

    @property
    def answer(self) -> Answer:
        """What the looks have shown; what one of them has shown stays shown."""
        if self.proved_by:
            return "yes"
        refused = self.refusal and any(each.high < self.margin for each in self.seen(self.refusal))
        return "no" if refused else "open"

    @property
    def proved_by(self) -> int:
        """Pairs at the first look that says yes; 0: none does."""
        both = zip(self.looks.counts, self.seen(self.error), strict=False)  # none without values
        for count, seen in both:
            touches = self.may_touch and seen.low == self.margin
            if (touches or seen.low > self.margin) and seen.estimate >= self.least:
                return count
        return 0

    def seen(self, error: float) -> list[Interval]:
        """The interval at each look; together they cover with 1 - `error`. None without values."""
        if not self.values:
            return []
        last = self.looks.counts[-1] if self.looks.is_last and self.looks.counts else 0
        return [
            planned_interval(
                self.values[:count], error, self.looks.planned, prior=self.prior,
                is_last=count == last,
            )
            for count in self.looks.counts
        ]  # fmt: skip

    def reported(self, count: int | None = None) -> Interval | None:
        """The 95 % interval of the first `count` pairs, else of all; None: they are too few."""
        values = self.values[:count]
        if not values:
            return None
        final = len(values) >= self.looks.planned
        final |= self.looks.is_last and len(values) == len(self.values)
        found = planned_interval(
            values, REPORTED_ERROR, self.looks.planned, prior=self.prior, is_last=final
        )
        return found if math.isfinite(found.half_width) else None

    def is_futile(self) -> bool:
        """Whether even a lucky truth would not be proved with all planned pairs.

        The upper end of an interval with an error of _HOPEFUL_ERROR stands for the lucky truth.
        Stopping for futility can only lose claims, never make one (non-binding futility), so it
        costs no error.
        """
        lucky = fixed_interval(self.values, _HOPEFUL_ERROR, prior=self.prior).high
        spread = fixed_interval(self.values, self.error, prior=self.prior).half_width
        needed = 0.5 * spread * math.sqrt(len(self.values) / self.looks.planned)
        return lucky < max(max(0.0, self.least), needed)

    def is_settled(self) -> bool:
        """Whether a proved gain is known precisely at a look, and another one is in vain."""
        if self.proved_by:
            shown = self.reported(self.looks.counts[-1])
            return shown is not None and is_precise(shown)
        due = [count for count in futile_counts(self.looks.planned) if count <= len(self.values)]
        return bool(due) and replace(self, values=self.values[: max(due)]).is_futile()

    def claimed(self) -> Interval | None:
        """The newest interval; if it holds 0, its overlap with the proof's: both cover at once."""
        newest = self.reported()
        if newest is None or not self.proved_by or newest.low > 0.0:
            return newest
        proving = self.reported(self.proved_by)
        if proving is None:
            return newest
        low, high = max(newest.low, proving.low), min(newest.high, proving.high)
        middle = min(high, max(low, newest.estimate))
        return Interval(middle, low, high, newest.pairs) if low <= high else newest


def all_of(answers: Iterable[Answer]) -> Answer:
    found = {*answers}
    return "no" if "no" in found else "open" if "open" in found else "yes"


def is_precise(interval: Interval) -> bool:
    return interval.half_width <= PRECISE * interval.estimate


@lru_cache(maxsize=64)
def futile_counts(planned: int) -> frozenset[int]:
    """The pair counts at which a proof may be given up, `planned` among them.

    They grow by a third: after every pair, many true gains that begin badly would be given up.
    """
    found, due = {planned}, float(FUTILE_FROM)
    while due < planned:
        found.add(round(due))
        due *= _FUTILE_GROWTH
    return frozenset(found)
