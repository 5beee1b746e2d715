"""`hztune verify`: measure claims again, or look whether a process runs under a profile."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from hztune import api
from hztune.arguments import parse_duration
from hztune.cli.options import (
    ABOUT_PROGRAMS,
    JSON,
    PROGRAM_OPTIONS,
    QUIET,
    SEED,
    ProgramCommand,
    argument,
    flag,
    option,
    pid_option,
    print_answer,
    print_lines,
    programs_of,
    refuse_without_program,
)
from hztune.cli.tune import tune_command
from hztune.errors import HztuneError, UnfitError, UsageError
from hztune.progress import reporter

if TYPE_CHECKING:
    from hztune.measure.program import Program
    from hztune.profile import Profile
    from hztune.verifying.claim import Verification
    from hztune.verifying.history import Kept, Recheck

_STATUS = {"does not hold": 4, "cannot tell": 1, "not measured": 1}  # the exit status of an answer

_EARLIER = 5  # lines of the history of each profile, the newest ones

_NOT_MEASURED = {"ratio": None, "ci_low": None, "ci_high": None, "pairs": 0}
_HELP = """Measure a profile's claim again, here and now.

Measures fresh pairs of control and profile on the profile's workload. If that was your own program,
its command is what you give after --, or else web.args beside web.json, which `hztune tune` writes;
if it was a trace, give its file with --trace. The claim holds if the pairs show at least half of
the lower end of the claimed gain. The parameters are measured together: one that was added to the
profile by hand and gains nothing is not noticed. With --pid nothing is measured: the answer is
whether a running process has the profile's allocator and parameters.

--all measures every profile in DIR and in its results directories. `hztune history` prints all
answers.

\b
exit status   0  the claim holds, or there is none (--pid: it is in effect; --all: all hold)
              4  it does not hold (--all: one of them)
              1  undecided: more time is needed, or nothing was measured (--pid: not in effect)
              5  --strict, and this is another machine or library
