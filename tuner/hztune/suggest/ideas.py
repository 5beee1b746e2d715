"""The measurements that could be made of a program, when each is worth making, and why.

An idea looks at what was seen and returns a suggestion or nothing. Its weight is the share of the
program's time or memory that is at stake, as far as one look tells; it orders the suggestions, and
is no forecast. What an allocation and a page fault cost differs; the two figures below are round
ones, and the reasons name them.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from hztune.measure.program import Program
from hztune.suggest.command import command
from hztune.suggest.sight import Sight

MOST = 3
"""Measurements that are named."""

PAIR_S = 50e-9
"""Of an allocation with its free."""

FAULT_S = 0.5e-6
"""Of a page fault."""

_GLIBC = "glibc"
_LARGE_KB = 256 * 1024
"""From that much memory on, its share counts in full."""

_SMALL_KB = 16 * 1024
"""Below that, memory is nothing to save."""

_LITTLE = 0.02
"""A share that is hardly worth a measurement."""

_WAITS = 0.5
"""CPUs below which a program waits more than it works."""

_FEW_THREADS = 2
_TENTH, _THOUSANDTH = 0.1, 0.001
_LONG_S = 2.0
_MUCH_OF_LIMIT = 0.5


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A measurement that is worth making.

    Attributes:
        name: What it is about, in a word or two.
        command: The line to paste.
        reason: Why, in one sentence or two: what was seen.
        weight: The share of time or memory that is at stake, from 0 to about 1.
        about: Which of the two, or both.
    """

    name: str
    command: str
    reason: str
    weight: float
    about: Literal["time", "memory", "both"] = "time"


@dataclass(frozen=True, slots=True)
class Case:
    """What an idea looks at.

    Attributes:
        program: What is measured.
        sight: What was seen of it.
        allocators: Those that are installed here and could be put under it.
        limit_kb: Memory that it may use here, KiB; 0: not known.
        is_limited: Whether that is a container's.
    """

    program: Program
    sight: Sight
    allocators: tuple[str, ...]
    limit_kb: int
    is_limited: bool

    @property
    def allocating(self) -> float:
        """Share of its CPU time that its allocator may take."""
        return min(1.0, PAIR_S * self.sight.allocations_per_cpu_s)

    @property
    def faulting(self) -> float:
        """Share of its CPU time that page faults of memory may take which it had before."""
        return min(1.0, FAULT_S * self.sight.faults_per_cpu_s)

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
    def can_replace(self) -> bool:
        """Whether another allocator can be put under it."""
        return not self.sight.obstacle

    @property
    def can_change(self) -> bool:
        """Whether anything of its allocator can be changed from outside."""
        return self.can_replace or bool(self.sight.inside)

    def line(self, *words: str, rest: bool = True) -> str:
        """The command with these options; `rest`: with its rounds of load and rest, if it has."""
        return command(self.program, words, rest=rest)


Idea = Callable[[Case], "Suggestion | None"]


def suggestions(case: Case) -> tuple[Suggestion, ...]:
    """The measurements most worth making, the first one most; fewer where there are no more.

    Where all are about time, the last one gives way to the best about memory, if that is not
    little; and the other way round.
    """
    found = [made for idea in IDEAS if (made := idea(case)) is not None]
    found.sort(key=lambda one: -one.weight)
    chosen, others = found[:MOST], found[MOST:]
    if len({one.about for one in chosen}) == 1:
        others = [each for each in others if each.about != chosen[0].about]
        if others and others[0].weight > _LITTLE:
            chosen[-1] = others[0]
    return tuple(chosen)


# ---- ideas ---------------------------------------------------------------------------------------


def _as_server(case: Case) -> Suggestion | None:
    """A program that listens and does not end is a server, which needs a load."""
    sight, program = case.sight, case.program
    if program.service is not None or sight.ended or not sight.ports or not case.can_change:
        return None
    port = sight.ports[0].rpartition(" ")[2]
    words = ("suggest", "--server", shlex.join(program.argv), "--ready-port", port)
    return Suggestion(
        "as a server",
        shlex.join(["hztune", *words, "--load", "YOUR LOAD"]),
        f"it listens on {sight.ports[0]} and had not ended after {sight.wall_s:.1f} s; under a "
        "load of yours its requests can be counted",
        1.5,
    )


def _speed(case: Case) -> Suggestion | None:
    """Search for speed, among all allocators."""
    if not case.can_replace:
        return None
    return Suggestion("speed", case.line(), _sentence(*_why_speed(case)), case.time + 1e-3)


