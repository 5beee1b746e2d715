"""The measurements that could be made of a program: when each is worth making, why, and how.

The weight of one is the share of the program's time or memory that is at stake, as far as one look
tells; it orders the suggestions, and is no forecast. What an allocation and a page fault cost
differs; the two figures below are round ones, and the reasons name them.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from hztune.measure.program import DEFAULT_READY_S, DEFAULT_TIMEOUT_S, Program
from hztune.progress import mib
from hztune.suggest.sight import Sight

MOST = 3
"""Measurements that are named."""

_PAIR_S = 50e-9
"""Of an allocation with its free."""

_FAULT_S = 0.5e-6
"""Of a page fault."""

_LARGE_KB = 256 * 1024
"""From that much memory on, its share counts in full."""

_SMALL_KB = 16 * 1024
"""Below that, memory is nothing to save."""

_LITTLE = 0.02
"""A share that is hardly worth a measurement."""

_WAITS = 0.5
"""CPUs below which a program waits more than it works."""

_LONG_S = 2.0
"""A run that takes longer is better searched on a trace."""

_PLACED = re.compile(r"[\w@%+=:,./{}-]+", re.ASCII)
"""Words that hztune reads as they are; a shell never sees those of a server."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A measurement that is worth making.

    `command` is the line to paste, `reason` what was seen, in one sentence or two; `weight` the
    share of time or memory (`about`) that is at stake, from 0 to about 1.
    """

    name: str
    command: str
    reason: str
    weight: float
    about: Literal["time", "memory", "both"] = "time"


@dataclass(frozen=True, slots=True)
class Case:
    """A program, what was seen of it, and what could be put under it.

    `allocators` are installed here and could be. It may use `limit_kb` (KiB; 0: not known) of
    memory here; `is_limited`: that is a container's.
    """

    program: Program
    sight: Sight
    allocators: tuple[str, ...]
    limit_kb: int
    is_limited: bool

    @property
    def allocating(self) -> float:
        """Share of its CPU time that its allocator may take."""
        return min(1.0, _PAIR_S * self.sight.allocations_per_cpu_s)

    @property
    def faulting(self) -> float:
        """Share of its CPU time that page faults of memory may take which it had before."""
        return min(1.0, _FAULT_S * self.sight.faults_per_cpu_s)

    @property
    def time(self) -> float:
        """Share of its time that another allocator or setting may change."""
        share = min(1.0, self.allocating + self.faulting)
        return share * min(1.0, self.sight.cpus / _WAITS) if self.waits else share

    @property
    def waits(self) -> bool:
        """Whether it waits more than it works; a server waits for its load, which is no matter."""
        return self.program.service is None and self.sight.cpus < _WAITS

    @property
    def size(self) -> float:
        """How much its allocator's memory matters, from 0 to 1."""
        kb = self.sight.malloc_kb
        return 0.0 if kb < _SMALL_KB else min(1.0, kb / _LARGE_KB)

    @property
    def inside(self) -> tuple[str, ...]:
        """The options with which only an allocator is tuned that the program brings, if need be."""
        return ("--allocator", "inside") if self.sight.obstacle else ()

    def line(self, *words: str, rest: bool = True) -> str:
        """The command with these options; `rest`: with its rounds of load and rest, if it has."""
        return command(self.program, words, rest=rest)


def suggestions(case: Case) -> tuple[Suggestion, ...]:
    """The measurements most worth making, the first one most; fewer where there are no more.

    Where all are about time, the last one gives way to the best about memory, if that is not
    little; and the other way round.
    """
    found = sorted(ideas(case), key=lambda one: -one.weight)
    chosen, others = found[:MOST], found[MOST:]
    if len({one.about for one in chosen}) == 1:
        others = [each for each in others if each.about != chosen[0].about]
        if others and others[0].weight > _LITTLE:
            chosen[-1] = others[0]
    return tuple(chosen)


def ideas(case: Case) -> Iterator[Suggestion]:
    """Every measurement that could be made."""
    sight, can_replace = case.sight, not case.sight.obstacle
    if can_replace or sight.inside:
        yield from _of_a_server(case)
        yield from _of_memory(case)
    if can_replace:
        yield from _among_allocators(case)
    elif sight.gains_rights:
        own = case.program.argv[0]
        name = f"./{Path(own).name}-copy"
        copied = command(replace(case.program, argv=(name, *case.program.argv[1:])))
        yield Suggestion(
            "a copy without rights",
            f"{shlex.join(['cp', shutil.which(own) or own, name])} && {copied}",
            "the loader ignores LD_PRELOAD in a program that gains rights (set-uid); a copy gains "
            "none",
            1.0,
        )
    elif not sight.is_of_go:
        own, *words = case.program.argv
        other = f"./{Path(own).name}-with-another-malloc"
        yield Suggestion(
            "another build",
            command(replace(case.program, argv=("{}", *words)), ("compare", own, other)),
            "no allocator can be put under it from outside; a build that is linked with another "
            "one can be compared with it (hztune paths --static-lib is hz's)",
            0.3,
        )
    if sight.inside:
        names = ", ".join(name.partition(":")[2] for name in sight.inside)
        only = "" if can_replace else ", and no other allocator can be put under it"
        yield Suggestion(
            "its own allocator's settings",
            case.line("--allocator", "inside"),
            "; ".join([f"{names} is inside, which reads variables{only}", *_why_speed(case)]),
            max(0.9 * case.time, 0.05 + 0.5 * case.size * sight.spare),
        )
    yield from _on_a_trace(case)


