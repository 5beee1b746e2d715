"""What is worth measuring of a program: a look at it, and three measurements.

`look` runs the program twice for a few seconds, as it is and recorded: what was seen is a `Sight`.
`ideas` names each measurement that could be made: when it is worth making, why, and its command.
Its weight is the share of the program's time or memory that is at stake, as far as one look tells;
it orders the suggestions, and is no forecast. What an allocation and a page fault cost differs; the
two figures below are round ones, and the reasons name them.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from hztune import allocator
from hztune.arguments import option_words, within
from hztune.errors import UsageError
from hztune.machine import Machine
from hztune.measure.program import OPEN, Program
from hztune.progress import Reporter, mib
from hztune.recordings import at_most
from hztune.suggest.look import Sight, looked_at
from hztune.templates import rendered

_LEAST_LOOK_S, _MOST_LOOK_S = 0.2, 60.0
_MOST = 3  # measurements that are named
_PAIR_S = 50e-9  # of an allocation with its free
_FAULT_S = 0.5e-6  # of a page fault
_LARGE_KB = 256 * 1024  # from that much memory on, its share counts in full
_SMALL_KB = 16 * 1024  # below that, memory is nothing to save
_LITTLE = 0.02  # a share that is hardly worth a measurement
_WAITS = 0.5  # CPUs below which a program waits more than it works
_LONG_S = 2.0  # a run that takes longer is better searched on a trace
_OF_REST = ("idle_s", "rounds", "rests")


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A measurement worth making: the line to paste, why, and its weight, from 0 to about 1."""

    name: str
    command: str
    reason: str
    weight: float
    about: Literal["time", "memory"] = "time"


@dataclass(frozen=True, slots=True)
class Suggested:
    """What is worth measuring of a program: at most three measurements, the best one first."""

    program: str
    sight: Sight
    measurements: tuple[Suggestion, ...]


def suggest(
    program: Program,
    *,
    seconds: float = 5.0,
    reporter: Reporter | None = None,
) -> Suggested:
    """Looks at a program, and names at most three measurements that are worth making.

    It is run twice, once with its calls recorded. Nothing is compared, and nothing is claimed.

    Args:
        program: A program or a server, from `program`.
        seconds: For each of the two runs; then the program is ended.
        reporter: Is told what begins; None: nothing is shown.

    Raises:
        UsageError: Something is not legal; nothing was run.
        HztuneError: The program fails by itself.
    """
    within("--for", seconds, _LEAST_LOOK_S, _MOST_LOOK_S)
    if program.is_open:
        raise UsageError(f"{OPEN} stands for the contenders of `hztune compare`; give a program")
    sight = looked_at(program, seconds, reporter or Reporter())
    others = [
        each.name for each in allocator.available() if each.preload and each.name != sight.allocator
    ]
    machine = Machine.here()
    asked = program.quota.memory_kb if program.quota else None
    limits = [kb for kb in (asked, machine.memory_limit_kb) if kb]
    least = min([*limits, machine.memory_gib << 20])
    found = best_of(ideas(program, sight, others, least, is_limited=least in limits))
    return Suggested(program.label, sight, found)


def suggestion_json(found: Suggested) -> dict[str, Any]:
    """What `suggest` found, as `hztune suggest --json` prints it."""
    return {"schema": 1, **asdict(found)}


def suggestion_text(found: Suggested) -> list[str]:
    """What `suggest` found, for people, a line each."""
    return rendered(Path(__file__).with_name("suggestion.txt"), found=found, at_most=at_most)


# ---- what could be measured ----------------------------------------------------------------------


def best_of(every: Iterable[Suggestion]) -> tuple[Suggestion, ...]:
    """If all are about time, the last gives way to the best about memory; and vice versa."""
    found = sorted(every, key=lambda each: -each.weight)
    chosen, others = found[:_MOST], found[_MOST:]
    if len({one.about for one in chosen}) == 1:
        others = [each for each in others if each.about != chosen[0].about]
        if others and others[0].weight > _LITTLE:
            chosen[-1] = others[0]
    return tuple(chosen)


def ideas(
    program: Program, sight: Sight, allocators: Sequence[str], limit_kb: int, *, is_limited: bool
) -> Iterator[Suggestion]:
    """Every measurement that could be made of a program.

    `allocators`: that are installed here and could be put under it. `limit_kb`: memory that it may
    use here, KiB; 0: not known; `is_limited`: whether that is a container's.
    """
    can_replace, (cost, reason) = not sight.obstacle, _cost(program, sight)
    if can_replace or sight.inside:
        yield from _of_a_server(program, sight)
        yield _of_memory(program, sight, limit_kb, is_limited)
    if can_replace:
        yield Suggestion("speed", command(program), reason, cost + 1e-3)
    if can_replace and allocators:
        share = sight.by_others
        side_by_side = (
            f"{_percent(share)} of its blocks are freed by another thread than the one that "
            "allocated them, where allocators differ most"
            if share > _LITTLE
            else "it takes a minute, and shows how much the choice of an allocator matters at all"
        )
        line = command(program, ("compare", "none", *allocators), rest=False)
        weight = (0.7 + 0.5 * share) * cost + 5e-4
        yield Suggestion("allocators side by side", line, side_by_side, weight)
    if sight.inside:
        names = ", ".join(name.partition(":")[2] for name in sight.inside)
        only = "" if can_replace else ", and no other allocator can be put under it"
        yield Suggestion(
            "its own allocator's settings",
            command(program, ("--allocator", "inside")),
            f"{names} is inside, which reads variables{only}; {reason}",
            max(0.9 * cost, 0.05 + 0.5 * _size(sight) * sight.spare),
        )
    is_short = sight.ended and sight.wall_s < _LONG_S
    is_server = program.service is not None or (sight.ports and not sight.ended)
    if not (sight.unseen or is_short or is_server):
        took = "one run takes" if sight.ended else "it had not ended after"
        trace = f"{program.label}.trace"
        record = shlex.join(["hztune", "record", "-o", trace, "--", *program.argv])
        search = command(program, ("--workload", f"trace:{trace}", "--prove-on"), rest=False)
        yield Suggestion(
            "speed, searched on a trace",
            f"{record} && {search}",
            f"{took} {sight.wall_s:.1f} s; on a recording of its calls many more configurations "
            "can be tried, and what is found is proved on the program",
            0.8 * cost,
        )


