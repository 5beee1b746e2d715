"""`hztune verify --all`: every profile of a folder measured again, and what came of each."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hztune import api
from hztune.cli.lines import print_lines
from hztune.cli.program import PROGRAM_OPTIONS, programs_of
from hztune.cli.tune import tune_command
from hztune.errors import HztuneError, UsageError
from hztune.progress import reporter

if TYPE_CHECKING:
    from hztune.measure.program import Program
    from hztune.verify.claim import Verification
    from hztune.verify.collection import Kept

_STATUS = {"does not hold": 4, "cannot tell": 1, "not measured": 1}
"""The exit status that an answer asks for; the greatest wins, and 0 is left where all hold."""


_NOT_MEASURED = {"ratio": None, "ci_low": None, "ci_high": None, "pairs": 0}


@dataclass(frozen=True, slots=True)
class FolderAnswer:
    """What came of one profile of a folder.

    Attributes:
        path: Its file.
        answer: Of the verification; "not measured" where it cannot be, "not due" where it need not.
        why: The reason, in one sentence.
        differs: What is not as it was where the profile was proved.
        finding: What was measured; None: nothing was.
    """

    path: Path
    answer: str
    why: str
    differs: tuple[str, ...] = ()
    finding: Verification | None = None

    def lines(self) -> list[str]:
        """For people; a name that a terminal would obey stands in quotes."""
        name = str(self.path)
        name = name if name.isprintable() else repr(name)
        told = [f"{name}: {self.answer} ({self.why})"]
        if self.finding is not None and self.finding.interval is not None:
            interval = self.finding.interval
            told.append(f"  {measured_text(*interval.ratio, interval.pairs)}")
        return told + [f"  {difference}" for difference in self.differs]

    def record(self) -> dict[str, object]:
        """For machines."""
        return {
            "profile": str(self.path),
            "answer": self.answer,
            "why": self.why,
            "differs": list(self.differs),
            "here": self.finding.measured if self.finding is not None else _NOT_MEASURED,
        }


def measured_text(ratio: float, low: float, high: float, pairs: int) -> str:
    """A ratio with its interval and its pairs, for people."""
    return f"{ratio:.3f}x, 95 % interval [{low:.3f}, {high:.3f}], {pairs} pairs"


def verify_folder(
    folder: Path, *, only_due: bool, budget_s: float, seed: int, quiet: bool, as_json: bool
) -> list[FolderAnswer]:
    """Measures the profiles of a folder; each answer is printed, and in the history, at once.

    What one leaves of its budget goes to the next, which may need more than its own.

    Raises:
        UsageError: The folder cannot be read, or holds no profile.
    """
    found, spare_s = [], 0.0
    for kept in api.profiles_in(folder):
        began_s = time.monotonic()
        answer = _answer(kept, only_due, budget_s + spare_s, seed, quiet)
        found.append(answer)
        if answer.finding is not None:
            spare_s = max(0.0, spare_s + budget_s - (time.monotonic() - began_s))
        if not as_json:
            print_lines(answer.lines())
    if not as_json:
        counts = Counter(answer.answer for answer in found)
        told = ", ".join(f"{count} {answer}" for answer, count in counts.items())
        click.echo(f"{len(found)} profile{'' if len(found) == 1 else 's'}: {told}")
    return found


def worst_status(answers: Sequence[FolderAnswer]) -> int:
    """The exit status that they ask for together."""
    return max((_STATUS.get(answer.answer, 0) for answer in answers), default=0)


def _answer(kept: Kept, only_due: bool, budget_s: float, seed: int, quiet: bool) -> FolderAnswer:
    tuned = kept.tuned
    if tuned is None or kept.fault:
        return FolderAnswer(kept.path, "not measured", kept.fault)
    if not tuned.makes_a_claim:
        return FolderAnswer(kept.path, "no claim", f"its verdict is {tuned.claim.verdict}")
    try:
        programs = programs_in(kept.words)
        why = api.due(tuned, programs=programs)
        if only_due and not why:
            return FolderAnswer(
                kept.path, "not due", "its term has not passed, and nothing is known to differ"
            )
        differs = tuple(api.differences(tuned, programs=programs))
        with reporter(quiet=quiet) as display:
            display.say(f"{kept.path}: {why or 'measured again, as was asked'}")
            finding = api.verify(
                tuned,
                programs=programs,
                budget_s=budget_s,
                seed=seed,
                reporter=display,
                traces=kept.traces,
            )
    except HztuneError as error:
        return FolderAnswer(kept.path, "not measured", str(error))
    return FolderAnswer(kept.path, finding.answer, finding.why, differs, finding)


def programs_in(words: tuple[str, ...]) -> tuple[Program, ...]:
    """The programs that the words of an `.args` name, as on the command line of `tune`.

    Raises:
        UsageError: The words are not legal there.
    """
    try:
        with tune_command.make_context("hztune tune", list(words)) as ctx:
            about = {name: ctx.params[name] for name in PROGRAM_OPTIONS}
            return programs_of(ctx.params["words"], ctx.params["commands"], about)
    except click.ClickException as error:
        raise UsageError(f"its .args: {error.format_message()}") from None