def _among_allocators(case: Case) -> Iterator[Suggestion]:
    """Speed, among all allocators or of one; the shortest of these only compares."""
    sight, calls = case.sight, case.sight.calls
    yield Suggestion("speed", case.line(), "; ".join(_why_speed(case)), case.time + 1e-3)
    if sight.allocator == "glibc" and case.faulting >= _LITTLE:
        large = ""
        if calls is not None and calls.large:
            large = (
                f"; {calls.large:,} of its blocks are of 128 KiB and more, which glibc maps for "
                "themselves as long as nothing was set"
            )
        yield Suggestion(
            "glibc's settings",
            case.line("--allocator", "glibc"),
            f"{_why_faults(case)}{large}: its thresholds decide what is given back",
            0.95 * case.faulting,
        )
    if case.allocators:
        share = calls.by_others if calls else 0.0
        reason = "it takes a minute, and shows how much the choice of an allocator matters at all"
        if share > _LITTLE:
            reason = (
                f"{_percent(share)} of its blocks are freed by another thread than the one that "
                "allocated them, where allocators differ most"
            )
        yield Suggestion(
            "allocators side by side",
            case.line("compare", "none", *case.allocators, rest=False),
            reason,
            (0.7 + 0.5 * share) * case.time + 5e-4,
        )
    yield Suggestion(
        "speed and memory",
        case.line("--pareto", "throughput,rss"),
        f"its allocator matters to its time ({_percent(case.time)} of it may be allocation and "
        f"page faults) and to its memory ({_mib(sight.peak_kb)} at its peak); a front shows what "
        "one costs in the other",
        0.9 * min(case.time, case.size * sight.spare),
        "both",
    )


def _on_a_trace(case: Case) -> Iterator[Suggestion]:
    """A search on a recording, where one run of the program takes long."""
    sight, program = case.sight, case.program
    is_short = sight.ended and sight.own_s < _LONG_S
    is_server = program.service is not None or (sight.ports and not sight.ended)
    if is_short or is_server or sight.calls is None:
        return
    took = "one run takes" if sight.ended else "it had not ended after"
    file = f"{program.label}.trace"
    record = shlex.join(["hztune", "record", "-o", file, "--", *program.argv])
    yield Suggestion(
        "speed, searched on a trace",
        f"{record} && {case.line('--workload', f'trace:{file}', '--prove-on', rest=False)}",
        f"{took} {sight.wall_s:.1f} s; on a recording of its calls many more configurations can be "
        "tried, and what is found is proved on the program",
        0.8 * case.time,
    )


def _of_memory(case: Case) -> Iterator[Suggestion]:
    """A limit where much is resident that belongs to no block."""
    sight, peak = case.sight, _mib(case.sight.peak_kb)
    little = "" if case.size else ": that is little, and so may be what there is to save"
    if sight.calls is None:
        reason, weight = f"its peak is {peak} resident{little}", 0.1 * case.size
    else:
        threads = mapped = ""
        if sight.allocator == "glibc" and sight.threads > 2:
            threads = f", in {sight.threads} threads, for which glibc makes arenas of their own"
        if sight.malloc_kb < sight.peak_kb:
            mapped = "; most of it, the program maps for itself"
        blocks = _mib(sight.calls.peak_kb)
        reason = f"at its peak {peak} are resident, and its blocks are {blocks} at most"
        reason += threads + little + mapped
        weight = 0.5 * case.size * sight.spare
    share = sight.peak_kb / case.limit_kb if case.limit_kb else 0.0
    if share >= _LITTLE:
        where = "the container that it runs in" if case.is_limited else "this machine"
        reason += f"; that is {_percent(share)} of the memory of {where}"
    weight = max(weight, share if case.is_limited and share > 0.5 else 0.2 * share)
    line = case.line(*case.inside, "--max-rss", "0.8x")
    yield Suggestion("less memory", line, reason, weight, "memory")


