"""What a report's page asks for: where a value lies in a chart, and figures in words.

charts.html draws them. Positions on a speed axis are log ratios to the default; its labels say them
in percent, or as factors where it reaches far.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from hztune.blocks import Arm
from hztune.params import Value
from hztune.progress import percent
from hztune.rests import MEMORIES, MemoryKind, Rested
from hztune.result import REASONS, claimed_interval, front_file
from hztune.result.figures import Candidate, Figures
from hztune.stats.intervals import Interval
from hztune.workload import METRICS, is_trace

Tick = tuple[float, str]
Points = list[tuple[float, float]]

_PERCENT_STEPS = (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
_FACTORS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
_FAR = math.log(4.0)  # an axis that reaches further says factors instead of percent

_TIME_STEPS_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400)
_STEPS_MB = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 50000)
_WORST_SHOWN = 1.5
"""What is further below the default than this times the best is above it stands at the edge."""

_LEFT = 46.0
_MOST_FAINT = 12
CHARACTER = 6.4  # width of a letter of a label, about, in pixels


ANSWERS = {
    "proved": "proved, and then extended or examined",
    "kept": "kept the limit",
    "": "measured beside a finalist, and not proved to add to it",
    **{answer: f"not confirmed: {why}" for answer, why in REASONS.items()},
    "dominated": "confirmed, but a faster one takes no more memory, or hardly more",
}


class PlotScale(NamedTuple):
    """A linear map from values to pixels; what lies outside is put on the edge."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


class Strip(NamedTuple):
    """One comparison on a strip: a label above, a dot for each log ratio and their interval."""

    label: str
    note: str
    dots: Sequence[float]
    interval: Interval | None
    kind: str  # style class: "gain", "loss" or "neutral"


def proof_strips(found: Figures, control: str) -> tuple[list[Strip], list[tuple[str, str, Arm]]]:
    """Strips of all fresh pairs, and what came of each arm: label, fate, arm."""
    strips, lines = list[Strip](), {}
    pairs = [pair.log_ratio for pair in found.ledger.own_calibration]
    if len(pairs) > 1:
        note = f"noise floor {change(found.floor, sign=False)}" if found.floor else ""
        strips.append(Strip(f"{control} against itself", note, pairs, None, "neutral"))
    for number, record in enumerate(found.ledger.fresh_by_arm.values(), start=1):
        interval = found.judged.get(record.arm)
        label, fate, is_proved = fate_of(found, record.arm, number)
        note = interval_words(interval) + ("" if is_proved else " - not proved")
        kind = "gain" if is_proved else "neutral"
        strips.append(Strip(label, note, record.log_ratios, interval, kind))
        lines[label] = (label, fate, record.arm)
    return strips, list(lines.values())


def fate_of(found: Figures, arm: Arm, number: int) -> tuple[str, str, bool]:
    """What to call the arm proved as so-manieth, what came of it, and whether it is proved."""
    for place, member in enumerate(found.result.front, start=1):
        if member.arm == arm:
            is_faster = member.claim.verdict == "improved"
            said = "proved" if is_faster else "of which less memory is proved"
            return str(front_file(place)), said, is_faster
    if arm == found.winner and found.result.profile.makes_a_claim:
        return "the profile", "proved", True
    attempts = found.result.account.attempts
    if answer := next((each.answer for each in attempts if each.arm == arm), ""):
        return f"finalist {number}", ANSWERS[answer], answer == "proved"
    steps = attempts[-1].steps if attempts else ()
    step = next((each.answer for each in steps if each.arm == arm), "")
    told = ANSWERS[step if step in ("proved", "kept") else ""]
    return f"configuration {number}", told, step == "proved"


def ranked(found: Figures) -> list[Candidate]:
    speeds = {
        one.number: one.interval.estimate if one.interval and not one.record.failures else -math.inf
        for one in found.candidates
    }
    return sorted(found.candidates, key=lambda one: -speeds[one.number])


def of_strips(rows: Sequence[Strip], floor: float, width: float) -> tuple[PlotScale, list[Tick]]:
    ends = [0.0, floor, -floor]
    for row in rows:
        ends += [*row.dots, *_ends(row.interval)]
    x = PlotScale(*_padded(min(ends), max(ends)), 12.0, width - 12.0)
    return x, speed_ticks(x.low, x.high, width / 90)


