"""`hztune verify`: measure a profile's claim again, or look whether a process runs under it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hztune import api
from hztune.arguments import parse_duration
from hztune.cli.lines import print_lines
from hztune.cli.program import (
    Place,
    ProgramCommand,
    program_options,
    programs_of,
    refuse_without_program,
)
from hztune.cli.verify_all import measured_text, programs_in, verify_folder, worst_status
from hztune.errors import UnfitError, UsageError
from hztune.progress import reporter

if TYPE_CHECKING:
    from hztune.measure.program import Program
    from hztune.profile import Profile
    from hztune.verify.claim import Verification
    from hztune.verify.running import Report

_NOTHING = "there is nothing to verify: the profile claims no gain (its verdict is {})"
_STATUS = {"holds": 0, "does not hold": 4, "cannot tell": 1}
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
exit status   0  the claim holds (--pid: the profile is in effect; --all: every claim holds)
              4  it does not hold (--all: one of them)
              1  undecided: more time is needed, or nothing was measured (--pid: not in effect)
              5  --strict, and this is another machine or library
"""


@click.command("verify", cls=ProgramCommand, help=_HELP)
@click.argument("profile_path", metavar="[PROFILE]", required=False, type=Place())
@click.option(
    "--all",
    "folder",
    type=Place(),
    metavar="DIR",
    help="Measure every profile in this folder.",
)
@click.option(
    "--due",
    is_flag=True,
    help="With --all: only those whose term is over, that did not hold, or whose machine, library "
    "or program has changed.",
)
@click.option("--pid", type=click.IntRange(min=1), metavar="N", help="Check this process.")
@click.option(
    "--budget",
    default="30s",
    show_default=True,
    metavar="TIME",
    help="Time for measuring each profile; with --all, what one leaves goes to the next.",
)
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True,
              help="Seed of all random choices.")  # fmt: skip
@click.option(
    "--trace",
    "traces",
    multiple=True,
    metavar="FILE",
    type=Place(),
    help="The trace that the profile was made for.  [default: by name, in this folder]",
)
@click.option("--strict", is_flag=True, help="Exit with status 5 on another machine.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
@program_options
def verify_command(
    profile_path: Path | None,
    folder: Path | None,
    due: bool,
    pid: int | None,
    budget: str,
    seed: int,
    traces: tuple[Path, ...],
    strict: bool,
    as_json: bool,
    quiet: bool,
    words: tuple[str, ...],
    commands: tuple[str, ...],
    **about: Any,
) -> int:
    """`hztune verify`."""
    budget_s = parse_duration(budget, "--budget")
    others = (profile_path, pid, strict, traces, words, commands, about["server"])
    if folder is not None and any(others):
        raise UsageError(
            "--all DIR stands for PROFILE, --pid, --strict, --trace and a program: leave these out"
        )
    if folder is not None:
        refuse_without_program(
            why="is of one program: write it into the .args beside the profile of that program"
        )
        answers = verify_folder(
            folder, only_due=due, budget_s=budget_s, seed=seed, quiet=quiet, as_json=as_json
        )
        if as_json:
            click.echo(json.dumps([answer.record() for answer in answers], indent=2))
        return worst_status(answers)
    targets = programs_of(words, commands, about)
    if profile_path is None or due:
        raise UsageError("give a PROFILE, or --all DIR, with which --due goes")
    tuned = api.load_profile(profile_path)
    if pid is not None:
        if targets:
            raise UsageError("--pid and a program after -- exclude each other; give one of them")
        return _look(tuned, pid, as_json)
    if not tuned.makes_a_claim:
        click.echo(_NOTHING.format(tuned.claim.verdict))
        return 0
    if not targets and tuned.workload.kind == "program":
        targets = programs_in(api.command_of(profile_path))
    _warn(tuned, targets, strict)
    with reporter(quiet=quiet) as display:
        finding = api.verify(
            tuned,
            programs=targets,
            budget_s=budget_s,
            seed=seed,
            reporter=display,
            traces=traces,
        )
    held = _as_json(tuned, finding)
    if as_json:
        click.echo(json.dumps(held, indent=2))
    else:
        print_lines(_for_people(tuned, finding))
    return _STATUS[finding.answer]


def _look(tuned: Profile, pid: int, as_json: bool) -> int:
    """Holds a process against the profile."""
    report = api.examine(tuned, pid)
    if as_json:
        rows = [{**asdict(row), "evidence": row.evidence} for row in report.rows]
        held = {**asdict(report), "in_effect": report.in_effect, "rows": rows}
        click.echo(json.dumps(held, indent=2))
    else:
        print_lines(_process_lines(report))
    return 0 if report.in_effect else 1


def _process_lines(report: Report) -> list[str]:
    """A report for people; the answer stands last."""
    width = max((len(row.name) for row in report.rows), default=0)
    lines = [f"process {report.pid} ({report.program}): malloc comes from {report.provider}"]
    lines += [
        f"  {row.name:{width}}  {'-' if row.found is None else row.found}  ({row.evidence})"
        for row in report.rows
    ]
    lines += [f"note: {remark}" for remark in report.remarks]
    lines += [f"not in effect: {fault}" for fault in report.faults]
    return [*lines, f"the profile is {'' if report.in_effect else 'not '}in effect"]


def _warn(tuned: Profile, targets: Sequence[Program], strict: bool) -> None:
    """Says what is not as it was when the claim was made; refuses it under --strict."""
    found = api.differences(tuned, programs=targets)
    if strict and found:
        raise UnfitError(found[0])
    for difference in found:
        print_lines([f"hztune: warning: {difference}"], err=True)


def _for_people(tuned: Profile, finding: Verification) -> list[str]:
    """The answer, what was found and what was claimed."""
    claim = tuned.claim
    lines = [f"the claim {finding.answer}: {finding.why}".replace("claim cannot", "claim: cannot")]
    if finding.interval is not None:
        here = measured_text(*finding.interval.ratio, finding.interval.pairs)
        lines.append(f"  here:    {here}")
    assert claim.ratio and claim.ci_low and claim.ci_high  # a claim has them
    claimed = measured_text(claim.ratio, claim.ci_low, claim.ci_high, claim.pairs)
    lines.append(f"  claimed: {claimed}")
    if finding.rss_ratio is not None:
        text = tuned.objective.limits.get("max_rss")
        limit = f", limit {text}" if text else ""
        memory = claim.memory if claim.memory and claim.memory.of == "rss" else None
        promised = f", claimed [{memory.ci_low:.3f}, {memory.ci_high:.3f}]" if memory else ""
        lines.append(f"  peak memory: {finding.rss_ratio:.2f}x of the control's{limit}{promised}")
    if finding.kept_ratio is not None:
        text = tuned.objective.limits.get("max_kept")
        limit = f", limit {text}" if text else ""
        lines.append(f"  kept memory: {finding.kept_ratio:.2f}x of the control's{limit}")
    return lines


def _as_json(tuned: Profile, finding: Verification) -> dict[str, object]:
    """The answer for machines."""
    claim = tuned.claim
    return {
        "answer": finding.answer,
        "why": finding.why,
        "here": finding.measured,
        "claimed": {
            "ratio": claim.ratio,
            "ci_low": claim.ci_low,
            "ci_high": claim.ci_high,
            "pairs": claim.pairs,
        },
        "rss_ratio": finding.rss_ratio,
        "kept_ratio": finding.kept_ratio,
    }
