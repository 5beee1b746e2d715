"""From what program and trace showed to a judgement; nothing is measured here.

A program spends most of its time outside of its allocator, and a trace is nothing but its calls. So
ratios of speed cannot be the same. What must be the same are *differences of time*: where another
allocator saves the program 40 ms, it saves the trace 40 ms, too. In ratios: with `x` the extra time
of an allocator on the trace (as a share of the first one's time) and `y` that on the program,
y = k x, with one k for all allocators: the share of the program's time that the trace stands for.
With peak memory it is likewise: the program has memory of its own, so that differences must be the
same, in MiB, and not ratios; of single rounds, since an allocator may hoard from round to round.

What is asked, a point each:
    order   where the program is slower under one allocator than under another, one round of the
            trace does not promise that it is faster
    scale   one k explains all of them, and it is the share that the calls of the trace would take
    memory  differences of peak memory are the same to within 10 % of the program's
    touch   the replay takes no more memory than the program, and touches what the program touched
    shape   a second recording of the program has the same calls (see `shape`)
    rounds  round after round, as studies measure it, the trace promises no such thing either, and
            its peak memory differs as in the program; this one is told, and does not count
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from hztune.fidelity.readings import Readings
from hztune.trace.sidecar import CheckAnswer, CheckPoint, TimeShare

LEAST_CONTENDERS = 4

NO_DIFFERENCE = math.log(1.02)
"""A difference of speed below this is none: a preloaded library costs a start, too."""

CHECK_ERROR = 0.05
TOLD_ERROR = 0.01
"""Two-sided error with which the program tells two allocators apart: there are many pairs."""

SCALE_TIMES = 4.0
"""How far k may lie from the share of time that the calls take in the replay. There caches hold
nothing but blocks, and pages are warm."""

MOST_SHARE = 1.5
"""The most that k may be where that share is not known."""

RESIDUAL = 0.04
"""Of the program's time that a difference may be off, beyond the noise, whatever it is."""

RESIDUAL_SHARE = 0.5
"""Or of the greatest difference that the program shows."""

MEMORY_OFF = 0.10
"""Of the program's peak memory that a difference of memory may be off."""

LEAST_MB = 5.0
"""What a difference of memory may be off in any case, MiB: round after round, caches of threads
fill that are half empty at the end of a short program."""

TOUCHED = 0.5
"""Share of the memory that was asked for which a replay takes at least, if the program has it."""


@dataclass(frozen=True, slots=True)
class About:
    """What is known of the trace and its program beside the measurements.

    Attributes:
        names: Of the contenders.
        live_mb: Most memory that was asked for at one time, MiB.
        strange: What is not alike in a second recording, a phrase each; None: there was none.
    """

    names: tuple[str, ...]
    live_mb: float
    strange: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Measurements:
    """What was measured.

    Attributes:
        program: Of the program.
        trace: Of the trace, round after round.
        single: Of processes that played one round. `single.seconds` is that of the whole process.
    """

    program: Readings
    trace: Readings
    single: Readings

    @property
    def calls(self) -> float | None:
        """Share of the program's time that the calls take in the replay; None: not known."""
        return _ratio(self.trace, self.program)


@dataclass(frozen=True, slots=True)
class Judgement:
    """May the trace stand for its program?

    Attributes:
        answer: In words.
        why: In one sentence.
        points: What was asked, and what was found.
        share: Of the program's time that the trace stands for; None: not known.
    """

    answer: CheckAnswer
    why: str
    points: tuple[CheckPoint, ...]
    share: TimeShare | None


def judged_fidelity(seen: Measurements, about: About) -> Judgement:
    """Says whether a trace may stand for its program.

    Args:
        seen: What was measured under each contender.
        about: What else is known.
    """
    pairs = combinations(range(len(about.names)), 2)
    told = [pair for pair in pairs if _is_told(seen.program, *pair)]
    share = _share(seen.program, seen.trace)
    points = (
        _order(seen, about, told),
        _scale(seen, about, told, share),
        _memory("memory", seen.program, seen.single, about),
        _touch(seen.program, seen.single, about),
        _shape(about.strange),
        _rounds(seen, about, told, share),
    )
    against = [point for point in points[:-1] if point.state == "disagrees"]
    known = share if math.isfinite(share.high) else None
    if against:
        return Judgement("does not stand", against[0].text, points, known)
    unsure = [point for point in points[:-1] if point.state == "open"]
    if unsure:
        return Judgement("cannot tell", unsure[0].text, points, known)
    return Judgement("stands", "speed and memory differ alike", points, known)


# ---- speed ---------------------------------------------------------------------------------------


