"""`hztune tune`: from the options of a command line to a request, and from a result to its print.

Values of options are judged in one place, the request (hztune.tuning); here their form is read.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from hztune import api
from hztune.arguments import SAMPLERS, SPARSE
from hztune.cli.list import require_fit
from hztune.cli.options import (
    ABOUT_PROGRAMS,
    PRIVATE,
    PROGRAM_OPTIONS,
    QUIET,
    SEED,
    ProgramCommand,
    flag,
    given_words,
    gone_on_with,
    offer,
    option,
    programs_of,
    refuse_without_program,
    workload_names,
)
from hztune.errors import NoGainError, UsageError
from hztune.progress import reporter

if TYPE_CHECKING:
    from hztune.profile import Verdict
    from hztune.result import Result
    from hztune.tuning.request import TuneRequest

_OF_WORKLOADS = frozenset({"idle_s", "rounds", "cpus", "memory"})  # that workloads have, too

_EXIT_STATUS: dict[Verdict, int] = {
    "improved": 0,
    "within_limit": 0,
    "less_memory": 0,
    "no_gain": 0,
    "infeasible": 3,
    "not_enough_data": 6,
    "interrupted": 130,
}

_UNTOLD: tuple[Verdict, ...] = ("not_enough_data", "interrupted")  # of studies that have no page

_OPTIONS = [
    option("--workload -w NAME[@SETTING],...",
           "What to tune for; see `hztune list workloads`. trace:FILE replays a recorded trace. "
           "Several: one profile for all.", shell_complete=offer(workload_names)),
    option("--param -p KEY=VALUE", "A parameter of the workload.", "params", multiple=True),
    option("--threads -t N", "Threads of the workload.  [default: CPUs here]"),
    option("--objective",
           "What to improve. p99 (workloads only): the time that 99 of 100 calls do not exceed; "
           "kept: the memory that is resident --idle-s seconds after the load.",
           default="throughput", type=click.Choice(["throughput", "p99", "kept"])),
    option("--allocator NAME[,NAME]...|any|inside",
           "The allocators to tune; any: all that are installed; inside: those linked into your "
           "program.  [default: any for a program of your own, else hz]",
           shell_complete=offer(lambda: [*api.allocator_names(), "any", "inside"])),
    option("--space NAME|FILE", "The search space.  [default: the allocator's]"),
    flag("--allow-keeping",
         "Also try settings with which freed memory is never returned to the system."),
    option("--budget TIME", "Time for the whole study: 90s, 5m, 1h.", default="3m"),
    option("--trials N",
           "Try at most N configurations.  [default: as many as there is time for]"),
    SEED,
    option("--max-rss LIMIT", "Limit of peak memory: 1.10x of the default's, or 512M."),
    option("--max-kept LIMIT",
           "Limit of kept memory (see --objective): 0.7x of the default's, or 100M."),
    option("--max-loss PERCENT",
           "Greatest loss of each of several workloads or commands; with --objective kept, of the "
           "load's speed. Fresh pairs must exclude more.", default="5%"),
    option("--pareto throughput,rss|kept",
           "Prove a Pareto front instead of one winner: from the fastest to the smallest (peak or "
           "kept memory)."),
    click.Option(["--panel/--no-panel", "panel"], default=None,
                 help="Measure the winner on other workloads; drop a parameter that harms them, "
                      "or warn.  [default: on for workloads]"),
    flag("--prove-on",
         "Search on a trace (--workload trace:FILE), and prove the result on its program, given "
         "after -- or with --server."),
    option("--term DAYS",
           "After that many days `hztune verify --all --due` measures the profile again.",
           "term_days", default=90),
    option("--out DIR", "Results directory.  [default: a new one in hztune-results]"),
    option("--sampler NAME|module:Class",
           f"What proposes configurations: {SPARSE}, Optuna's {', '.join(SAMPLERS)}, or your own.",
           default="sparse"),
    option("--on tcp://HOST:8786",
           "Measure on the workers of a Dask cluster, by its scheduler."),
    flag("--resume", "Go on with the study in --out."),
    PRIVATE,
    flag("--require-gain", "Exit with status 4 when there is no gain."),
    flag("--strict", "Exit with status 5 when the machine is unfit."),
    flag("--dry-run", "Print the plan and the search space; measure nothing."),
    flag("--json", "Print the summary as JSON.", "as_json"),
    QUIET,
]  # fmt: skip


@click.command("tune", cls=ProgramCommand, params=[*_OPTIONS, *ABOUT_PROGRAMS])
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
    is_named = any(options[name] for name in ("workload", "words", "server", "commands"))
    if options["resume"] and not is_named:
        return int(gone_on_with(options["out"], "profile.json"))
    asked = _request(is_kept=not private, **options)
    if dry_run:
        click.echo("\n".join(api.plan(asked)))
        return 0
    if strict:
        require_fit(api.doctor())
    with reporter(quiet=quiet) as display:
        result = api.tune(asked, reporter=display)
    status = print_result(result, options["words"], as_json=as_json)
    if result.folder is not None and result.profile.claim.verdict not in _UNTOLD:
        api.report(result.folder)
    if require_gain and result.profile.claim.verdict == "no_gain":
        raise NoGainError("no gain was proved, and --require-gain was given")
    return status


def _request(
    *,
    is_kept: bool,
    workload: str,
    words: tuple[str, ...],
    commands: tuple[str, ...],
    prove_on: bool,
    **others: Any,
) -> TuneRequest:
    about = {name: others.pop(name) for name in PROGRAM_OPTIONS}
    own = programs_of(words, commands, about)
    others["command"] = given_words(own) if is_kept else ()
    if prove_on:
        if len(own) != 1 or not workload:
            raise UsageError(
                "--prove-on needs a trace and its program: "
                "hztune --workload trace:FILE --prove-on -- ./program"
            )
        others["prove_on"], own = own[0], ()
    elif workload and not own:
        refuse_without_program(_OF_WORKLOADS)
    resting = {} if own else {name: about[name] for name in _OF_WORKLOADS}
    return api.request(workload, program=own, **resting, **others)


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
