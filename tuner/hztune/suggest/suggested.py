"""From a program to what is suggested, and its words: a look, the ideas, and earlier profiles."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hztune import allocator, machine_diff
from hztune.arguments import within
from hztune.errors import UsageError
from hztune.machine import Machine
from hztune.measure.program import OPEN, Program
from hztune.profile import MachineId, Profile, hash_of_words
from hztune.progress import Quiet, Reporter, mib
from hztune.recordings import at_most
from hztune.suggest.ideas import Suggestion, best_of, command, ideas
from hztune.suggest.look import Sight, looked_at
from hztune.verify import history

_LEAST_LOOK_S, _MOST_LOOK_S = 0.2, 60.0
_MOST_OTHERS = 4
_MUCH_DELAYED = 0.05
_NOTE = "One look is no measurement: nothing was compared, and nothing is claimed."


@dataclass(frozen=True, slots=True)
class Earlier:
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
    known = tuple(earlier_profiles(program, Path(profiles)))
    sight = looked_at(program, seconds, reporter or Quiet())
    others = [
        each.name for each in allocator.available() if each.preload and each.name != sight.allocator
    ]
    machine = Machine.here()
    asked = program.quota.memory_kb if program.quota else None
    limits = [kb for kb in (asked, machine.memory_limit_kb) if kb]
    least = min([*limits, machine.memory_gib << 20])
    found = best_of(ideas(program, sight, others, least, is_limited=least in limits))
    return Suggested(program.label, sight, found, known)


def earlier_profiles(program: Program, folder: Path) -> Iterator[Earlier]:
    """The profiles of a folder that claim something about this machine, the newest first."""
    here, found = MachineId.of(Machine.here()), list[tuple[Path, Profile]]()
    with suppress(UsageError):  # there is no such folder, or no profile in it
        for each in history.profiles_in(folder):
            tuned = each.tuned
            if tuned and tuned.makes_a_claim and not machine_diff.of_machine(tuned.machine, here):
                found.append((each.path, tuned))
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
    checks = history.read(tuned)
    last = f"; measured again on {checks[-1].at[:10]}: {checks[-1].answer}" if checks else ""
    ratio = f", {tuned.claim.ratio:.3f}x" if tuned.claim.ratio is not None else ""
    settings = " ".join(f"{name}={value}" for name, value in tuned.params.items())
    return (
        f"a profile of this command of {tuned.created[:10]}: {tuned.claim.verdict}{ratio}, "
        f"{tuned.allocator.name} {settings or 'with its defaults'}{last}"
    )


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
    if found.earlier:
        told += ["", "known already:"]
    for known in found.earlier:
        told += [f"- {known.what}", f"     {known.command}"]
    return [*told, "", _NOTE]


def _seen(sight: Sight) -> Iterator[tuple[str, str]]:
    """What was seen, by name; a text that is empty is not printed."""
    calls, served = sight.calls, bool(sight.before_kb)
    named = sight.allocator or "one that is not known"
    source = f", from {Path(sight.provider).name}" if sight.provider else ""
    brought = f"; inside: {', '.join(sight.inside)}" if sight.inside else ""
    yield "allocator", named + source + brought + (f"; {sight.obstacle}" if sight.obstacle else "")
    what = "its load took" if served else "it took"
    took = f"{what} {sight.wall_s:.2f} s" if sight.ended else f"looked at for {sight.wall_s:.2f} s"
    others = f", and {sight.delay_s:.2f} s waiting for a CPU that others had"
    is_delayed = sight.delay_s > _MUCH_DELAYED * sight.wall_s
    busy = f"{took}, with {sight.cpus:.2f} CPUs busy{others if is_delayed else ''}"
    yield "time", busy + ("" if sight.ended else "; it went on")
    processes = f"{sight.processes} process{'es' * (sight.processes != 1)}"
    yield "threads", f"{sight.threads} at once, in {processes}"
    if calls is None:
        yield "calls", f"not seen: {sight.unseen}"
    else:
        part = ", in the part that was recorded" if calls.is_part else ""
        part = " under its load" if served else part
        per_s = f"{sight.allocations_per_cpu_s:,.0f} in a second of CPU time"
        yield "calls", f"{calls.allocations:,} allocations{part}, {per_s}"
        most = [f"{at_most(calls.sizes, share):,} bytes" for share in (0.5, 0.9, 1)]
        yield "sizes", "50 % at most {}, 90 % at most {}, 100 % at most {}".format(*most)
        share = f"{100 * calls.by_others:.1f} %"
        yield "frees", f"{calls.frees:,}, {share} by another thread than the block's"
    again = f", {sight.faults_again:,} of them of memory that it had before"
    yield "faults", f"{sight.faults:,} pages{again if sight.faults_again else ''}"
    peak, before, end = (mib(1024 * kb) for kb in (sight.peak_kb, sight.before_kb, sight.end_kb))
    blocks = f", blocks {mib(1024 * calls.peak_kb)} at most" if calls else ""
    last = f"{before} before its load, {end} after it" if served else f"{end} when it was last seen"
    yield "memory", f"{peak} at its peak, without files{blocks}; {last}"
    yield "listens", f"on {', '.join(sight.ports)}" if sight.ports and not served else ""
    lost = "what that one allocates was not seen, and no allocator reaches it by variables"
    names = ", ".join(sight.dropped)
    yield "environment", f"dropped for {names}: {lost}" if names else ""