"""


_OPTIONS = [
    argument("profile_path", "[PROFILE]", required=False),
    option("--all DIR", "Measure every profile in this folder.", "folder"),
    flag("--due",
         "With --all: only those whose term is over, that did not hold, or whose machine, library "
         "or program has changed."),
    pid_option("Check this process."),
    option("--budget TIME",
           "Time for measuring each profile; with --all, what one leaves goes to the next.",
           default="30s"),
    SEED,
    option("--trace FILE",
           "The trace that the profile was made for.  [default: by name, in this folder]",
           "traces", multiple=True),
    flag("--strict", "Exit with status 5 on another machine."),
    JSON, QUIET,
]  # fmt: skip


@click.command("verify", cls=ProgramCommand, help=_HELP,
               params=[*_OPTIONS, *ABOUT_PROGRAMS])  # fmt: skip
def verify_command(
    profile_path: Path | None,
    folder: Path | None,
    due: bool,
    pid: int | None,
    budget: str,
    strict: bool,
    as_json: bool,
    words: tuple[str, ...],
    commands: tuple[str, ...],
    traces: tuple[Path, ...],
    seed: int,
    quiet: bool,
    **about: Any,
) -> int:
    budget_s = parse_duration(budget, "--budget")
    if folder is not None:
        if any((profile_path, pid, strict, traces, words, commands, about["server"])):
            raise UsageError(
                "--all DIR stands for PROFILE, --pid, --strict, --trace and a program: leave these "
                "out"
            )
        refuse_without_program(
            why="is of one program: write it into the .args beside the profile of that program"
        )
        return _verify_folder(folder, due, budget_s, as_json=as_json, seed=seed, quiet=quiet)
    targets = programs_of(words, commands, about)
    if profile_path is None or due:
        raise UsageError("give a PROFILE, or --all DIR, with which --due goes")
    tuned = api.load_profile(profile_path)
    if pid is not None:
        return _look(tuned, pid, targets, as_json)
    if not tuned.makes_a_claim:
        why = f"there is nothing to verify: the verdict of the profile is {tuned.claim.verdict}"
        print_answer(as_json, {"answer": "no claim", "why": why}, [why])
        return 0
    if not targets and tuned.workload.kind == "program":
        targets = programs_in(api.command_of(profile_path))
    differences = api.differences(tuned, programs=targets)
    if strict and differences:
        raise UnfitError(differences[0])
    if differences:
        print_lines((f"hztune: warning: {each}" for each in differences), err=True)
    with reporter(quiet=quiet) as display:
        finding = api.verify(
            tuned, program=targets, budget=budget_s, seed=seed, reporter=display, traces=traces
        )
    held: dict[str, object] = {
        "answer": finding.answer,
        "why": finding.why,
        "here": finding.measured,
        "claimed": {name: getattr(tuned.claim, name) for name in _NOT_MEASURED},
        "rss_ratio": finding.rss_ratio,
        "kept_ratio": finding.kept_ratio,
    }
    print_answer(as_json, held, _for_people(tuned, finding))
    return _STATUS.get(finding.answer, 0)


def _look(tuned: Profile, pid: int, targets: Sequence[Program], as_json: bool) -> int:
    if targets:
        raise UsageError("--pid and a program after -- exclude each other; give one of them")
    report = api.examine(tuned, pid)
    rows = [{**asdict(row), "evidence": row.evidence} for row in report.rows]
    held = {**asdict(report), "in_effect": report.in_effect, "rows": rows}
    width = max((len(row.name) for row in report.rows), default=0)
    found = [(row, "-" if row.found is None else row.found) for row in report.rows]
    print_answer(as_json, held, [
        f"process {report.pid} ({report.program}): malloc comes from {report.provider}",
        *(f"  {row.name:{width}}  {value}  ({row.evidence})" for row, value in found),
        *(f"note: {remark}" for remark in report.remarks),
        *(f"not in effect: {fault}" for fault in report.faults),
        f"the profile is {'' if report.in_effect else 'not '}in effect",
    ])  # fmt: skip
    return 0 if report.in_effect else 1


def _measured_text(ratio: float, low: float, high: float, pairs: int) -> str:
    return f"{ratio:.3f}x, 95 % interval [{low:.3f}, {high:.3f}], {pairs} pairs"


def _for_people(tuned: Profile, finding: Verification) -> Iterator[str]:
    claim, limits = tuned.claim, dict(tuned.objective.limits)
    yield f"the claim {finding.answer}: {finding.why}".replace("claim cannot", "claim: cannot")
    if finding.interval is not None:
        yield f"  here:    {_measured_text(*finding.interval.ratio, finding.interval.pairs)}"
    assert claim.ratio and claim.ci_low and claim.ci_high  # a claim has them
    yield f"  claimed: {_measured_text(claim.ratio, claim.ci_low, claim.ci_high, claim.pairs)}"
    for name, ratio, key in (
        ("peak", finding.rss_ratio, "max_rss"),
        ("kept", finding.kept_ratio, "max_kept"),
    ):
        if ratio is not None:
            limit = f", limit {limits[key]}" if limits.get(key) else ""
            if name == "peak" and claim.memory and claim.memory.of == "rss":
                limit += f", claimed [{claim.memory.ci_low:.3f}, {claim.memory.ci_high:.3f}]"
            yield f"  {name} memory: {ratio:.2f}x of the control's{limit}"


# ---- every profile of a folder -------------------------------------------------------------------


class FolderAnswer(NamedTuple):
    path: Path
    # that of the verification; "not measured" where it cannot be, "no claim" or "not due" where it
    # need not be
    answer: str
    why: str
    finding: Verification | None = None
    differs: tuple[str, ...] = ()  # what is not as it was where the profile was proved
    earlier: tuple[str, ...] = ()  # what the newest verifications before this one found

    def lines(self) -> list[str]:
        """For people; a name that a terminal would obey stands in quotes."""
        name = str(self.path)
        told = [f"{name if name.isprintable() else repr(name)}: {self.answer} ({self.why})"]
        if self.finding is not None and self.finding.interval is not None:
            interval = self.finding.interval
            told.append(f"  {_measured_text(*interval.ratio, interval.pairs)}")
        return told + [f"  {each}" for each in (*self.earlier, *self.differs)]


def _verify_folder(
    folder: Path, only_due: bool, budget_s: float, *, as_json: bool, **how: Any
) -> int:
    """What one profile leaves of its budget goes to the next, which may need more than its own."""
    found, spare_s = [], 0.0
    for kept in api.profiles_in(folder):
        began_s = time.monotonic()
        answer = _answer(kept, only_due, budget_s + spare_s, **how)
        found.append(answer)
        if answer.finding is not None:
            spare_s = max(0.0, spare_s + budget_s - (time.monotonic() - began_s))
        if not as_json:
            print_lines(answer.lines())
    records = [
        {
            "profile": str(each.path),
            "answer": each.answer,
            "why": each.why,
            "differs": list(each.differs),
            "here": each.finding.measured if each.finding is not None else _NOT_MEASURED,
        }
        for each in found
    ]
    counts = Counter(answer.answer for answer in found)
    told = ", ".join(f"{count} {answer}" for answer, count in counts.items())
    count = f"{len(found)} profile{'' if len(found) == 1 else 's'}"
    print_answer(as_json, records, [f"{count}: {told}"])
    return max((_STATUS.get(answer.answer, 0) for answer in found), default=0)


def _answer(kept: Kept, only_due: bool, budget_s: float, *, seed: int, quiet: bool) -> FolderAnswer:
    tuned = kept.tuned
    if tuned is None or kept.fault:
        return FolderAnswer(kept.path, "not measured", kept.fault)
    if not tuned.makes_a_claim:
        return FolderAnswer(kept.path, "no claim", f"its verdict is {tuned.claim.verdict}")
    try:
        programs = programs_in(kept.words)
        earlier: list[Recheck] = []
        with suppress(HztuneError):  # then the check itself says that there is no history
            earlier, _ = api.history(tuned)
        last = earlier[-1] if earlier else None
        why = api.due(tuned, last, api.surroundings(tuned, programs))
        if only_due and not why:
            said = "its term has not passed, and nothing is known to differ"
            return FolderAnswer(kept.path, "not due", said)
        differs = tuple(api.differences(tuned, programs=programs))
        with reporter(quiet=quiet) as display:
            display.say(f"{kept.path}: {why or 'measured again, as was asked'}")
            finding = api.verify(
                tuned, program=programs, budget=budget_s, seed=seed, reporter=display,
                traces=kept.traces,
            )  # fmt: skip
    except HztuneError as error:
        return FolderAnswer(kept.path, "not measured", str(error))
    told = tuple(f"before: {each.words}" for each in earlier[-_EARLIER:])
    return FolderAnswer(kept.path, finding.answer, finding.why, finding, differs, told)


def programs_in(words: tuple[str, ...]) -> tuple[Program, ...]:
    """The programs that the words of an `.args` name, as on the command line of `tune`."""
    try:
        with tune_command.make_context("hztune tune", list(words)) as ctx:
            about = {name: ctx.params[name] for name in PROGRAM_OPTIONS}
            return programs_of(ctx.params["words"], ctx.params["commands"], about)
    except click.ClickException as error:
        raise UsageError(f"its .args: {error.format_message()}") from None
