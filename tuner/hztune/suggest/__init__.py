"""What is worth measuring of a program: a look at it, and three measurements.

`look` runs the program twice for a few seconds, as it is and recorded: what was seen is a `Sight`.
`ideas` names each measurement that could be made: when it is worth making, why, and its command.
Nothing is compared or claimed here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hztune import allocator
from hztune.arguments import within
from hztune.errors import UsageError
from hztune.machine import Machine
from hztune.measure.program import OPEN, Program
from hztune.progress import Reporter, mib
from hztune.recordings import at_most
from hztune.suggest.ideas import Suggestion, best_of, ideas
from hztune.suggest.look import Sight, looked_at

_LEAST_LOOK_S, _MOST_LOOK_S = 0.2, 60.0
_NOTE = "One look is no measurement: nothing was compared, and nothing is claimed."


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
    if program.argv[0] == OPEN:
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
    told = [f"{name:<10} {text}" for name, text in _seen(found.sight) if text]
    if found.measurements:
        told += ["", "worth measuring, the first one most:"]
    for place, one in enumerate(found.measurements, 1):
        told += [f"{place}. {one.name}", f"     {one.command}", f"   {one.reason}"]
    return [*told, "", _NOTE]


def _seen(sight: Sight) -> Iterator[tuple[str, str]]:
    """What was seen, by name; a text that is empty is not printed."""
    served = bool(sight.before_kb)
    named = sight.allocator or "one that is not known"
    source = f", from {Path(sight.provider).name}" if sight.provider else ""
    brought = f"; inside: {', '.join(sight.inside)}" if sight.inside else ""
    yield "allocator", named + source + brought + (f"; {sight.obstacle}" if sight.obstacle else "")
    what = "its load took" if served else "it took"
    took = f"{what} {sight.wall_s:.2f} s" if sight.ended else f"looked at for {sight.wall_s:.2f} s"
    went_on = "" if sight.ended else "; it went on"
    processes = f"{sight.processes} process{'es' * (sight.processes != 1)}"
    yield "time", f"{took}, with {sight.cpus:.2f} CPUs busy, in {processes}{went_on}"
    if sight.unseen:
        yield "calls", f"not seen: {sight.unseen}"
    else:
        per_s = f"{sight.allocations_per_cpu_s:,.0f} in a second of CPU time"
        threads = f"{sight.callers} thread{'s' * (sight.callers != 1)}"
        under = " under its load" if served else ""
        yield "calls", f"{sight.allocations:,} allocations{under}, {per_s}, by {threads}"
        most = [f"{at_most(sight.sizes, share):,} bytes" for share in (0.5, 0.9, 1)]
        yield "sizes", "50 % at most {}, 90 % at most {}, 100 % at most {}".format(*most)
        share = f"{100 * sight.by_others:.1f} %"
        yield "frees", f"{sight.frees:,}, {share} by another thread than the block's"
    again = f", {sight.faults_again:,} of them of memory that it had before"
    yield "faults", f"{sight.faults:,} pages{again if sight.faults_again else ''}"
    peak, before, end = (mib(1024 * kb) for kb in (sight.peak_kb, sight.before_kb, sight.end_kb))
    blocks = "" if sight.unseen else f", blocks {mib(1024 * sight.blocks_kb)} at most"
    last = f"{before} before its load, {end} after it" if served else f"{end} when it was last seen"
    yield "memory", f"{peak} at its peak, without files{blocks}; {last}"
    yield "listens", f"on {', '.join(sight.ports)}" if sight.ports and not served else ""