def _cost(program: Program, sight: Sight) -> tuple[float, str]:
    """The share of its time that an allocator or a setting may change, and what speaks for it."""
    faults_per_s = sight.faults_again / sight.cpu_s if sight.cpu_s > 0 else 0.0
    allocating = min(1.0, _PAIR_S * sight.allocations_per_cpu_s)
    faulting = min(1.0, _FAULT_S * faults_per_s)
    waits = program.service is None and sight.cpus < _WAITS  # a server waits for its load
    share = min(1.0, allocating + faulting) * (sight.cpus / _WAITS if waits else 1.0)
    reasons = ["what it asks of its allocator was not seen, and only measuring tells"]
    if not sight.unseen:
        reasons = [
            f"{sight.allocations_per_cpu_s:,.0f} allocations in a second of its CPU time, which at "
            f"{_PAIR_S * 1e9:.0f} ns for each with its free are {_percent(allocating)} of it"
        ]
    if faulting >= _LITTLE:
        reasons.append(
            f"{faults_per_s:,.0f} page faults in a second of its CPU time are of memory that it "
            f"had before, which at {_FAULT_S * 1e6:g} us each are {_percent(faulting)} of it"
        )
    if waits:
        works = f"but it works {_percent(sight.cpus)} of the time"
        reasons.append(f"{works}: less CPU time hardly shortens that")
    elif not sight.unseen and share < _LITTLE:
        reasons.append("that is little, and so may be what there is to gain")
    return share, "; ".join(reasons)


def _size(sight: Sight) -> float:
    """How much its allocator's memory matters, from 0 to 1."""
    return 0.0 if sight.malloc_kb < _SMALL_KB else min(1.0, sight.malloc_kb / _LARGE_KB)


def _of_a_server(program: Program, sight: Sight) -> Iterator[Suggestion]:
    service = program.service
    if service is None and sight.ports and not sight.ended:
        port = sight.ports[0].rpartition(" ")[2]
        words = ("suggest", "--server", shlex.join(program.argv), "--ready-port", port)
        yield Suggestion(
            "as a server",
            shlex.join(["hztune", *words, "--load", "YOUR LOAD"]),
            f"it listens on {sight.ports[0]} and had not ended after {sight.wall_s:.1f} s; under a "
            "load of yours its requests can be counted",
            1.5,
        )
    if service is None and program.rest is None:
        return
    reason = "it says when it rests, so that what it keeps then can be read"
    if service is not None:
        reason = (
            f"before its load {mib(1024 * sight.before_kb)} were resident, and a second after it "
            f"{mib(1024 * sight.end_kb)} ({mib(1024 * sight.peak_kb)} at its peak)"
        )
    rounds = () if program.rest else ("--idle-s", "2", "--rounds", "3")
    peak_kb = max(1, sight.peak_kb)
    share = max(0, sight.end_kb - sight.before_kb) / peak_kb * sight.malloc_kb / peak_kb
    yield Suggestion(
        "memory at rest",
        command(program, ("--objective", "kept", *rounds, *_inside(sight))),
        reason,
        0.6 * _size(sight) * share + 0.02,
        "memory",
    )


def _of_memory(program: Program, sight: Sight, limit_kb: int, is_limited: bool) -> Suggestion:
    peak, size = mib(1024 * sight.peak_kb), _size(sight)
    reason, weight = f"its peak is {peak} resident", 0.1 * size
    if not sight.unseen:
        blocks, weight = mib(1024 * sight.blocks_kb), 0.5 * size * sight.spare
        reason = f"at its peak {peak} are resident, and its blocks are {blocks} at most"
    if not size:
        reason += ": that is little, and so may be what there is to save"
    if sight.malloc_kb < sight.peak_kb:
        reason += "; most of it, the program maps for itself"
    share = sight.peak_kb / limit_kb if limit_kb else 0.0
    if share >= _LITTLE:
        where = "the container that it runs in" if is_limited else "this machine"
        reason += f"; that is {_percent(share)} of the memory of {where}"
    weight = max(weight, share if is_limited and share > 0.5 else 0.2 * share)
    line = command(program, (*_inside(sight), "--max-rss", "0.8x"))
    return Suggestion("less memory", line, reason, weight, "memory")


def _inside(sight: Sight) -> tuple[str, ...]:
    """The options with which only an allocator is tuned that the program brings, if need be."""
    return ("--allocator", "inside") if sight.obstacle else ()


def _percent(share: float) -> str:
    if share < 0.001:
        return "less than 0.1 %"
    return f"{100 * share:.1f} %" if share < 0.1 else f"{100 * share:.0f} %"


def command(program: Program, words: Sequence[str] = (), *, rest: bool = True) -> str:
    """A shell line: `words` stand before the program; `rest`: with its rounds of load and rest."""
    options = dict(program.asked)
    if program.input:
        options["input"] = program.input.name
    left_out = {"name"} if rest else {"name", *_OF_REST}
    given = option_words(**{name: options[name] for name in options if name not in left_out})
    own = () if program.service else ("--", *program.argv)
    return shlex.join(["hztune", *words, *given, *own])
