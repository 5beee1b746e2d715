"""What is known already: profiles of this machine."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hztune import machine_diff
from hztune.errors import UsageError
from hztune.machine import Machine
from hztune.measure.program import Program
from hztune.profile import MachineId, Profile, hash_of_words
from hztune.suggest.command import command
from hztune.verify import history

_MOST_OTHERS = 4


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
    kept = _claims(folder, MachineId.of(Machine.here()))
    own = [each for each in kept if _is_of(each[1], program)]
    others = [path for path, tuned in kept if not _is_of(tuned, program) and _can_be_tried(tuned)]
    found = [_own(path, tuned, program) for path, tuned in own]
    if others:
        named = others[:_MOST_OTHERS]
        what = f"{len(others)} profile{'s' * (len(others) > 1)} of other programs on this machine"
        words = ("compare", "none", *map(str, named))
        found.append(Earlier(what, command(program, words, rest=False)))
    return tuple(found)


def _claims(folder: Path, here: MachineId) -> list[tuple[Path, Profile]]:
    """The profiles of a folder that claim something about this machine, the newest first."""
    kept: list[history.Kept] = []
    with suppress(UsageError):  # there is no such folder, or no profile in it
        kept = history.profiles_in(folder)
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
    checks = history.read(tuned)
    last = f"; measured again on {checks[-1].at[:10]}: {checks[-1].answer}" if checks else ""
    claim = tuned.claim
    ratio = f", {claim.ratio:.3f}x" if claim.ratio is not None else ""
    what = (
        f"a profile of this command of {tuned.created[:10]}: {claim.verdict}{ratio}, "
        f"{tuned.allocator.name} {_settings(tuned)}{last}"
    )
    return Earlier(what, command(program, ("verify", str(path))))


def _settings(tuned: Profile) -> str:
    sets = " ".join(f"{name}={value}" for name, value in tuned.params.items())
    return sets or "with its defaults"