def _is_told(program: Readings, one: int, other: int) -> bool:
    """Whether the program tells two contenders apart."""
    seen = program.speed(other, one, TOLD_ERROR)
    return not seen.has_zero and abs(seen.estimate) >= NO_DIFFERENCE


def _order(seen: Measurements, about: About, told: Sequence[tuple[int, int]]) -> CheckPoint:
    """Does one round promise a gain where the program shows a loss?"""
    if not told:
        return CheckPoint("order", "agrees", "the program tells no two allocators apart")
    k = max(_share(seen.program, seen.single).estimate, _ratio(seen.single, seen.program) or 0.0)
    if (promise := _wrong_promise(seen.program, seen.single, about, told, k)) is not None:
        return CheckPoint("order", "disagrees", promise)
    once, often = (_alike(seen.program, each, told) for each in (seen.single, seen.trace))
    return CheckPoint(
        "order",
        "agrees",
        f"of {len(told)} pairs that the program tells apart one round of the trace orders "
        f"{_counted(once)}; round after round, {_counted(often)}",
    )


def _rounds(
    seen: Measurements, about: About, told: Sequence[tuple[int, int]], share: TimeShare
) -> CheckPoint:
    """Do many rounds in one process, which keeps what one never has, tell the same?"""
    k = max(share.estimate, seen.calls or 0.0)
    if (promise := _wrong_promise(seen.program, seen.trace, about, told, k)) is not None:
        return CheckPoint("rounds", "disagrees", promise)
    return _memory("rounds", seen.program, seen.trace, about)


def _wrong_promise(
    program: Readings, replay: Readings, about: About, told: Sequence[tuple[int, int]], k: float
) -> str | None:
    """A gain that the replay promises where the program shows a loss, in words; None: none."""
    for one, other in told:
        mine, its = (each.speed(other, one, CHECK_ERROR) for each in (program, replay))
        is_turned = mine.estimate * its.estimate < 0 and not its.has_zero
        if is_turned and abs(k * its.estimate) >= NO_DIFFERENCE:
            names = f"{about.names[other]} / {about.names[one]}"
            return f"speed of {names}: {mine.text} of the program, {its.text} of the trace"
    return None