def of_front(
    found: Figures, width: float
) -> tuple[PlotScale, PlotScale, list[Tick], list[tuple[Candidate, float]]]:
    """Memory and speed, and each candidate whose memory is known with the mean of it."""
    dots = [(one, fmean(one.record.memory)) for one in found.candidates if one.record.savings]
    speeds = [one.interval.estimate for one, _ in dots if one.interval]
    savings = [-memory for _, memory in dots]
    for speed, memory in front_intervals(found):
        speeds += _ends(speed)
        savings += [-end for end in _ends(memory)]
    least, most = _speed_range(savings, 0.0)
    x = PlotScale(-most, -least, _LEFT, width - 12.0)
    y = PlotScale(*_speed_range(speeds, found.floor), 296.0, 12.0)
    return x, y, speed_ticks(y.low, y.high, 6), dots


def front_intervals(found: Figures) -> list[tuple[Interval, Interval]]:
    """Speed and memory of each member of a front, log units."""
    claims = [member.claim for member in found.result.front]
    both = ((each, claimed_interval(each, each.pairs)) for each in claims)
    return [
        (speed, memory)
        for claim, speed in both
        if speed and (memory := claimed_interval(claim.memory, claim.pairs))
    ]


def of_memory(
    default: Sequence[Rested], tuned: Sequence[Rested], width: float
) -> tuple[PlotScale, PlotScale, list[Tick], list[tuple[Points, str, float]]]:
    """Time and memory (MiB), and the line of each process with its style and what it keeps."""
    groups = [(default, "neutral"), (tuned, "gain")]
    shown = [
        (each, f"memory faint {kind}") for group, kind in groups for each in group[:_MOST_FAINT]
    ]
    last_s = max(each.rounds[-1].end_ms for each, _ in shown) * 1e-3
    most_mb = max(kb for each, _ in shown for _, kb in _line_of(each)) / 1024
    x = PlotScale(0.0, max(0.1, last_s), 58.0, width - 8.0)
    y = PlotScale(0.0, 1.05 * max(0.1, most_mb), 238.0, 26.0)
    step = next((each for each in _STEPS_MB if y.high / each <= 6), _STEPS_MB[-1])
    ticks: list[Tick] = [(n * step, f"{n * step:g} MiB") for n in range(int(y.high / step) + 1)]
    shown += [(_middle(group), f"memory {kind}") for group, kind in groups if group]
    lines = [
        ([(x(at * 1e-3), y(kb / 1024)) for at, kb in _line_of(each)], kind, float(each.kept_kb))
        for each, kind in shown
    ]
    return x, y, ticks, lines


def loads(default: Sequence[Rested], x: PlotScale) -> Iterator[tuple[float, float, str]]:
    """Begin, end and name of each load of the default's middle process."""
    rounds = _middle(default).rounds
    ends = [(x(one.load_ms * 1e-3), x(one.rest_ms * 1e-3)) for one in rounds]
    narrowest = min(end - begin for begin, end in ends)
    named = "load " if len(rounds) == 1 or narrowest > 48.0 else ""
    for number, (begin, end) in enumerate(ends, start=1):
        yield begin, end, f"{named}{number}" if named or narrowest > 12.0 else ""


def speed_ticks(low: float, high: float, most: float) -> list[Tick]:
    """Round percentages, or round factors where they reach far; `most` at the most."""
    if high - low > _FAR:
        return [(math.log(f), f"{f:g}x") for f in _FACTORS if low <= math.log(f) <= high]
    most = min(7.0, max(2.0, most))
    first, last = 100.0 * math.expm1(low), 100.0 * math.expm1(high)
    step = next((s for s in _PERCENT_STEPS if (last - first) / s <= most), _PERCENT_STEPS[-1])
    numbers = range(math.ceil(first / step), math.floor(last / step) + 1)
    return [(math.log1p(n * step / 100.0), f"{'+' * (n > 0)}{n * step:g} %") for n in numbers]