def _inside(case: Case) -> Suggestion | None:
    """The settings of an allocator that it brings."""
    if not case.sight.inside:
        return None
    names = ", ".join(name.partition(":")[2] for name in case.sight.inside)
    only = "" if case.can_replace else ", and no other allocator can be put under it"
    return Suggestion(
        "its own allocator's settings",
        case.line("--allocator", "inside"),
        _sentence(f"{names} is inside, which reads variables{only}", *_why_speed(case)),
        max(0.9 * case.time, 0.05 + 0.5 * case.size * _spare(case.sight)),
    )


def _glibc_settings(case: Case) -> Suggestion | None:
    """Settings of glibc alone, where it gives pages back and faults them in again."""
    if case.sight.allocator != _GLIBC or not case.can_replace or case.faulting < _LITTLE:
        return None
    calls = case.sight.calls
    large = ""
    if calls is not None and calls.large:
        large = (
            f"; {calls.large:,} of its blocks are of 128 KiB and more, which glibc maps for "
            "themselves as long as nothing was set"
        )
    return Suggestion(
        "glibc's settings",
        case.line("--allocator", "glibc"),
        _sentence(f"{_why_faults(case)}{large}: its thresholds decide what is given back"),
        0.95 * case.faulting,
    )


def _side_by_side(case: Case) -> Suggestion | None:
    """All allocators with their defaults, which is the shortest measurement."""
    calls = case.sight.calls
    if not case.can_replace or not case.allocators:
        return None
    share = calls.by_others if calls else 0.0
    reason = "it takes a minute, and shows how much the choice of an allocator matters at all"
    if share > _LITTLE:
        reason = (
            f"{_percent(share)} of its blocks are freed by another thread than the one that "
            "allocated them, where allocators differ most"
        )
    return Suggestion(
        "allocators side by side",
        case.line("compare", "none", *case.allocators, rest=False),
        reason,
        (0.7 + 0.5 * share) * case.time + 5e-4,
    )


def _on_a_trace(case: Case) -> Suggestion | None:
    """A search on a recording, where one run of the program takes long."""
    sight, program = case.sight, case.program
    if program.service is not None or sight.calls is None or (sight.ports and not sight.ended):
        return None
    if sight.ended and sight.own_s < _LONG_S:
        return None
    took = "one run takes" if sight.ended else "it had not ended after"
    file = f"{program.label}.trace"
    record = shlex.join(["hztune", "record", "-o", file, "--", *program.argv])
    search = case.line("--workload", f"trace:{file}", "--prove-on", rest=False)
    return Suggestion(
        "speed, searched on a trace",
        f"{record} && {search}",
        _sentence(
            f"{took} {sight.wall_s:.1f} s",
            "on a recording of its calls many more configurations can be tried, and what is found "
            "is proved on the program",
        ),
        0.8 * case.time,
    )


def _least_memory(case: Case) -> Suggestion | None:
    """A limit of memory, where much is resident that belongs to no block."""
    sight = case.sight
    words = () if case.can_replace else ("--allocator", "inside")
    if not case.can_change:
        return None
    line = case.line(*words, "--max-rss", "0.8x")
    if sight.calls is None:
        reason = f"its peak is {_mib(sight.peak_kb)} resident{_little(case)}"
        return Suggestion("less memory", line, reason, 0.1 * case.size, "memory")
    threads = ""
    if sight.allocator == _GLIBC and sight.threads > _FEW_THREADS:
        threads = f", in {sight.threads} threads, for which glibc makes arenas of their own"
    reason = (
        f"at its peak {_mib(sight.peak_kb)} are resident, and its blocks are "
        f"{_mib(sight.calls.peak_kb)} at most{threads}{_little(case)}{_mapped(sight)}"
    )
    weight = 0.5 * case.size * _spare(sight)
    return Suggestion("less memory", line, reason, weight, "memory")


def _front(case: Case) -> Suggestion | None:
    """Speed and memory weighed against each other."""
    if not case.can_replace:
        return None
    reason = (
        f"its allocator matters to its time ({_percent(case.time)} of it may be allocation and "
        f"page faults) and to its memory ({_mib(case.sight.peak_kb)} at its peak); a front shows "
        "what one costs in the other"
    )
    weight = 0.9 * min(case.time, case.size * _spare(case.sight))
    line = case.line("--pareto", "throughput,rss")
    return Suggestion("speed and memory", line, reason, weight, "both")


