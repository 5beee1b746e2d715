"""From the pairs of a winner on a strange workload to what they show: harmed, safe, or open.

The test is one of non-inferiority: a loss within a margin is none. Harm is claimed only where the
estimate is beyond the margin and the 95 % interval excludes "no difference"; a workload is safe
where the interval excludes more than the margin; else nothing is said. A warning that might be
noise teaches users to ignore all warnings. The intervals hold at every scheduled look together,
see stats.sequential; what one look has shown stays shown.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Literal

from hztune.blocks import Arm, Block, Outcome
from hztune.caution import Caution
from hztune.confirm import Step
from hztune.stats import Interval, fixed_interval, log_rss_ratio, pair_ratio
from hztune.stats.distributions import normal_tail, t_quantile
from hztune.stats.sequential import critical_values

SPEED_MARGIN = -math.log(0.95)
"""Log loss of speed that is none: 5 %, about what a fresh build or another address layout does."""

MEMORY_MARGIN = math.log(1.25)
"""Log growth of peak memory that is none: 25 %, about what sizes rounded up to classes cost."""

LEAST_EXTRA_KB = 4096.0
"""Growth of peak memory that is none, whatever the ratio: what an allocator has for itself."""

LOOKS = (3, 5, 8, 13, 20)
"""Pairs at which a workload may be judged: harm that matters is large, and shows in few."""

ERROR = 0.05

_SUSPICIOUS = 2.0
"""Margins beyond which an estimate is looked into before harm is shown, if a plain 95 % interval
excludes zero: its cause takes pairs, too, and they count."""

_NO_TIME = "no time was left for it"

State = Literal["harmed", "safe", "open"]


@dataclass(frozen=True, slots=True)
class Harm:
    """Harm that was shown on one workload.

    Attributes:
        what: Less speed, more memory, or a process that failed.
        workload: Of the panel.
        phrase: The kind of programs.
        interval: Of the log ratio of speed or peak memory, winner / control; None of a failure.
        step: The step of the winner's chain that does it; None: not found.
    """

    what: Literal["speed", "memory", "failure"]
    workload: str
    phrase: str
    interval: Interval | None = None
    step: Step | None = None

    @property
    def caution(self) -> Caution:
        """What is told of it."""
        ratio, low, high = self.interval.ratio if self.interval else (None, None, None)
        step = self.step
        params = {name: step.arm.config[name] for name in step.added} if step else {}
        return Caution(self.what, self.phrase, self.workload, params, ratio, low, high)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a winner was seen to do on one workload.

    Attributes:
        workload: Of the panel.
        phrase: The kind of programs.
        state: What is shown.
        speed: 95 % interval of its log ratio of speed to the control; None: too few pairs.
        memory: The same of peak memory; above 0 it takes more.
        extra_kb: Mean growth of peak memory, KiB.
        failure: How a process of the winner failed; "": none did.
        hints: What looks like harm, and is not shown.
        missing: Why nothing was measured; "": something was.
    """

    workload: str
    phrase: str
    state: State
    speed: Interval | None = None
    memory: Interval | None = None
    extra_kb: float = 0.0
    failure: str = ""
    hints: tuple[Harm, ...] = ()
    missing: str = ""

    @property
    def harms(self) -> tuple[Harm, ...]:
        """Every harm that is shown."""
        if self.state != "harmed":
            return ()
        if self.failure:
            return (Harm("failure", self.workload, self.phrase),)
        found = []
        if _speed_state(self.speed) == "harmed":
            found.append(Harm("speed", self.workload, self.phrase, self.speed))
        if _memory_state(self.memory, self.extra_kb) == "harmed":
            found.append(Harm("memory", self.workload, self.phrase, self.memory))
        return tuple(found)


def seen_in(
    blocks: Sequence[Block], arm: Arm, workload: str, phrase: str, *, is_last: bool
) -> Seen:
    """Judges the pairs of an arm with the control.

    Where the control failed, too, the arm is blamed only if it fails more often.

    Args:
        blocks: Of one workload, in order of time; the first outcome behind the control counts.
        arm: Whose pairs they are.
        workload: Of the panel.
        phrase: The kind of programs.
        is_last: Whether time is up: then there is one more look, whose moment is not the data's.
    """
    void = [block.control for block in blocks if not block.control.ok]
    pairs = [
        (b.control, b.outcomes[1]) for b in blocks if b.control.ok and b.outcomes[1].arm == arm
    ]
    failed = [outcome for _, outcome in pairs if not outcome.ok]
    if len(failed) > len(void):
        return Seen(workload, phrase, "harmed", failure=_how(failed[0]))
    pairs = [pair for pair in pairs if pair[1].ok]
    if not pairs:
        missing = f"the default failed on it ({_how(void[-1])})" if void else _NO_TIME
        return Seen(workload, phrase, "open", missing=missing)
    for count in (*(look for look in LOOKS if look <= len(pairs)), *([len(pairs)] * is_last)):
        seen = _look(pairs[:count], workload, phrase)
        if seen.state != "open":
            return seen
    hints = tuple(_hints(pairs, workload, phrase))
    return replace(_look(pairs, workload, phrase), state="open", hints=hints)


