"""Figures in words, as a report says them."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping

from hztune.blocks import Arm
from hztune.params import Value
from hztune.progress import percent
from hztune.rests import MEMORIES, MemoryKind
from hztune.result.figures import Figures
from hztune.stats.intervals import Interval
from hztune.workload import METRICS, is_trace

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