def _kept(case: Case) -> Suggestion | None:
    """What stays when the load has ended."""
    sight, program = case.sight, case.program
    if (program.service is None and program.rest is None) or not case.can_change:
        return None
    grown = sight.end_kb - sight.before_kb
    words = ("--objective", "kept", *(() if program.rest else ("--idle-s", "2", "--rounds", "3")))
    words = (*words, *(() if case.can_replace else ("--allocator", "inside")))
    if program.service is None:
        reason = "it says when it rests, so that what it keeps then can be read"
    else:
        reason = (
            f"before its load {_mib(sight.before_kb)} were resident, and a second after it "
            f"{_mib(sight.end_kb)} ({_mib(sight.peak_kb)} at its peak)"
        )
    share = max(0.0, grown / sight.peak_kb) if sight.peak_kb else 0.0
    share *= sight.malloc_kb / max(1, sight.peak_kb)
    weight = 0.6 * case.size * share + 0.02
    return Suggestion("memory at rest", command(program, words), reason, weight, "memory")


def _smallest(case: Case) -> Suggestion | None:
    """The smallest container, where memory is limited and much of it is used."""
    share = case.sight.peak_kb / case.limit_kb if case.limit_kb else 0.0
    if share < _LITTLE or not case.can_change:
        return None
    words = () if case.can_replace else ("--allocator", "inside")
    where = "the container that it runs in" if case.is_limited else "this machine"
    reason = f"its peak of {_mib(case.sight.peak_kb)} is {_percent(share)} of the memory of {where}"
    weight = share if case.is_limited and share > _MUCH_OF_LIMIT else 0.2 * share
    line = case.line(*words, "--smallest-memory")
    return Suggestion("the smallest container", line, reason, weight, "memory")


def _copy_without_rights(case: Case) -> Suggestion | None:
    """A copy of a program that gains rights."""
    if "gains rights" not in case.sight.obstacle:
        return None
    own = case.program.argv[0]
    name = f"./{Path(own).name}-copy"
    line = command(replace(case.program, argv=(name, *case.program.argv[1:])))
    return Suggestion(
        "a copy without rights",
        f"{shlex.join(['cp', shutil.which(own) or own, name])} && {line}",
        "the loader ignores LD_PRELOAD in a program that gains rights (set-uid); a copy gains none",
        1.0,
    )


def _other_build(case: Case) -> Suggestion | None:
    """Two builds of a program that lets nothing be put under it."""
    if case.can_replace or any(each in case.sight.obstacle for each in ("gains rights", "of Go")):
        return None
    other = f"./{Path(case.program.argv[0]).name}-with-another-malloc"
    start = replace(case.program, argv=("{}", *case.program.argv[1:]))
    line = command(start, ("compare", case.program.argv[0], other))
    reason = (
        "no allocator can be put under it from outside; a build that is linked with another one "
        "can be compared with it (hztune paths --static-lib is hz's)"
    )
    return Suggestion("another build", line, reason, 0.3)


IDEAS: tuple[Idea, ...] = (
    _as_server,
    _copy_without_rights,
    _speed,
    _inside,
    _glibc_settings,
    _side_by_side,
    _on_a_trace,
    _least_memory,
    _front,
    _kept,
    _smallest,
    _other_build,
)


# ---- words ---------------------------------------------------------------------------------------


def _why_speed(case: Case) -> Iterator[str]:
    """What was seen that speaks for, or against, a search for speed."""
    sight, calls = case.sight, case.sight.calls
    if calls is None:
        yield "what it asks of its allocator was not seen, and only measuring tells"
    else:
        yield (
            f"{_count(sight.allocations_per_cpu_s)} allocations in a second of its CPU time, which "
            f"at {PAIR_S * 1e9:.0f} ns for each with its free are {_percent(case.allocating)} of it"
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
        f"{_count(case.sight.faults_per_cpu_s)} page faults in a second of its CPU time are of "
        f"memory that it had before, which at {FAULT_S * 1e6:g} us each are "
        f"{_percent(case.faulting)} of it"
    )


def _mapped(sight: Sight) -> str:
    return "; most of it, the program maps for itself" if sight.malloc_kb < sight.peak_kb else ""


def _little(case: Case) -> str:
    return "" if case.size else ": that is little, and so may be what there is to save"


def _spare(sight: Sight) -> float:
    """The share of the peak that belongs to no block; a tenth where that was not seen."""
    if sight.calls is None or not sight.peak_kb:
        return 0.1
    return sight.spare_kb / sight.peak_kb


def _sentence(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _percent(share: float) -> str:
    """A share as people write it: two digits of a small one."""
    if share < _THOUSANDTH:
        return "less than 0.1 %"
    return f"{100 * share:.1f} %" if share < _TENTH else f"{100 * share:.0f} %"


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _mib(kb: int) -> str:
    return f"{kb / 1024:.1f} MiB"
