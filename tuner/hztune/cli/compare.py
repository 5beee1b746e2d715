"""`hztune compare`: allocators, configurations and commands side by side; a gate for CI."""

from __future__ import annotations

import math
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from hztune import api
from hztune.arguments import parse_duration
from hztune.cli import completion
from hztune.cli.lines import print_lines
from hztune.cli.program import (
    NO_PROGRAM,
    Place,
    SplitCommand,
    about_program,
    given_words,
    gone_on_with,
    private_option,
    refuse_without_program,
)
from hztune.errors import HztuneError, NotEnoughDataError, StoppedByUser, UsageError
from hztune.progress import Plain, Quiet

if TYPE_CHECKING:
    from hztune.compare.comparison import Comparison
    from hztune.measure.program import Program
    from hztune.workload import WorkloadSpec

_STATUS = {"no worse": 0, "worse": 4, "not enough data": 6}
_PLACE = "{}"
_MOST_NAMED = 3
"""Failing contenders that one sentence names."""

_HELP = """Measure allocators, configurations or programs side by side.

The first contender is the control: ratios are to it, with 95 % intervals; above 1 is faster. Each
row of the result is a workload (--workload), your own program (after --), one of several
(--command), or a server (--server). Ctrl-C ends the comparison with the rows so far; --resume goes
on with it.

\b
default                   hz with its defaults
PROFILE.json              what a profile describes
glibc, jemalloc, ...      an allocator with its defaults; `none`: the program unchanged
hz:shards=4,thp=on        an allocator with parameters
NAME=/path/to/lib.so      any other library that replaces malloc

If the program is {}, the contenders are commands that replace it, and all get the same arguments:

\b
hztune compare none jemalloc -- ./program its arguments
hztune compare ./old ./new -- {} its arguments
hztune compare OLD='./server-1' NEW='./server-2 --fast' --server '{} --port 7777' ...
hztune compare ./old ./new --command small='{} a.txt' --command large='{} b.txt'

After a row, each contender runs once more for its live memory (used by the program) and its held
memory (of the allocator); not with --no-worse.

A ratio comes only from pairs in which both contenders ended well; the table says how often one
failed.

With --no-worse 2%, the answer is whether the second of two contenders is more than 2 % slower than
the first one on any row. The number of pairs is planned from the time; an early look may end it.

\b
exit status   0  compared
              1  the first contender never ran: nothing was compared
              6  not enough data: a contender failed in at least half of the pairs of a row, or
                 the budget was too small for a row: what was measured is printed
with --no-worse
              0  no worse: a greater loss is excluded on every row
              1  the first contender never ran: nothing was compared
              4  worse: the loss is greater on some row; or the second contender always fails
              6  not enough data: neither is shown; or a contender fails in some runs only
"""


@click.command("compare", cls=SplitCommand, help=_HELP)
@click.option(
    "--workload",
    "-w",
    "workloads",
    default="",
    metavar="NAME[@SETTING],...",
    shell_complete=completion.offer_names(completion.workloads),
    help="What to measure; see `hztune list workloads`.",
)
@click.option("--threads", "-t", default="", metavar="N,...", help="Threads.  [default: CPUs here]")
@click.option(
    "--param",
    "-p",
    "params",
    multiple=True,
    metavar="KEY=VALUE",
    help="A parameter of the workloads that have it.",
)
@click.option(
    "--budget", default="60s", show_default=True, metavar="TIME", help="Time for all rows together."
)
@click.option(
    "--pairs",
    type=int,
    metavar="N",
    help="Fresh pairs for each row.  [default: 6; with --no-worse as the time allows]",
)
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True,
              help="Seed of all random choices.")  # fmt: skip
