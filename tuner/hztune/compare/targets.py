"""What a row of a comparison is measured on: a built-in workload, or a program of the user's."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from hztune import allocator
from hztune.allocator import loaded_program
from hztune.compare.contenders import Contender
from hztune.errors import UsageError
from hztune.files import sha256_of
from hztune.measure import insides
from hztune.measure.program import Program
from hztune.profile import hash_of_words
from hztune.workload import WorkloadSpec

Amount = Literal["ops_per_s", "seconds", "higher", "lower"]
"""What a contender's figure is: operations a second, seconds of a run, or the number of the user's
metric, of which more or less is better."""

AMOUNTS: tuple[Amount, ...] = ("ops_per_s", "seconds", "higher", "lower")

_UNCHANGED = "none"
_GLIBC = "glibc"


@dataclass(frozen=True, slots=True)
class ProgramSpec:
    """A program as a record knows it; its words may hold secrets, so that only hashes are kept.

    Attributes:
        label: How it is called.
        amount: What is measured of it.
        words_sha256: Of its command.
        around_sha256: Of the commands around it, of its metric, of its rests and its container,
            and of its load if it is a server.
        sha256: Of the file that is run; "" where each contender brings its own.
    """

    label: str
    amount: Amount
    words_sha256: str
    around_sha256: str
    sha256: str

    @classmethod
    def of(cls, program: Program) -> ProgramSpec:
        """Returns what a record says of a program."""
        amount: Amount = program.better if program.rate else "seconds"
        around = [program.prepare, program.cleanup, program.check, program.metric]
        around += [repr(each) for each in (program.rest, program.quota) if each is not None]
        around += [f"{program.input.size} bytes on stdin"] if program.input else []
        served = asdict(program.service) if program.service else None
        found = shutil.which(program.argv[0])
        return cls(
            label=program.label,
            amount=amount,
            words_sha256=hash_of_words(program.argv),
            around_sha256=hashlib.sha256(json.dumps([around, served]).encode()).hexdigest(),
            sha256=sha256_of(Path(found)) if found else "",
        )


ComparedRow = WorkloadSpec | ProgramSpec
"""What a row is of."""


def amount_of(row: ComparedRow) -> Amount:
    """What the figures of a row are."""
    return row.amount if isinstance(row, ProgramSpec) else "ops_per_s"


def amount_text(rate: float, amount: Amount) -> str:
    """A contender's figure for a reader, with its unit where that is known."""
    if amount == "ops_per_s":
        return f"{rate / 1e6:.3f} Mops/s"
    if amount == "higher":
        return f"{rate:.5g}"
    figure = 1.0 / rate if rate else 0.0
    return f"{figure:.5g}" if amount == "lower" else seconds_text(figure)


def seconds_text(seconds: float) -> str:
    """A time in its unit: "1.204 s", "17.30 ms"."""
    return f"{seconds:.3f} s" if seconds >= 1.0 else f"{1e3 * seconds:.2f} ms"


def require(programs: Sequence[Program], contenders: Sequence[Contender]) -> tuple[str, ...]:
    """Sees to it that every contender can be measured on every program.

    Returns:
        What the user should know of the programs, one sentence each.

    Raises:
        UsageError: Two programs have one name; a contender is a command and the program leaves no
            place for it, or the reverse; there is no such program, or no allocator can be put under
            it.
    """
    labels = [program.label for program in programs]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise UsageError(f"two programs are called {twice!r}; give each a name with --command")
    remarks: list[str] = []
    for program in programs:
        if program.is_open:
            for contender in contenders:
                loaded_program.inspect(contender.words[0])
            continue
        found = loaded_program.inspect(program.argv[0])
        needed = any(
            each.arm.allocator != _UNCHANGED and each.inside is None for each in contenders
        )
        if needed and (obstacle := found.obstacle()) is not None:
            raise UsageError(obstacle)
        remarks += found.remarks()
    return tuple(dict.fromkeys(remarks))


def refuse_glibc(programs: Sequence[Program], contenders: Sequence[Contender]) -> None:
    """Sees to it that glibc is not put under a program that is linked with another malloc.

    Raises:
        UsageError: It is, by name or by a profile.
    """
    asked = [each.name for each in contenders if each.arm.allocator == _GLIBC]
    for program in programs if asked else ():
        if (why := glibc_obstacle(program)) is not None:
            raise UsageError(
                f"{asked[0]} cannot be measured under {program.label}: {why}; leave it out, or "
                f"preload the C library: GLIBC={allocator.get(_GLIBC).installed().path}"
            )


def glibc_obstacle(program: Program) -> str | None:
    """Returns why glibc cannot be measured under a program; None: it can."""
    provider = insides.provider_of(program, insides.of_file(program))
    if provider is None:
        return None
    return f"{insides.whose_malloc(provider)}, and nothing is preloaded for glibc"