def _alike(program: Readings, replay: Readings, told: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """How many pairs a replay tells apart as the program does, and how many the other way round."""
    signs = []
    for one, other in told:
        its = replay.speed(other, one, CHECK_ERROR)
        mine = program.speed(other, one, TOLD_ERROR)
        signs += [] if its.has_zero else [mine.estimate * its.estimate > 0]
    return sum(signs), len(signs) - sum(signs)


def _counted(alike: tuple[int, int]) -> str:
    return f"{alike[0]} alike and {alike[1]} otherwise"


def _ratio(replay: Readings, program: Readings) -> float | None:
    """Time of a replay as a share of the program's; None: not known."""
    known = program.seconds > 0.0 and replay.seconds > 0.0
    return replay.seconds / program.seconds if known else None


def _extra(readings: Readings, one: int) -> tuple[float, float]:
    """Extra time of a contender as a share of the first one's, and half of its interval."""
    seen = readings.speed(one, 0, CHECK_ERROR)
    low, high = math.expm1(-seen.high), math.expm1(-seen.low)
    return math.expm1(-seen.estimate), 0.5 * (high - low)


def _extras(
    program: Readings, replay: Readings
) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """The same of the program, and of a replay, for each contender but the first."""
    positions = range(1, len(program.speeds))
    return [(_extra(program, each), _extra(replay, each)) for each in positions]


def _share(program: Readings, replay: Readings) -> TimeShare:
    """The k of y = k x, by least squares with the errors of both and a slack of the model."""
    k, half = 0.0, math.inf
    for _ in range(5):
        top = bottom = 0.0
        for (y, y_half), (x, x_half) in _extras(program, replay):
            slack = 0.5 * RESIDUAL + 0.25 * abs(k * x)
            weight = 1.0 / (y_half**2 + (k * x_half) ** 2 + slack**2)
            top, bottom = top + weight * x * y, bottom + weight * x * x
        if bottom <= 0.0:
            break
        k, half = top / bottom, 1.0 / math.sqrt(bottom)
    return TimeShare(k, k - half, k + half)


def _scale(
    seen: Measurements, about: About, told: Sequence[tuple[int, int]], share: TimeShare
) -> CheckPoint:
    """Does one share explain all contenders, and is it that of the calls?"""
    calls = seen.calls
    said = f"the trace stands for {_percent(share)} of the program's time"
    if calls is not None:
        said += f"; its calls take {100.0 * calls:.0f} % of it in the replay"
    if told and share.high <= 0.0:
        return CheckPoint("scale", "disagrees", "what is slower on the trace is not in the program")
    if (off := _unexplained(seen, about, share)) is not None:
        return CheckPoint("scale", "disagrees", off)
    if share.low > (SCALE_TIMES * calls if calls is not None else MOST_SHARE):
        return CheckPoint(
            "scale", "disagrees", f"{said}: the program tells allocators further apart"
        )
    if calls is not None and share.high < calls / SCALE_TIMES:
        return CheckPoint("scale", "disagrees", f"{said}: the program tells them hardly apart")
    if (calls is None and share.low <= 0.0) or not math.isfinite(share.high):
        return CheckPoint(
            "scale", "open", "allocators differ too little to show whether it is right"
        )
    return CheckPoint("scale", "agrees", said)


def _unexplained(seen: Measurements, about: About, share: TimeShare) -> str | None:
    """The contender that the share explains least, in words; None: it explains all."""
    extras, k = _extras(seen.program, seen.trace), max(0.0, share.estimate)
    allowed = max(RESIDUAL, RESIDUAL_SHARE * max(abs(y) for (y, _), _ in extras))
    beyond = [abs(y - k * x) - y_half - k * x_half - allowed for (y, y_half), (x, x_half) in extras]
    if max(beyond) <= 0.0:
        return None
    index = beyond.index(max(beyond))
    (y, _), (x, _) = extras[index]
    return (
        f"{about.names[index + 1]} takes {_signed(y)} of the time of {about.names[0]} in the "
        f"program, and would take {_signed(k * x)} by the trace"
    )


# ---- memory --------------------------------------------------------------------------------------


def _memory(name: str, program: Readings, trace: Readings, about: About) -> CheckPoint:
    """Do the differences of peak memory agree?"""
    beyond, index, is_shown = max(_gaps(program, trace))
    mine = program.more_mb(index, CHECK_ERROR).estimate
    its = trace.more_mb(index, CHECK_ERROR).estimate
    told = (
        f"{about.names[index]} takes {mine:+.1f} MiB against {about.names[0]} in the program, "
        f"{its:+.1f} by the trace"
    )
    if beyond <= 0.0:
        return CheckPoint(name, "agrees", f"differences agree to within 10 %; at most, {told}")
    return CheckPoint(name, "disagrees" if is_shown else "open", told)


def _gaps(program: Readings, trace: Readings) -> Iterator[tuple[float, int, bool]]:
    """For each contender how far it is beyond what it may be off, MiB; is that shown?"""
    for index in range(1, len(trace.peaks_mb)):
        mine, its = program.more_mb(index, CHECK_ERROR), trace.more_mb(index, CHECK_ERROR)
        may = max(LEAST_MB, MEMORY_OFF * program.peak_mb(index))
        gap = abs(mine.estimate - its.estimate)
        noise = math.hypot(mine.half_width, its.half_width)
        yield gap - may, index, gap - noise > may


def _touch(program: Readings, trace: Readings, about: About) -> CheckPoint:
    """Does the replay touch what the program touched, and no more?"""
    for index, name in enumerate(about.names):
        mine, its = program.peak_mb(index), trace.peak_mb(index)
        if its > (1.0 + MEMORY_OFF) * mine + LEAST_MB:
            told = f"under {name} the replay takes {its:.1f} MiB, the program {mine:.1f}"
            return CheckPoint("touch", "disagrees", told)
    mine, its = program.peak_mb(0), trace.peak_mb(0)
    told = f"the replay takes {its:.1f} MiB, the program {mine:.1f}"
    if about.live_mb > LEAST_MB and its < TOUCHED * min(about.live_mb, mine):
        return CheckPoint("touch", "disagrees", f"{told}, and it asks for {about.live_mb:.1f}")
    return CheckPoint("touch", "agrees", told)


def _shape(strange: Sequence[str] | None) -> CheckPoint:
    """Is a second recording alike?"""
    if strange is None:
        return CheckPoint("shape", "skipped", "the program was not recorded a second time")
    if strange:
        return CheckPoint("shape", "disagrees", f"in a second recording, {strange[0]}")
    return CheckPoint("shape", "agrees", "a second recording of the program has the same calls")


# ---- words ---------------------------------------------------------------------------------------


def _percent(share: TimeShare) -> str:
    return f"{100 * share.estimate:.0f} % [{100 * share.low:.0f}, {100 * share.high:.0f}]"


def _signed(extra: float) -> str:
    return f"{100.0 * extra:+.1f} %"