def _of_a_server(case: Case) -> Iterator[Suggestion]:
    """What a server keeps after its load; a program that listens and does not end is one, too."""
    sight, program = case.sight, case.program
    if program.service is None and sight.ports and not sight.ended:
        port = sight.ports[0].rpartition(" ")[2]
        words = ("suggest", "--server", shlex.join(program.argv), "--ready-port", port)
        yield Suggestion(
            "as a server",
            shlex.join(["hztune", *words, "--load", "YOUR LOAD"]),
            f"it listens on {sight.ports[0]} and had not ended after {sight.wall_s:.1f} s; under a "
            "load of yours its requests can be counted",
            1.5,
        )
    if program.service is None and program.rest is None:
        return
    reason = "it says when it rests, so that what it keeps then can be read"
    if program.service is not None:
        reason = (
            f"before its load {_mib(sight.before_kb)} were resident, and a second after it "
            f"{_mib(sight.end_kb)} ({_mib(sight.peak_kb)} at its peak)"
        )
    rounds = () if program.rest else ("--idle-s", "2", "--rounds", "3")
    peak_kb = max(1, sight.peak_kb)
    share = max(0, sight.end_kb - sight.before_kb) / peak_kb * sight.malloc_kb / peak_kb
    yield Suggestion(
        "memory at rest",
        case.line("--objective", "kept", *rounds, *case.inside),
        reason,
        0.6 * case.size * share + 0.02,
        "memory",
    )


def _why_speed(case: Case) -> Iterator[str]:
    """What was seen that speaks for, or against, a search for speed."""
    sight, calls = case.sight, case.sight.calls
    if calls is None:
        yield "what it asks of its allocator was not seen, and only measuring tells"
    else:
        yield (
            f"{sight.allocations_per_cpu_s:,.0f} allocations in a second of its CPU time, which at "
            f"{_PAIR_S * 1e9:.0f} ns for each with its free are {_percent(case.allocating)} of it"
        )
    if case.faulting >= _LITTLE:
        yield _why_faults(case)
    if case.waits:
        works = _percent(sight.cpus)
        yield f"but it works {works} of the time: less CPU time hardly shortens that"
    elif calls is not None and case.time < _LITTLE:
        yield "that is little, and so may be what there is to gain"


def _why_faults(case: Case) -> str:
    return (
        f"{case.sight.faults_per_cpu_s:,.0f} page faults in a second of its CPU time are of "
        f"memory that it had before, which at {_FAULT_S * 1e6:g} us each are "
        f"{_percent(case.faulting)} of it"
    )


def _percent(share: float) -> str:
    """A share as people write it: two digits of a small one."""
    if share < 0.001:
        return "less than 0.1 %"
    return f"{100 * share:.1f} %" if share < 0.1 else f"{100 * share:.0f} %"


def _mib(kb: int) -> str:
    return mib(1024 * kb)


# ---- commands to paste ---------------------------------------------------------------------------


def command(program: Program, words: Sequence[str] = (), *, rest: bool = True) -> str:
    """The line that measures a program, with its options as they stand on the command line.

    Args:
        program: What is measured.
        words: What stands behind `hztune`, before the program.
        rest: Whether its rounds of load and rest are asked for, too.
    """
    regex, shell, lower = json.loads(program.metric) if program.metric else ("", "", False)
    plan, service = program.rest if rest else None, program.service
    own = " ".join(word if _PLACED.fullmatch(word) else shlex.quote(word) for word in program.argv)
    about: tuple[tuple[str, object], ...] = (
        ("--metric-regex", regex),
        ("--metric-cmd", shell),
        ("--lower-is-better", lower),
        ("--prepare", program.prepare),
        ("--cleanup", program.cleanup),
        ("--check", program.check),
        ("--input", program.input and program.input.name),
        ("--warmup", program.warmups != 1 and str(program.warmups)),
        ("--timeout", program.timeout_s != DEFAULT_TIMEOUT_S and f"{program.timeout_s:g}"),
        ("--ready-timeout", program.ready_s != DEFAULT_READY_S and f"{program.ready_s:g}"),
        ("--by", program.by),
    )
    used: tuple[tuple[str, object], ...] = (
        ("--idle-s", plan and f"{plan.idle_s:g}"),
        ("--rounds", plan and str(plan.rounds)),
        ("--rests", plan and plan.says),
        ("--server", service and own),
        ("--load", service and service.load),
        ("--ready", service and service.ready),
        ("--ready-port", service and service.port and str(service.port)),
    )
    return shlex.join([
        "hztune", *words, *_given(about), *(program.quota.options if program.quota else ()),
        *_given(used), *(() if service else ("--", *program.argv)),
    ])  # fmt: skip


def _given(options: Sequence[tuple[str, object]]) -> list[str]:
    """The words of the options that have a value."""
    words = [(name,) if value is True else (name, str(value)) for name, value in options if value]
    return [word for pair in words for word in pair]
