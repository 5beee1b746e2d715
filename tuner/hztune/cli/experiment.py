"""`hztune experiment`: measure the questions of experiments/ again, and report what was found."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click

from hztune import api
from hztune.arguments import parse_duration
from hztune.cli import completion
from hztune.cli.program import Place
from hztune.errors import HztuneError, StoppedByUser, UsageError
from hztune.progress import Plain, Quiet

EXPERIMENTS = Path("experiments")
PEERS_VARIABLE = "HZTUNE_PEERS"
"""Further libraries for `run`: NAME=/path/to/lib.so, several with commas between."""


@click.group("experiment", no_args_is_help=False)
def experiment_command() -> None:
    """Repeat the recorded experiments, or report their findings."""


@experiment_command.command("run")
@click.option(
    "--with",
    "libraries",
    multiple=True,
    metavar="NAME=/path/lib.so",
    help=f"A further contender; ${PEERS_VARIABLE} may name some, too.",
)
@click.option(
    "--budget",
    default="",
    metavar="TIME",
    help="Time for all together.  [default: as the experiments say]",
)
@click.option("--resume", is_flag=True, help="Measure only the rows that are missing.")
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
@click.argument(
    "words", metavar="DIR...|all", nargs=-1, required=True, shell_complete=completion.offer_files
)
def experiment_run(
    words: tuple[str, ...], libraries: tuple[str, ...], budget: str, resume: bool, quiet: bool
) -> int:
    """Measure experiments one after the other; `all`: every one in ./experiments.

    Each row is kept as soon as it is measured. Ctrl-C prints the rows so far, and --resume goes on
    with them; results.json is replaced when the last row is there.
    """
    budget_s = parse_duration(budget, "--budget") if budget else None
    from hztune.lab import definition
    from hztune.lab.run import further, require, run

    named = [each for each in os.environ.get(PEERS_VARIABLE, "").split(",") if each]
    extra = further([*named, *libraries])
    found = [definition.load(folder) for folder in definition.find(words, EXPERIMENTS)]
    reporter = Quiet() if quiet else Plain(sys.stderr)
    for experiment in [each for each in found if each.programs]:
        told = f"{experiment.name} has programs as rows; {experiment.folder / 'run.py'} measures it"
        if words != ("all",):
            raise UsageError(told)
        reporter.say(f"left out: {told}")
        found.remove(experiment)
    for experiment in found:
        require(experiment)
    whole_s = sum(each.budget_s for each in found)
    for experiment in found:
        reporter.say(f"{experiment.name}: {experiment.question}")
        part_s = experiment.budget_s * (budget_s / whole_s if budget_s else 1.0)
        ran = run(experiment, reporter, extra=extra, budget_s=part_s, resume=resume)
        if ran.record.rows:
            click.echo(api.comparison_text(ran.record))
        if ran.stopped:
            raise StoppedByUser(
                f"interrupted; {len(ran.record.rows)} of {ran.rows} rows are in {ran.path}: "
                "go on with --resume"
            )
        reporter.say(f"results: {ran.path}")
    return 0


@experiment_command.command("report")
@click.option("--rows", is_flag=True, help="Print every row, too.")
@click.option("--markdown", is_flag=True, help="Print tables for a Markdown document.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--plot",
    type=Place(),
    metavar="FILE.svg",
    help="Draw the first arm beside the others, too; of one DIR.",
)
@click.argument("words", metavar="[DIR]...", nargs=-1, shell_complete=completion.offer_files)
def experiment_report(
    words: tuple[str, ...], rows: bool, markdown: bool, as_json: bool, plot: Path | None
) -> int:
    """Print question, finding, figures and date of experiments (all of ./experiments by default).

    Every estimate is made anew from the samples in results.json; one that differs is an error.
    """
    if as_json and markdown:
        raise UsageError("--json and --markdown exclude each other; give one of them")
    if plot is not None and len(words) != 1:
        raise UsageError("--plot draws one experiment; name its directory")
    from hztune.lab import definition, findings, text

    folders = definition.find(words, EXPERIMENTS)
    found = [findings.examine(definition.load(folder)) for folder in folders]
    if as_json:
        click.echo(json.dumps([text.as_json(each) for each in found], indent=2))
    elif markdown:
        click.echo(text.markdown_of(found, rows=rows))
    else:
        click.echo("\n\n".join(text.for_people(each, rows=rows) for each in found))
    wrong = [each.name for each in found if each.problems]
    if wrong:
        raise HztuneError(
            f"{len(wrong)} of {len(found)} experiments are not what they claim: {', '.join(wrong)}"
        )
    if plot is not None:
        text.draw_answer(found[0], plot)
    return 0
