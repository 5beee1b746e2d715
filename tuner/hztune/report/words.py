"""The sentences of a report: what was found, in words that claim no more than was proved."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping

from hztune import trace_file
from hztune.blocks import Arm
from hztune.params import Value
from hztune.profile import TOLD_FROM, Profile, WorkloadId
from hztune.progress import percent
from hztune.rests import MEMORIES, MemoryKind
from hztune.stats.intervals import Interval
from hztune.workload import METRICS

_FACTOR = 3.0
_GAINS = {
    "ops_per_s": ("do", "does", "{} times the operations a second", "{} more operations a second"),
    "wall_s": ("run", "runs", "{} times as fast", "{} faster"),
    "p99_ns": ("are", "is", "{} times as good in p99 latency", "{} better in p99 latency"),
}
"""By metric: the verbs of several and of one workload, and a gain as a factor and as a change."""

_OWN_GAIN = ("are", "is", "{} times as good in its own metric", "{} better in its own metric")
_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def change(log_ratio: float, *, sign: bool = True) -> str:
    """A log ratio as a change in percent, never broken at the end of a line: "+12.3 %".

    From three times on it is said as a factor: "3.1x".
    """
    if math.exp(log_ratio) >= _FACTOR:
        return f"{math.exp(log_ratio):.1f}x"
    return percent(log_ratio, sign=sign).replace(" ", "\u00a0")


def verdict_words(profile: Profile) -> str:
    """The verdict in one sentence, without its interval."""
    claim, what, control = profile.claim, target_words(profile), control_words(profile)
    if claim.verdict == "improved" and claim.ratio is not None:
        gain = _gain_words(claim.metric, claim.ratio, several=len(profile.workloads) > 1)
        dear = (seen for seen in profile.memory if seen.ci_low > TOLD_FROM)
        price = " and ".join(memory_words(seen.ratio, seen.of) for seen in dear)
        return f"{what} {gain} {_with_words(profile)}" + (f", for {price}" if price else "")
    if claim.verdict == "less_memory" and claim.memory is not None:
        less = memory_words(claim.memory.ratio, claim.memory.of)
        return f"{what} takes {less} {_with_words(profile)}"
    return {
        "within_limit": f"{what} keeps its memory limit {_with_words(profile)}; {control} does not",
        "infeasible": f"No configuration of {allocator_words(profile)} keeps the limits on {what}",
        "not_enough_data": f"The budget was too small for a study of {what}",
        "interrupted": f"The study of {what} was stopped before it could prove anything",
    }.get(claim.verdict, f"Nothing was proved better than {control} on {what}")


def interval_sentence(profile: Profile) -> str:
    """The interval behind the verdict, or what stands in its place; and what was searched on."""
    said = _interval_words(profile)
    if profile.found_on is None:
        return said
    return f"{said} The search, whose figures follow, was on {profile.found_on.text}."


def _interval_words(profile: Profile) -> str:
    result = profile.claim
    if result.ratio is None or result.ci_low is None or result.ci_high is None:
        return "Nothing was measured on fresh pairs."
    low, high = change(math.log(result.ci_low)), change(math.log(result.ci_high))
    pairs = _count(result.pairs, "pair")
    if result.verdict == "less_memory" and (memory := result.memory) is not None:
        return (
            f"95 % interval of its memory {memory.ci_low:.3f} to {memory.ci_high:.3f} of that of "
            f"{control_words(profile)}, of its speed {low} to {high}, from {pairs} of fresh "
            "processes that no selection had seen."
        )
    if profile.makes_a_claim:
        against = f"against {control_words(profile)}, from {pairs} of fresh processes"
        return f"95 % interval {low} to {high} {against} that no selection had seen."
    if result.verdict in ("interrupted", "not_enough_data"):
        so_far = change(math.log(result.ratio))
        return f"So far {so_far}, 95 % interval {low} to {high} from {pairs}; not a claim."
    return "A gain below the noise floor is no gain."


def control_words(profile: Profile) -> str:
    """What everything was compared with: "the default of hz", "the unchanged program"."""
    control = profile.objective.control or profile.allocator.name
    return "the unchanged program" if control == "none" else f"the default of {control}"


def target_words(profile: Profile) -> str:
    """What was tuned for: "remote@main with remote=90 and 32 threads"."""
    names = " and ".join(workload.text for workload in profile.workloads)
    details = [
        f"{name}={value}" for each in profile.workloads for name, value in each.params.items()
    ]
    if profile.threads:
        details.append(_count(profile.threads, "thread"))
    return f"{names} with {' and '.join(details)}" if details else names


def allocator_words(profile: Profile) -> str:
    """Whose parameters they are: "hz 0.1.0"."""
    name = profile.allocator.name
    return (
        "the unchanged program" if name == "none" else f"{name} {profile.allocator.version}".strip()
    )


def interval_words(interval: Interval | None) -> str:
    """An estimate with its interval: "+3.1 % [+1.0 %, +5.2 %]"."""
    if interval is None:
        return "too few pairs"
    if not math.isfinite(interval.half_width):
        return change(interval.estimate)
    low, high = change(interval.low), change(interval.high)
    return f"{change(interval.estimate)} [{low}, {high}]"


def config_words(config: Mapping[str, Value]) -> str:
    """A configuration in one line."""
    return " ".join(f"{name}={value}" for name, value in config.items()) or "the defaults"


def arm_words(arm: Arm) -> str:
    """Whose configuration it is, in one line; hz's own parameters need no name."""
    if arm.is_default:
        return f"{arm.allocator} with its defaults"
    whose = "" if arm.allocator == "hz" else f"{arm.allocator}: "
    return whose + config_words(arm.config)


