"""What is known already: profiles of this machine, and what earlier studies on it learned."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from hztune import machine_diff
from hztune.errors import UsageError
from hztune.machine import Machine
from hztune.measure.program import Program
from hztune.prior import state
from hztune.profile import MachineId, Profile, hash_of_words
from hztune.suggest.command import command
from hztune.verify import collection, history
from hztune.verify.collection import Kept

_MOST_OTHERS = 4
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Earlier:
    """Something that was found before.

    Attributes:
        what: What it is, in words.
        command: The line that puts it to use; "": there is none.
    """

    what: str
    command: str = ""


def earlier(program: Program, folder: Path) -> tuple[Earlier, ...]:
    """What was found before, that of this program first.

    Args:
        program: What was looked at.
        folder: Where profiles are; one that is missing or cannot be read holds none.
    """
    machine = Machine.here()
    kept = _claims(folder, MachineId.of(machine))
    own = [each for each in kept if _is_of(each[1], program)]
    others = [path for path, tuned in kept if not _is_of(tuned, program) and _can_be_tried(tuned)]
    found = [_own(path, tuned, program) for path, tuned in own]
    if others:
        named = others[:_MOST_OTHERS]
        what = f"{len(others)} profile{'s' * (len(others) > 1)} of other programs on this machine"
        words = ("compare", "none", *map(str, named))
        found.append(Earlier(what, command(program, words, rest=False)))
    return (*found, *_lessons(machine.fingerprint))


def _claims(folder: Path, here: MachineId) -> list[tuple[Path, Profile]]:
    """The profiles of a folder that claim something about this machine, the newest first."""
    kept: list[Kept] = []
    with suppress(UsageError):  # there is no such folder, or no profile in it
        kept = collection.profiles_in(folder)
    found = [
        (each.path, each.tuned)
        for each in kept
        if each.tuned is not None
        and each.tuned.makes_a_claim
        and not machine_diff.of_machine(each.tuned.machine, here)
    ]
    return sorted(found, key=lambda each: each[1].created, reverse=True)


def _is_of(tuned: Profile, program: Program) -> bool:
    """Whether a profile was made for this command."""
    return hash_of_words(program.argv) in {each.words_sha256 for each in tuned.workloads}


def _can_be_tried(tuned: Profile) -> bool:
    return not tuned.adapter.is_inside


def _own(path: Path, tuned: Profile, program: Program) -> Earlier:
    """A profile of this very program."""
    checks = history.rechecks_of(tuned, history.read())
    last = f"; measured again on {checks[-1].at[:10]}: {checks[-1].answer}" if checks else ""
    claim = tuned.claim
    ratio = f", {claim.ratio:.3f}x" if claim.ratio is not None else ""
    what = (
        f"a profile of this command of {tuned.created[:10]}: {claim.verdict}{ratio}, "
        f"{tuned.allocator.name} {_settings(tuned)}{last}"
    )
    return Earlier(what, command(program, ("verify", str(path))))


def _settings(tuned: Profile) -> str:
    sets = " ".join(f"{name}={value}" for name, value in tuned.params)
    return sets or "with its defaults"


def _lessons(machine: str) -> list[Earlier]:
    """What mattered in earlier studies of whatever programs on this machine."""
    now = datetime.now(timezone.utc)
    lessons = [one for one in state.read(now) if one.subject.machine == machine]
    if not lessons:
        return []
    gains = Counter(
        f"{learned.allocator} {name}={value}"
        for lesson in lessons
        for learned in lesson.learned
        for gain in learned.gains
        for name, value in gain.levels
    )
    named = ", ".join(f"{text} in {count}" for text, count in gains.most_common(_MOST_NAMED))
    studies = f"{len(lessons)} earlier stud{'y' if len(lessons) == 1 else 'ies'} on this machine"
    said = f"what mattered is {named}" if named else "no parameter was proved to matter"
    return [Earlier(f"{studies}: {said}; a new study begins with that")]
