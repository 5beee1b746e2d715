"""`hztune tune`: from the options of a command line to a request, and from a result to its print.

Values of options are judged in one place, the request (hztune.tune); here only their form is read.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from hztune import api
from hztune.arguments import parse_duration
from hztune.cli import completion
from hztune.cli.doctor import require_fit
from hztune.cli.program import (
    PROGRAM_OPTIONS,
    Place,
    ProgramCommand,
    given_words,
    gone_on_with,
    private_option,
    program_options,
    programs_of,
    refuse_without_program,
)
from hztune.errors import NoGainError, UsageError
from hztune.progress import reporter

if TYPE_CHECKING:
    from hztune.profile import Verdict
    from hztune.result import Result
    from hztune.tune.request import TuneRequest
    from hztune.workload import Goal

_OF_WORKLOADS = frozenset({"idle_s", "rounds", "cpus", "memory"})
"""Options about programs that workloads have, too."""

_EXIT_STATUS: dict[Verdict, int] = {
    "improved": 0,
    "within_limit": 0,
    "less_memory": 0,
    "no_gain": 0,
    "infeasible": 3,
    "not_enough_data": 6,
    "interrupted": 130,
}


_UNTOLD: tuple[Verdict, ...] = ("not_enough_data", "interrupted")
"""Verdicts of studies that have no page."""


@click.command("tune", cls=ProgramCommand)
@click.option(
    "--workload",
    "-w",
    metavar="NAME[@SETTING],...",
    shell_complete=completion.offer_names(completion.workloads),
    help="What to tune for; see `hztune list workloads`. trace:FILE replays a recorded trace. "
    "Several: one profile for all.",
)
@click.option(
    "--param",
    "-p",
    "params",
    multiple=True,
    metavar="KEY=VALUE",
    help="A parameter of the workload.",
)
@click.option(
    "--threads", "-t", type=int, metavar="N", help="Threads of the workload.  [default: CPUs here]"
)
@click.option(
    "--objective",
    type=click.Choice(["throughput", "p99", "kept"]),
    default="throughput",
    show_default=True,
    help="What to improve. p99 (workloads only): the time that 99 of 100 calls do not exceed; "
    "kept: the memory that is resident --idle-s seconds after the load.",
)
@click.option(
    "--allocator",
    metavar="NAME[,NAME]...|any|inside",
    shell_complete=completion.offer_names(completion.allocators),
    help="The allocators to tune; any: all that are installed; inside: those linked into your "
    "program.  [default: any for a program of your own, else hz]",
)
@click.option(
    "--space", default="", metavar="NAME|FILE", help="The search space.  [default: the allocator's]"
)
@click.option(
    "--allow-keeping",
    is_flag=True,
    help="Also try settings with which freed memory is never returned to the system.",
)
@click.option(
    "--budget",
    default="3m",
    show_default=True,
    metavar="TIME",
    help="Time for the whole study: 90s, 5m, 1h.",
)
@click.option(
    "--trials",
    type=int,
    metavar="N",
    help="Try at most N configurations.  [default: as many as there is time for]",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="Seed of all random choices.",
)
@click.option(
    "--max-rss",
    default="",
    metavar="LIMIT",
    help="Limit of peak memory: 1.10x of the default's, or 512M.",
)
@click.option(
    "--max-kept",
    default="",
    metavar="LIMIT",
    help="Limit of kept memory (see --objective): 0.7x of the default's, or 100M.",
)
@click.option(
    "--max-loss",
    default="5%",
    show_default=True,
    metavar="PERCENT",
    help="Greatest loss of each of several workloads or commands; with --objective kept, of the "
    "load's speed. Fresh pairs must exclude more.",
)
@click.option(
    "--pareto",
    default="",
    metavar="throughput,rss|kept",
    help="Prove a Pareto front instead of one winner: from the fastest to the smallest (peak or "
    "kept memory).",
)
@click.option(
    "--panel/--no-panel",
    "panel",
    default=None,
    help="Measure the winner on other workloads; drop a parameter that harms them, or warn.  "
    "[default: on for workloads]",
)
@click.option(
    "--smallest-memory",
    is_flag=True,
    help="Then find the smallest memory limit that the default and the winner survive; takes 30 % "
    "of --budget.",
)
@click.option(
    "--prove-on",
    is_flag=True,
    help="Search on a trace (--workload trace:FILE), and prove the result on its program, given "
    "after -- or with --server.",
)
@click.option(
    "--term",
    "term_days",
    type=int,
    default=90,
    show_default=True,
    metavar="DAYS",
    help="After that many days `hztune verify --all --due` measures the profile again.",
)
@click.option(
    "--out",
    type=Place(),
    metavar="DIR",
    help="Results directory.  [default: a new one in hztune-results]",
)
@click.option(
    "--sampler",
    default="sparse",
    show_default=True,
    metavar="NAME|module:Class",
    help="What proposes configurations: sparse, or Optuna's tpe, random or cmaes, or your own.",
)
@click.option(
    "--on",
    default="",
    metavar="tcp://HOST:8786",
    help="Measure on the workers of a Dask cluster, by its scheduler.",
)
@click.option("--resume", is_flag=True, help="Go on with the study in --out.")
@private_option
@click.option("--require-gain", is_flag=True, help="Exit with status 4 when there is no gain.")
@click.option("--strict", is_flag=True, help="Exit with status 5 when the machine is unfit.")
@click.option(
    "--dry-run", is_flag=True, help="Print the plan and the search space; measure nothing."
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
@program_options
def tune_command(
    require_gain: bool,
    strict: bool,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    private: bool,
    **options: Any,
) -> int:
    """Search for the best configuration, and prove it on fresh data.

    The results directory holds profile.json (see `hztune show`, `hztune export`), profile.env,
    report.html, every sample and, for hz, hz_config.h.
    """
    if options["resume"] and options["out"] and not _targets(options):
        return int(gone_on_with(options["out"] / "profile.json"))
    asked = _request(is_kept=not private, **options)
    if dry_run:
        click.echo("\n".join(api.plan(asked)))
        return 0
    if strict:
        require_fit(api.doctor())
    with reporter(quiet=quiet) as display:
        result = api.tune(asked, reporter=display)
    status = print_result(result, options["words"], as_json=as_json)
    write_report(result)
    if require_gain and result.profile.claim.verdict == "no_gain":
        raise NoGainError("no gain was proved, and --require-gain was given")
    return status


def _targets(options: Mapping[str, Any]) -> bool:
    """Whether something to measure is named."""
    return any(options[name] for name in ("workload", "words", "server", "commands"))


def _request(
    *,
    is_kept: bool,
    workload: str | None,
    params: tuple[str, ...],
    threads: int | None,
    objective: Goal,
    budget: str,
    words: tuple[str, ...],
    commands: tuple[str, ...],
    prove_on: bool,
    **others: Any,
) -> TuneRequest:
    """The request that the options describe; cheap mistakes are found before heavy imports."""
    about = {name: others.pop(name) for name in list(others) if name in PROGRAM_OPTIONS}
    own = programs_of(words, commands, about)
    others["command"] = given_words(own) if is_kept else ()
    if prove_on:
        if len(own) != 1 or workload is None:
            raise UsageError(
                "--prove-on needs a trace and its program: "
                "hztune --workload trace:FILE --prove-on -- ./program"
            )
        others["prove_on"], own = own[0], ()
    if own and (workload is not None or params or threads is not None):
        raise UsageError("--workload, --param and --threads are not for a program of your own")
    if workload is not None and not prove_on:
        refuse_without_program(_OF_WORKLOADS)
    if own and objective == "p99":
        raise UsageError(
            f"--objective {objective} is for workloads; a program of yours is judged by its time, "
            "or by what --metric-regex or --metric-cmd finds"
        )
    if not own and workload is None:
        raise UsageError(
            "--workload is missing; `hztune list workloads` prints them (or give a program of your"
            " own after --, several with --command, or a --server)"
        )
    budget_s = parse_duration(budget, "--budget")
    if own:
        return api.request(program=own, objective=objective, budget=budget_s, **others)
    return api.request(
        workload,
        threads=threads,
        params=params,
        objective=objective,
        budget=budget_s,
        idle_s=about["idle_s"],
        rounds=about["rounds"],
        cpus=about["cpus"],
        memory=about["memory"],
        **others,
    )


def print_result(result: Result, words: Sequence[str] = (), *, as_json: bool) -> int:
    """Prints the summary; returns the exit status of the verdict. `words` are the program's."""
    folder = result.folder
    if as_json:
        click.echo(json.dumps(api.summary(result), indent=2))
    else:
        lines = api.summary_lines(result)
        if folder is not None and result.profile.makes_a_claim:
            path = shlex.quote(str(folder / "profile.json"))
            own = shlex.join(words or ("./your-program",))
            lines.append(f"use it:  hztune run {path} -- {own}")
            lines.append(f"or:      hztune export {path} --format env")
        click.echo("\n".join(lines))
    return _EXIT_STATUS[result.profile.claim.verdict]


def write_report(result: Result) -> None:
    """Writes the page of a study that has a verdict and a directory."""
    if result.folder is not None and result.profile.claim.verdict not in _UNTOLD:
        api.report(result.folder)