def value_words(value: Value, unit: str = "") -> str:
    """A value as a reader sees it best: bytes in KiB or MiB where they are round."""
    if unit == "bytes" and isinstance(value, int):
        for word, size in _UNITS:
            if value >= size and value % size == 0:
                return f"{value // size} {word}"
    return str(value)


def factor_words(before: float, after: float) -> str:
    """What a counter did: "-86 %", "3.2 times", "new"."""
    if before == 0:
        return "new"
    factor = after / before
    if factor >= 2.0:
        return f"{factor:.1f} times"
    return f"{100.0 * (factor - 1.0):+.0f}\u00a0%"


def memory_words(ratio: float, of: MemoryKind = "rss") -> str:
    """A ratio of memory in words: "29 % less peak memory"."""
    change = 100.0 * abs(ratio - 1.0)
    return f"{change:.0f}\u00a0% {'less' if ratio < 1.0 else 'more'} {MEMORIES[of]}"


def size_words(kb: float) -> str:
    """An amount of memory: "31.4 MiB"."""
    return f"{kb:.0f}\u00a0KiB" if abs(kb) < 1024 else f"{kb / 1024:.1f}\u00a0MiB"


def short_ratio(ends: tuple[float, float, float] | None) -> str:
    """A ratio with its interval to two digits; "-" where there is none."""
    return "-" if ends is None else "{:.2f}x [{:.2f}, {:.2f}]".format(*ends)


def bench_command(workload: WorkloadId, threads: int, ops: int) -> str:
    """The command of a built-in workload that does so many operations."""
    params = "".join(f" --{name} {value}" for name, value in workload.params.items())
    is_trace = trace_file.is_trace(workload.name)
    name = shlex.quote(workload.name if is_trace else workload.text)
    return f"$(hztune paths --bench) {name}{params} --threads {threads} --ops {ops}"


def hyperfine_command(profile: Profile, target: str) -> str:
    """The hyperfine command that compares control and profile by whole runs of a command.

    Args:
        profile: What to compare.
        target: What is run, as it stands between double quotes of a shell.
    """
    own = profile.allocator.name
    library = _preload_words(own, profile.allocator.soname)
    control = profile.objective.control or own
    default = library if control == own else _preload_words(control, f"lib{control}.so")
    settings = "".join(f"{name}={value} " for name, value in profile.environment.items())
    return " \\\n  ".join(
        [
            "hyperfine -N --warmup 1 --runs 10",
            f'-n default "env {default}{target}"',
            f'-n tuned "env {library}{settings}{target}"',
        ]
    )


def _preload_words(allocator: str, soname: str) -> str:
    if allocator in ("none", "glibc") or allocator.startswith("inside:"):
        return ""
    beside = f"{soname}:$(hztune paths --deepbind)"
    return f"LD_PRELOAD={'$(hztune paths --lib)' if allocator == 'hz' else beside} "


def round_ops(ops: float) -> int:
    """A count of operations near `ops` that is easy to read: 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(max(1.0, ops)))
    # The logarithm of what is nearly a power of ten is that of the power.
    return int(power * next((step for step in (5, 2) if step * power <= ops), 1))


def _with_words(profile: Profile) -> str:
    """What the profile changes, in words: "with 3 parameters of hz 0.1.0 set"."""
    count, whose = len(profile.params), allocator_words(profile)
    if profile.objective.control in ("", profile.allocator.name):
        return f"with {_count(count, 'parameter')} of {whose} set"
    return f"under {whose}" + (f" with {_count(count, 'parameter')} set" if count else "")


def _gain_words(metric: str, ratio: float, *, several: bool) -> str:
    """A gain in words; of several workloads it is the mean."""
    if metric == METRICS["kept"]:
        return f"keeps {memory_words(1.0 / ratio, 'kept')} at rest"
    many, one, factor, more = _GAINS.get(metric, _OWN_GAIN)
    is_far = ratio >= _FACTOR
    told = (
        factor.format(f"{ratio:.1f}")
        if is_far
        else more.format(change(math.log(ratio), sign=False))
    )
    return f"{many if several else one} {told}{' on average' if several else ''}"


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