def time_ticks(last_s: float, width: float) -> Iterator[Tick]:
    step = next((s for s in _TIME_STEPS_S if last_s / s <= width / 70), _TIME_STEPS_S[-1])
    for seconds in range(0, int(last_s) + 1, step):
        hours, minutes = divmod(seconds // 60, 60)
        clock = f"{hours}:{minutes:02d} h" if hours else f"{minutes}:{seconds % 60:02d}"
        yield seconds, clock if seconds >= 60 else f"{seconds} s"


def _middle(group: Sequence[Rested]) -> Rested:
    """The process that keeps the median."""
    return sorted(group, key=lambda each: each.kept_kb)[len(group) // 2]


def _line_of(rested: Rested) -> list[tuple[int, int]]:
    ends = [(one.end_ms, one.kept_kb + one.lazy_kb, one.lazy_kb) for one in rested.rounds]
    return [(at, kb) for at, kb, _ in sorted([*rested.points, *ends])]


def _speed_range(shown: Sequence[float], floor: float) -> tuple[float, float]:
    """Room for all that is good; what is far too slow is drawn at the lower edge."""
    high = max([floor, *shown])
    least = -_WORST_SHOWN * max(high, 2.0 * floor)
    return _padded(max(least, min([-floor, *shown])), high)


def _padded(low: float, high: float) -> tuple[float, float]:
    room = 0.08 * max(high - low, 0.02)
    return low - room, high + room


def _ends(interval: Interval | None) -> list[float]:
    ends = [interval.low, interval.high] if interval is not None else []
    return [end for end in ends if math.isfinite(end)]


# ---- figures in words ----------------------------------------------------------------------------


_FACTOR = 3.0
_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def percent_words(ratio: float | None, *, sign: bool = True) -> str:
    """A ratio as a change in percent ("+12.3 %"), or as a factor from three times on ("3.1x")."""
    if ratio is None or ratio >= _FACTOR:
        return "-" if ratio is None else f"{ratio:.1f}x"
    return percent(math.log(ratio), sign=sign).replace(" ", "\u00a0")


def change(log_ratio: float, *, sign: bool = True) -> str:
    return percent_words(math.exp(log_ratio), sign=sign)


def interval_words(interval: Interval | None) -> str:
    """An estimate with its interval: "+3.1 % [+1.0 %, +5.2 %]"."""
    if interval is None:
        return "too few pairs"
    if not math.isfinite(interval.half_width):
        return change(interval.estimate)
    return f"{change(interval.estimate)} [{change(interval.low)}, {change(interval.high)}]"


def config_words(config: Mapping[str, Value]) -> str:
    return " ".join(f"{name}={value}" for name, value in config.items()) or "the defaults"


def arm_words(arm: Arm) -> str:
    """Whose configuration it is, in one line; hz's own parameters need no name."""
    if arm.is_default:
        return f"{arm.allocator} with its defaults"
    return ("" if arm.allocator == "hz" else f"{arm.allocator}: ") + config_words(arm.config)


def value_words(value: Value, unit: str = "") -> str:
    """A value as a reader sees it best: bytes in KiB or MiB where they are round."""
    if unit == "bytes" and isinstance(value, int):
        for word, size in _UNITS:
            if value >= size and value % size == 0:
                return f"{value // size} {word}"
    return str(value)


def count_words(value: float) -> str:
    return f"{value:,.0f}" if value >= 100.0 or value == 0.0 else f"{value:.3g}"


def factor_words(before: float, after: float) -> str:
    """What a counter did: "-86 %", "3.2 times", "new"."""
    factor = after / before if before else math.inf
    if factor >= 2.0:
        return f"{factor:.1f} times" if before else "new"
    return f"{100.0 * (factor - 1.0):+.0f}\u00a0%"


def memory_words(ratio: float, of: MemoryKind = "rss") -> str:
    word = "less" if ratio < 1.0 else "more"
    return f"{100.0 * abs(ratio - 1.0):.0f}\u00a0% {word} {MEMORIES[of]}"


def size_words(kb: float) -> str:
    return f"{kb:.0f}\u00a0KiB" if abs(kb) < 1024 else f"{kb / 1024:.1f}\u00a0MiB"


def short_ratio(shown: Interval | None) -> str:
    return "-" if shown is None else "{:.2f}x [{:.2f}, {:.2f}]".format(*shown.ratio)


def round_ops(ops: float) -> int:
    """A count of operations near `ops` that is easy to read: 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(max(1.0, ops)))
    # The logarithm of what is nearly a power of ten is that of the power.
    return int(power * next((step for step in (5, 2) if step * power <= ops), 1))


def program_words(found: Figures) -> str:
    words = found.command
    return shlex.join(words[words.index("--") + 1 :]) if "--" in words else ""


def hyperfine_targets(found: Figures) -> list[str]:
    """One command a workload whose gain whole runs can show, as in a shell's double quotes."""
    profile, program = found.result.profile, program_words(found)
    is_speed = profile.claim.metric in (METRICS["throughput"], "wall_s")
    if not (profile.makes_a_claim and is_speed) or "--input" in found.command:
        return []
    if program:
        return [re.sub(r'([\\"$`])', r"\\\1", program)]
    if profile.workload.kind != "bench":
        return []
    told = []
    for each, speed in zip(profile.workloads, found.control_speeds, strict=False):
        params = "".join(f" --{name} {value}" for name, value in each.params.items())
        name = shlex.quote(each.name if is_trace(each.name) else each.text)
        target = f"$(hztune paths --bench) {name}{params} --threads {profile.threads}"
        told.append(f"{target} --ops {round_ops(speed)}")
    return told