@click.option(
    "--no-worse",
    default=None,
    metavar="PERCENT",
    help="Test whether the second contender is slower by more than that.",
)
@click.option("--counters", is_flag=True, help="Print counters and live memory, too.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "markdown", "json"]),
    default="text",
    show_default=True,
    help="Output format; json has every sample and estimate.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option("--markdown", is_flag=True, help="The same as --format markdown.")
@click.option("--plot", type=Place(), metavar="FILE.svg", help="Draw the ratios, too.")
@click.option(
    "--csv",
    "csv_path",
    type=Place(),
    metavar="FILE",
    help="Write the figures there, too.",
)
@click.option(
    "--junit",
    type=Place(),
    metavar="FILE",
    help="Write the answers of --no-worse there as JUnit XML.",
)
@click.option(
    "--out",
    type=Place(),
    metavar="DIR",
    help="Results directory.  [default: a new one in hztune-results]",
)
@click.option("--resume", is_flag=True, help="Go on with the comparison in --out.")
@private_option
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
@about_program
@click.argument(
    "contenders",
    metavar="A B [C]... [-- PROGRAM [ARGS]...]",
    nargs=-1,
    shell_complete=completion.offer_contenders,
)
def compare_command(
    contenders: tuple[str, ...],
    budget: str,
    pairs: int | None,
    seed: int,
    no_worse: str | None,
    counters: bool,
    form: str,
    as_json: bool,
    markdown: bool,
    plot: Path | None,
    csv_path: Path | None,
    junit: Path | None,
    out: Path | None,
    resume: bool,
    quiet: bool,
    private: bool,
    **measured: Any,
) -> int:
    """`hztune compare`."""
    if resume and out is not None and not contenders:
        return int(gone_on_with(out / "comparison.json"))
    if len(contenders) < 2:
        raise UsageError("compare needs at least two contenders (see `hztune compare --help`)")
    form = _form(form, as_json=as_json, markdown=markdown)
    if junit is not None and no_worse is None:
        raise UsageError("--junit writes the answers of --no-worse; give that, too: --no-worse 2%")
    budget_s = parse_duration(budget, "--budget")
    if resume and out is None:
        raise UsageError("--resume needs the directory to go on with: give it with --out DIR")
    out = out or Path("hztune-results", f"compare-{time.strftime('%Y%m%d-%H%M%S')}")
    for option, path in (("--plot", plot), ("--csv", csv_path), ("--junit", junit)):
        _require_place(option, path, out)
    specs = _rows(contenders, **measured)
    sides = api.contenders(contenders, are_commands=_is_open(specs))
    found = api.compare(
        sides,
        specs,
        pairs=pairs,
        budget_s=budget_s,
        seed=seed,
        no_worse=no_worse,
        out=out,
        resume=resume,
        command=() if private else given_words(specs),
        reporter=Quiet() if quiet else Plain(sys.stderr),
    )
    try:
        _write(found, plot, csv_path, junit)
    finally:  # a full disk takes the files, not the answer
        _print(found, form, counters=counters)
    if found.stopped:
        so_far = _so_far(found, len(specs))
        how = "go on with the same command and" if private else "go on with: hztune compare"
        raise StoppedByUser(f"{so_far}; {how} --resume --out {shlex.quote(str(out))}")
    if no_worse is not None:
        answer = api.ruling(found)
        if answer == "not enough data":
            _require_time(found)
            _require_ratios(found)
        return _STATUS[answer]
    _require_time(found)
    _require_ratios(found)
    _require_runs(found)
    return 0


def _require_place(option: str, path: Path | None, out: Path) -> None:
    """Sees to it that a file can be written when all is measured; `out` is made before.

    Raises:
        UsageError: Its folder does not exist, or it is a folder itself, or a device.
    """
    if path is None:
        return
    folder, made = path.absolute().parent, out.absolute()
    if not (folder.is_dir() or folder == made or folder in made.parents):
        raise UsageError(f"{option} {str(path)!r}: there is no folder {str(path.parent)!r}")
    if path.is_dir():
        raise UsageError(f"{option} {str(path)!r} is a folder; name a file in it")
    if path.exists() and not path.is_file():
        raise UsageError(f"{option} {str(path)!r} is not a regular file; name another one")


def _form(form: str, *, as_json: bool, markdown: bool) -> str:
    """What is to be printed.

    Raises:
        UsageError: Several things are.
    """
    source = click.get_current_context().get_parameter_source("form")
    asked = {"json": as_json, "markdown": markdown}
    chosen = {name for name, is_asked in asked.items() if is_asked}
    if source is not ParameterSource.DEFAULT:
        chosen.add(form)
    if len(chosen) > 1:
        raise UsageError("--json, --markdown and --format exclude each other; give one of them")
    return chosen.pop() if chosen else form


def _rows(
    contenders: tuple[str, ...],
    *,
    workloads: str,
    threads: str,
    params: tuple[str, ...],
    commands: tuple[str, ...],
    words: tuple[str, ...] | None,
    **about: Any,
) -> list[WorkloadSpec | Program]:
    """What is measured.

    Raises:
        UsageError: Nothing is, or what excludes each other.
    """
    given = {
        "--workload": bool(workloads),
        "a program after --": words is not None,
        "--server": bool(about["server"]),
        "--command": bool(commands),
    }
    several = [name for name, is_given in given.items() if is_given]
    if len(several) > 1:
        raise UsageError(f"{' and '.join(several)} exclude each other; give one of them")
    if not several:
        api.contenders(contenders)  # one of them may be a program that lacks its dashes
        raise UsageError(
            "there is nothing to measure: give a program after --, --server with --load, --command"
            " NAME='PROGRAM ARGS', or --workload NAME (`hztune list workloads`)"
        )
    if not workloads:
        if threads or params:
            raise UsageError("--threads and --param are for workloads; a program has its arguments")
        return _programs(commands, words, about)
    refuse_without_program()
    return [*api.rows(workloads, threads, params)]


def _programs(
    commands: tuple[str, ...], words: tuple[str, ...] | None, about: dict[str, Any]
) -> list[WorkloadSpec | Program]:
    """The programs of the user's that are measured."""
    if words == ():
        raise UsageError(NO_PROGRAM)
    if commands:
        return [*api.named_programs(commands, **about)]
    return [api.program(words or (), **about)]


def _is_open(specs: list[WorkloadSpec | Program]) -> bool:
    """Whether the contenders are commands.

    Raises:
        UsageError: On some rows only.
    """
    opens = [getattr(spec, "is_open", False) for spec in specs]
    if any(opens) and not all(opens):
        raise UsageError(
            f"{_PLACE} must begin every --command or none: contenders are commands, or they are "
            "allocators, profiles and libraries"
        )
    return any(opens)


def _write(found: Comparison, plot: Path | None, table: Path | None, junit: Path | None) -> None:
    """Writes the files that were asked for; JUnit tells of rows that were not measured, too."""
    if plot is not None and found.rows:
        api.draw(found, plot)
    if table is not None and found.rows:
        api.write_comparison(found, table, "csv")
    if junit is not None:
        api.write_comparison(found, junit, "junit")


def _so_far(found: Comparison, rows: int) -> str:
    """What of an interrupted comparison is there."""
    told = f"interrupted with {rows - len(found.left)} of {rows} rows finished"
    kept = [f"{each.words} of {each.label}" for each in found.left if each.pairs]
    return f"{told}, and {' and '.join(kept)} saved" if kept else told


def _require_time(found: Comparison) -> None:
    """Sees to it that no interval of a few pairs is taken for a claim.

    Raises:
        NotEnoughDataError: The budget was too small for a row.
    """
    late = [each for each in found.left if each.enough_s]
    if not late:
        return
    told = " and ".join(f"{each.words} of {each.label}" for each in late[:_MOST_NAMED])
    enough_s = max(each.enough_s for each in late)
    more = f"--budget {enough_s:.0f}s would do"
    if not math.isfinite(enough_s):
        more = "one run takes longer than it"
    raise NotEnoughDataError(
        f"not enough data: the budget had time for {told}, of which nothing can be claimed; {more}"
    )


def _require_ratios(found: Comparison) -> None:
    """Sees to it that a script does not take a comparison for one in which nothing ran.

    Raises:
        HztuneError: The control failed in every block of every row.
    """
    controls = [block.control for row in found.rows for block in row.blocks]
    if not any(outcome.ok for outcome in controls):
        last = controls[-1]
        raise HztuneError(
            f"nothing could be compared: {found.contenders[0].name} never ran "
            f"({last.status}: {last.detail})"
        )


def _require_runs(found: Comparison) -> None:
    """Sees to it that a script does not take the ratios of a few lucky runs for those of all.

    Raises:
        NotEnoughDataError: A contender failed in at least half of the pairs of a row.
    """
    if not (often := api.failing(found)):
        return
    more = f"; and {len(often) - _MOST_NAMED} more" if len(often) > _MOST_NAMED else ""
    raise NotEnoughDataError(
        f"not enough data: {'; '.join(often[:_MOST_NAMED])}{more}; start each by hand several "
        "times to see all that it prints, and mend it or leave it out"
    )


def _print(found: Comparison, form: str, *, counters: bool) -> None:
    if form == "json":
        click.echo(api.comparison_json(found), nl=False)
    elif found.rows:
        text = api.comparison_text(found, markdown=form == "markdown", counters=counters)
        print_lines(text.split("\n"))
