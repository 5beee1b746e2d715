"""The proof: fresh pairs of {default, finalist} that no selection has seen.

A claim, of a gain or of a memory limit that is kept, rests on the sequential interval of these
pairs alone, at an error that is split over the finalists of a study: the first may use half of it,
the second a quarter, and so on, so that all attempts together claim a gain that is none in at most
1 % of studies (each claim is one-sided, the interval two-sided).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hztune.blocks import Arm
from hztune.stats import FIRST_LOOK, Interval, fixed_interval, is_look, sequential_interval
from hztune.trial import PAIRS, Bench, Samples

CLAIM_ERROR = 0.016
"""Two-sided error of all claims of a study together: 0.8 % of false gains."""

REPORTED_ERROR = 0.05
"""Two-sided error of the interval that a profile carries."""

PRECISE = 0.2
"""A proof ends early when its half-width is below this share of the gain."""

PROOF_SHARE = 0.23
"""Part of the budget that the first proof of a study has for itself."""

FUTILE_FROM = FIRST_LOOK - 2
"""Pairs from which on one may say that more would be in vain."""

_HOPEFUL_ERROR = 0.2
_MOST_FAILURES = 1

Answer = Literal[
    "proved",
    "kept",
    "futile",
    "out_of_time",
    "failed",
    "over_limit",
    "over_loss",
    "dominated",
]


@dataclass(frozen=True, slots=True)
class Proof:
    """What the fresh pairs of one configuration have shown.

    Attributes:
        arm: Whose they are.
        answer: "proved"; "kept" where only the memory limit was to be kept, and is; or why not:
            "dominated" is one to which another member of a front is preferable.
        interval: 95 % interval of the log ratio; its pairs ended at a scheduled look or with the
            time, see `may_end`; None: too few.
    """

    arm: Arm
    answer: Answer
    interval: Interval | None

    @property
    def succeeded(self) -> bool:
        """Whether what was sought is shown."""
        return self.answer in ("proved", "kept")


def claim_error(attempt: int) -> float:
    """Two-sided error that finalist number `attempt` (from 0) may use.

    From the hundredth on they share one that is as good as none, so that a study of many days never
    runs into what numbers can hold.
    """
    return CLAIM_ERROR * 0.5 ** (min(attempt, 99) + 1)


def prove(
    bench: Bench, control: Arm, finalist: Arm, *, alpha: float, share: float, phase: str
) -> Proof:
    """Measures fresh pairs until the finalist is proved better, is hopeless, or time is up.

    Args:
        bench: Where blocks are measured.
        control: The default.
        finalist: The arm to prove.
        alpha: Two-sided error of the claim.
        share: Part of the budget that may be used by then.
        phase: How the progress names it.
    """
    while True:
        record = _record(bench, finalist)
        answer = _judge(bench, record, alpha, share)
        if answer is not None:
            return Proof(finalist, answer, reported(record))
        rounds = pair_rounds(bench)
        if not bench.budget.allows(bench.executor.cost(2, rounds), share):
            return Proof(finalist, _last_word(bench, record, alpha), reported(record))
        bench.measure([control, finalist], "confirm", rounds)
        tell(bench, phase, record)


def sharpen(bench: Bench, control: Arm, winner: Arm, *, share: float) -> Interval | None:
    """Adds fresh pairs to a proved configuration until its interval is narrow or time is up.

    Whether it is narrow is asked at scheduled looks only, see `may_end`.
    """
    while True:
        record = _record(bench, winner)
        interval = reported(record)
        if interval and may_end(interval.pairs) and is_precise(interval):
            return interval
        rounds = pair_rounds(bench)
        if not bench.budget.allows(bench.executor.cost(2, rounds), share):
            return interval
        bench.measure([control, winner], "confirm", rounds)
        tell(bench, "sharpen", record)


def may_end(pairs: int) -> bool:
    """Whether what the pairs show may end them after so many: before or at a scheduled look.

    Repeated intervals cover at once at the looks of their schedule, and at one more whose moment
    the data did not choose, which is the end of time (see stats.sequential). Taken after every
    pair, one of them misses in 8 to 11 % of studies with up to 40 and 200 pairs instead of 5 %.
    Before the first look no interval is reported, so that a proof given up by then has none.
    """
    return pairs < FIRST_LOOK or is_look(pairs)


def is_precise(interval: Interval) -> bool:
    """Whether more pairs would hardly tell more of a proved gain."""
    return interval.half_width <= PRECISE * interval.estimate


def pair_rounds(bench: Bench) -> int:
    """Rounds of each pair: the time for a proof must hold PAIRS of them."""
    return bench.rounds(2, bench.budget.total_s * PROOF_SHARE / PAIRS)


def reported(record: Samples) -> Interval | None:
    """The interval that a profile carries; None while there are too few pairs."""
    if len(record.pairs) < FIRST_LOOK:
        return None
    return sequential_interval(record.log_ratios, REPORTED_ERROR)


def reported_each(record: Samples) -> tuple[Interval | None, ...]:
    """The same on each of several workloads; empty where there is one only.

    Each is a 95 % interval by itself: what is claimed rests on their mean alone.
    """
    return tuple(
        sequential_interval([pair.log_ratio for pair in pairs], REPORTED_ERROR)
        if len(pairs) >= FIRST_LOOK
        else None
        for pairs in record.each
    )


def tell(bench: Bench, phase: str, record: Samples) -> None:
    """Reports how a proof stands."""
    if len(record.pairs) < 2:
        bench.tell(phase, sum(record.log_ratios))
        return
    interval = sequential_interval(record.log_ratios, REPORTED_ERROR)
    bench.tell(phase, interval.estimate, interval.half_width)


def _record(bench: Bench, arm: Arm) -> Samples:
    return bench.ledger.fresh(arm)


def _judge(bench: Bench, record: Samples, alpha: float, share: float) -> Answer | None:
    """The answer, if the pairs so far give one."""
    if len(record.failures) >= _MOST_FAILURES:
        return "failed"
    shown = _shown(bench, record, alpha, looks_at(bench, len(record.pairs)))
    return shown or _hopeless(bench, record, alpha, share)


def _shown(bench: Bench, record: Samples, alpha: float, looks: Sequence[int]) -> Answer | None:
    """What some looks have shown: a gain within the limits, or a limit that is broken.

    Where the default breaks the memory limit, keeping it is the gain. The gain and the limit may
    each use the whole error: an arm that lacks one is claimed only where the test of that one errs
    (the intersection-union test of Berger, Technometrics 24, 1982).
    """
    gains = any(_claims(bench, record, count, alpha) for count in looks)
    if not bench.ledger.default_breaks_limit:
        return within_limits(bench, record, alpha, looks) if gains else None
    keeps = keeps_limit(bench, record, alpha, looks)
    if not keeps:
        return None if keeps is None else "over_limit"
    return "proved" if gains and keeps_losses(bench, record, alpha, looks) else "kept"


def _last_word(bench: Bench, record: Samples, alpha: float) -> Answer:
    """The answer when time is up: a last look, whose moment the data did not choose."""
    pairs = len(record.pairs)
    looks = [*looks_at(bench, pairs), pairs] if pairs >= bench.least_pairs else []
    shown = _shown(bench, record, alpha, looks)
    gains = any(_claims(bench, record, count, alpha) for count in looks)
    if shown or not (gains or bench.ledger.default_breaks_limit):
        return shown or "out_of_time"
    return missing_limit(bench, record, alpha, looks)


def looks_at(bench: Bench, pairs: int) -> list[int]:
    """The looks that were due so far: what one of them has proved stays proved."""
    return [count for count in range(bench.least_pairs, pairs + 1) if is_look(count)]


def _claims(bench: Bench, record: Samples, count: int, alpha: float) -> bool:
    """Whether the first `count` pairs exclude "no gain", with a gain above the noise floor."""
    interval = sequential_interval(record.log_ratios[:count], alpha)
    return interval.low > 0.0 and interval.estimate >= bench.floor


def keeps_limit(bench: Bench, record: Samples, alpha: float, looks: Sequence[int]) -> bool | None:
    """Whether one of some looks shows that the memory limit is kept; None: not yet known.

    To refuse an arm is no claim, so that it may be done at the error of what is reported.
    """
    limit = bench.ledger.limit
    if limit is None:
        return True
    seen = [record.excesses[:count] for count in looks]
    if any(limit.kept(excesses, alpha) for excesses in seen):
        return True
    return False if any(limit.broken(excesses, REPORTED_ERROR) for excesses in seen) else None


def within_limits(
    bench: Bench, record: Samples, alpha: float, looks: Sequence[int]
) -> Answer | None:
    """Whether a configuration whose gain is proved keeps the limits; None: not yet known."""
    keeps = keeps_limit(bench, record, alpha, looks)
    loses_little = keeps_losses(bench, record, alpha, looks)
    if keeps is False:
        return "over_limit"
    if loses_little is False:
        return "over_loss"
    return "proved" if keeps and loses_little else None


def missing_limit(bench: Bench, record: Samples, alpha: float, looks: Sequence[int]) -> Answer:
    """Which limit is not shown to be kept when time is up."""
    return "over_loss" if keeps_limit(bench, record, alpha, looks) else "over_limit"


def keeps_losses(bench: Bench, record: Samples, alpha: float, looks: Sequence[int]) -> bool | None:
    """Whether some looks show that no workload loses more than it may; None: not yet known.

    A claim takes all of them, so that each may use the whole error, see `_shown`. One suffices to
    refuse an arm, so that they share the error of what is reported.
    """
    limit = bench.ledger.max_loss
    if limit is None or not record.each:
        return True
    logs = [[pair.log_ratio for pair in pairs] for pairs in record.each]
    if all(any(limit.kept(each) for each in _intervals(part, looks, alpha)) for part in logs):
        return True
    shared = REPORTED_ERROR / len(logs)
    refused = any(limit.broken(each) for part in logs for each in _intervals(part, looks, shared))
    return False if refused else None


def loss_words(bench: Bench, record: Samples) -> str:
    """Why an arm is refused for what it may lose: names the workload on which most is possible."""
    limit, each = bench.ledger.max_loss, reported_each(record)
    assert limit is not None and each  # or it was not refused for that
    ends = [-math.inf if interval is None else interval.low for interval in each]
    return f"it is not shown to lose at most {limit.text} on {limit.name_of(ends.index(min(ends)))}"


def _intervals(logs: Sequence[float], looks: Sequence[int], alpha: float) -> list[Interval]:
    """The interval of each look."""
    return [sequential_interval(logs[:count], alpha) for count in looks]


def _hopeless(bench: Bench, record: Samples, alpha: float, share: float) -> Answer | None:
    """Why even a lucky truth would not be proved in the time that is left; None: it might be.

    The upper end of an 80 % interval stands for the lucky truth. Stopping for futility can only
    lose claims, never make one (non-binding futility), so it costs no error. It is asked where the
    interval that is reported is valid, too: see `may_end`.
    """
    pairs, must_save = len(record.pairs), bench.ledger.default_breaks_limit
    if pairs < FUTILE_FROM or not may_end(pairs):
        return None
    more = bench.budget.left(share) / bench.executor.cost(2, pair_rounds(bench))
    total = pairs + max(0, int(more))
    looks = looks_at(bench, pairs)
    if limit_is_futile(bench, record, alpha, looks, total):
        return "over_limit"
    if must_save or any(_claims(bench, record, count, alpha) for count in looks):
        return None
    too_few = total < bench.least_pairs
    vain = too_few or is_futile(record.log_ratios, total, alpha, bench.floor)
    return "futile" if vain else None


def limit_is_futile(
    bench: Bench, record: Samples, alpha: float, looks: Sequence[int], total: int
) -> bool:
    """Whether even a lucky truth would not be shown to keep the memory limit by `total` pairs."""
    if len(record.pairs) < FUTILE_FROM or keeps_limit(bench, record, alpha, looks):
        return False
    spare = [-excess for excess in record.excesses]
    return not spare or is_futile(spare, total, alpha, 0.0)


def is_futile(gains: Sequence[float], total: int, alpha: float, least: float) -> bool:
    """Whether even a lucky truth would not be proved above `least` by `total` pairs."""
    lucky = fixed_interval(gains, _HOPEFUL_ERROR).high
    spread = fixed_interval(gains, alpha).half_width
    needed = 0.5 * spread * math.sqrt(len(gains) / total)
    return lucky < max(least, needed)