def _how(failed: Outcome) -> str:
    """How a process failed, in words."""
    return f"{failed.status}: {failed.detail}" if failed.detail else failed.status


def _look(pairs: Sequence[tuple[Outcome, Outcome]], workload: str, phrase: str) -> Seen:
    """What so many pairs show."""
    speed, memory = panel_interval(_speeds(pairs)), panel_interval(_growths(pairs))
    extra_kb = _extra_kb(pairs)
    states = {_speed_state(speed), _memory_state(memory, extra_kb)}
    state: State = "harmed" if "harmed" in states else "open" if "open" in states else "safe"
    return Seen(workload, phrase, state, speed, memory, extra_kb)


def _hints(pairs: Sequence[tuple[Outcome, Outcome]], workload: str, phrase: str) -> Iterator[Harm]:
    """Yields what looks like harm, the interval being a plain one."""
    speeds, growths = _speeds(pairs), _growths(pairs)
    if len(speeds) >= LOOKS[0]:
        speed = fixed_interval(speeds, ERROR)
        if speed.estimate < -_SUSPICIOUS * SPEED_MARGIN and speed.high < 0.0:
            yield Harm("speed", workload, phrase, speed)
    if len(growths) >= LOOKS[0] and _extra_kb(pairs) >= LEAST_EXTRA_KB:
        memory = fixed_interval(growths, ERROR)
        if memory.estimate > _SUSPICIOUS * MEMORY_MARGIN and memory.low > 0.0:
            yield Harm("memory", workload, phrase, memory)


def _speeds(pairs: Sequence[tuple[Outcome, Outcome]]) -> list[float]:
    """Log ratios of speed."""
    return [pair.log_ratio for one in pairs if (pair := pair_ratio(*one)) is not None]


def _growths(pairs: Sequence[tuple[Outcome, Outcome]]) -> list[float]:
    """Log ratios of peak memory, where it is known."""
    return [growth for one in pairs if (growth := log_rss_ratio(*one)) is not None]


def _extra_kb(pairs: Sequence[tuple[Outcome, Outcome]]) -> float:
    """Mean growth of peak memory, KiB."""
    return fmean(b.rss_peak_kb - a.rss_peak_kb for a, b in pairs) if pairs else 0.0


def _speed_state(speed: Interval | None) -> State:
    if speed is None:
        return "open"
    if speed.estimate < -SPEED_MARGIN and speed.high < 0.0:
        return "harmed"
    return "safe" if speed.low > -SPEED_MARGIN else "open"


def _memory_state(memory: Interval | None, extra_kb: float) -> State:
    """Memory that no process reports harms nothing that could be shown."""
    if memory is None or extra_kb < LEAST_EXTRA_KB:
        return "safe"
    if memory.estimate > MEMORY_MARGIN and memory.low > 0.0:
        return "harmed"
    return "safe" if memory.high < MEMORY_MARGIN else "open"


def panel_interval(values: Sequence[float]) -> Interval | None:
    """The repeated confidence interval at the looks of the panel; None before the first one."""
    count = len(values)
    if count < LOOKS[0]:
        return None
    looks = (*(look for look in LOOKS if look < count), count)
    z = critical_values(looks, ERROR)[-1]
    half = t_quantile(normal_tail(z), count - 1) * stdev(values) / math.sqrt(count)
    mean = fmean(values)
    return Interval(mean, mean - half, mean + half, count)


def relief(harm: Harm, winner: Outcome, shorter: Outcome) -> float | None:
    """How much less of a harm a shorter configuration does, log units; None: one has failed."""
    if harm.what == "memory":
        growth = log_rss_ratio(winner, shorter)
        return None if growth is None else -growth
    pair = pair_ratio(winner, shorter)
    return None if pair is None else pair.log_ratio
