"""From a program to what is suggested, and its words: a look, the ideas, and earlier profiles."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hztune import allocator, machine_diff
from hztune.allocator import Installed
from hztune.arguments import within
from hztune.errors import UsageError
from hztune.machine import Machine
from hztune.measure.program import OPEN, Program
from hztune.profile import MachineId, Profile, hash_of_words
from hztune.progress import Quiet, Reporter, mib
from hztune.suggest.ideas import Case, Suggestion, command, suggestions
from hztune.suggest.look import looked_at
from hztune.suggest.sight import Sight
from hztune.trace.overview import at_most
from hztune.verify import history

_LEAST_LOOK_S, _MOST_LOOK_S = 0.2, 60.0
_MOST_OTHERS = 4
_LINKS_SHOWN = 6
_MUCH_DELAYED = 0.05
_NOTE = "One look is no measurement: nothing was compared, and nothing is claimed."


@dataclass(frozen=True, slots=True)
class Earlier:
    """Something that was found before, in words, and the line that puts it to use."""

    what: str
    command: str


@dataclass(frozen=True, slots=True)
class Suggested:
    """What is worth measuring of a program: at most three measurements, the best one first.

    `earlier` is what was found before on this machine, that of this program first.
    """

    program: str
    sight: Sight
    measurements: tuple[Suggestion, ...]
    earlier: tuple[Earlier, ...]


def suggest(
    program: Program,
    *,
    seconds: float = 5.0,
    profiles: str | Path = "hztune-results",
    reporter: Reporter | None = None,
) -> Suggested:
    """Looks at a program, and names at most three measurements that are worth making.

    It is run twice, once with its calls recorded. Nothing is compared, and nothing is claimed.

    Args:
        program: A program or a server, from `program`.
        seconds: For each of the two runs; then the program is ended.
        profiles: A folder with earlier profiles; one that is missing holds none.
        reporter: Is told what begins; None: nothing is shown.

    Raises:
        UsageError: Something is not legal; nothing was run.
        HztuneError: The program fails by itself.
    """
    within("--for", seconds, _LEAST_LOOK_S, _MOST_LOOK_S)
    if program.argv[0] == OPEN:
        raise UsageError(f"{OPEN} stands for the contenders of `hztune compare`; give a program")
    known = tuple(_earlier(program, Path(profiles)))
    sight = looked_at(program, seconds, reporter or Quiet())
    others = tuple(
        each.name
        for each in allocator.states().values()
        if isinstance(each, Installed) and each.preload and each.name != sight.allocator
    )
    machine = Machine.here()
    asked = program.quota.memory_kb if program.quota else None
    limits = [kb for kb in (asked, machine.memory_limit_kb) if kb]
    total = machine.memory_gib << 20
    least = min([*limits, total] if total else limits, default=0)
    case = Case(program, sight, others, least, is_limited=least in limits)
    return Suggested(program.label, sight, suggestions(case), known)


def _earlier(program: Program, folder: Path) -> Iterator[Earlier]:
    """The profiles of a folder that claim something about this machine, the newest first."""
    here, found = MachineId.of(Machine.here()), []
    with suppress(UsageError):  # there is no such folder, or no profile in it
        found = [
            (each.path, each.tuned)
            for each in history.profiles_in(folder)
            if each.tuned is not None
            and each.tuned.makes_a_claim
            and not machine_diff.of_machine(each.tuned.machine, here)
        ]
    others, words = [], hash_of_words(program.argv)
    for path, tuned in sorted(found, key=lambda each: each[1].created, reverse=True):
        if words in {each.words_sha256 for each in tuned.workloads}:
            yield Earlier(_told(tuned), command(program, ("verify", str(path))))
        elif not tuned.adapter.is_inside:
            others.append(str(path))
    if others:
        what = f"{len(others)} profile{'s' * (len(others) > 1)} of other programs on this machine"
        compared = ("compare", "none", *others[:_MOST_OTHERS])
        yield Earlier(what, command(program, compared, rest=False))


def _told(tuned: Profile) -> str:
    """A profile of this very program."""
    checks = history.read(tuned)
    last = f"; measured again on {checks[-1].at[:10]}: {checks[-1].answer}" if checks else ""
    ratio = f", {tuned.claim.ratio:.3f}x" if tuned.claim.ratio is not None else ""
    settings = " ".join(f"{name}={value}" for name, value in tuned.params.items())
    return (
        f"a profile of this command of {tuned.created[:10]}: {tuned.claim.verdict}{ratio}, "
        f"{tuned.allocator.name} {settings or 'with its defaults'}{last}"
    )


# ---- words ---------------------------------------------------------------------------------------


def suggestion_json(found: Suggested) -> dict[str, Any]:
    """What `suggest` found, as `hztune suggest --json` prints it."""
    return {"schema": 1, **asdict(found)}


def suggestion_text(found: Suggested) -> list[str]:
    """What `suggest` found, for people, a line each."""
    told = [f"{name:<10} {text}" for name, text in _seen(found.sight)]
    if found.measurements:
        told += ["", "worth measuring, the first one most:"]
    for place, one in enumerate(found.measurements, 1):
        told += [f"{place}. {one.name}", f"     {one.command}", f"   {one.reason}"]
    if found.earlier:
        told += ["", "known already:"]
    for known in found.earlier:
        told += [f"- {known.what}", f"     {known.command}"]
    return [*told, "", _NOTE]


def _seen(sight: Sight) -> Iterator[tuple[str, str]]:
    """What was seen, by name."""
    named = sight.allocator or "one that is not known"
    source = f", from {Path(sight.provider).name}" if sight.provider else ""
    brought = f"; inside: {', '.join(sight.inside)}" if sight.inside else ""
    yield "allocator", named + source + brought + (f"; {sight.obstacle}" if sight.obstacle else "")
    what = "its load took" if sight.before_kb else "it took"
    took = f"{what} {sight.wall_s:.2f} s" if sight.ended else f"looked at for {sight.wall_s:.2f} s"
    others = ""
    if sight.delay_s > _MUCH_DELAYED * sight.wall_s:
        others = f", and {sight.delay_s:.2f} s waiting for a CPU that others had"
    went_on = "" if sight.ended else "; it went on"
    yield "time", f"{took}, with {sight.cpus:.2f} CPUs busy{others}{went_on}"
    processes = f"{sight.processes} process{'es' * (sight.processes != 1)}"
    yield "threads", f"{sight.threads} at once, in {processes}"
    yield from _calls(sight)
    again = f", {sight.faults_again:,} of them of memory that it had before"
    yield "faults", f"{sight.faults:,} pages{again if sight.faults_again else ''}"
    yield "memory", _memory(sight)
    if sight.links:
        more = len(sight.links) - _LINKS_SHOWN
        yield "links", ", ".join(sight.links[:_LINKS_SHOWN]) + (f" and {more} more" * (more > 0))
    if sight.ports and not sight.before_kb:
        yield "listens", "on " + ", ".join(sight.ports)
    if sight.dropped:
        yield (
            "environment",
            f"dropped for {', '.join(sight.dropped)}: what that one allocates was not seen, and no "
            "allocator reaches it by variables",
        )


def _calls(sight: Sight) -> Iterator[tuple[str, str]]:
    calls = sight.calls
    if calls is None:
        yield "calls", f"not seen: {sight.unseen}"
        return
    part = ", in the part that was recorded" if calls.is_part else ""
    part = " under its load" if sight.before_kb else part
    yield (
        "calls",
        f"{calls.allocations:,} allocations{part}, {sight.allocations_per_cpu_s:,.0f} in a second "
        "of CPU time",
    )
    most = (f"{share:.0%} at most {at_most(calls.sizes, share):,} bytes" for share in (0.5, 0.9, 1))
    yield "sizes", ", ".join(most).replace("%", " %")
    others = f"{100 * calls.by_others:.1f} %"
    yield "frees", f"{calls.frees:,}, {others} by another thread than the block's"


def _memory(sight: Sight) -> str:
    peak, before, end = (mib(1024 * kb) for kb in (sight.peak_kb, sight.before_kb, sight.end_kb))
    told = f"{peak} at its peak, without files"
    if sight.calls is not None:
        told += f", blocks {mib(1024 * sight.calls.peak_kb)} at most"
    if sight.before_kb:
        return f"{told}; {before} before its load, {end} after it"
    return f"{told}; {end} when it was last seen"
