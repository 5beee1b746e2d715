"""`hztune compare`: allocators and configurations side by side, on one or many workloads."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from hztune import api
from hztune.cli import completion
from hztune.errors import StoppedByUser, UsageError
from hztune.progress import Plain, Quiet, parse_duration

_HELP = """Measure allocators and configurations side by side.

The first contender is the control: ratios are to it, with 95 % intervals; above 1 is faster. Ctrl-C
ends the comparison with the rows so far.

\b
default                   hz as it comes
PROFILE.json              what a profile describes
glibc, jemalloc, ...      an allocator as it comes; `none`: the program unchanged
hz:shards=4,thp=on        an allocator with parameters
NAME=/path/to/lib.so      any other library that replaces malloc
"""


@click.command("compare", help=_HELP)
@click.option(
    "--workload",
    "-w",
    "workloads",
    required=True,
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
    help="A parameter, for the workloads that have it.",
)
@click.option(
    "--budget", default="60s", show_default=True, metavar="TIME", help="Time for all rows together."
)
@click.option(
    "--pairs", type=int, default=6, show_default=True, help="Blocks of fresh processes a row."
)
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True,
              help="Of every random choice.")  # fmt: skip
@click.option("--counters", is_flag=True, help="Print what each allocator counted, too.")
@click.option("--json", "as_json", is_flag=True, help="Print every sample and estimate as JSON.")
@click.option("--markdown", is_flag=True, help="Print a table for a Markdown document.")
@click.option(
    "--plot", type=click.Path(path_type=Path), metavar="FILE.svg", help="Draw the ratios, too."
)
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
@click.argument("contenders", metavar="A B [C]...", nargs=-1, shell_complete=completion.offer_files)
def compare_command(
    contenders: tuple[str, ...],
    workloads: str,
    threads: str,
    params: tuple[str, ...],
    budget: str,
    pairs: int,
    seed: int,
    counters: bool,
    as_json: bool,
    markdown: bool,
    plot: Path | None,
    quiet: bool,
) -> int:
    """`hztune compare`."""
    if len(contenders) < 2:
        raise UsageError("compare needs two contenders at least (see `hztune compare --help`)")
    if as_json and markdown:
        raise UsageError("--json and --markdown exclude each other; give one of them")
    budget_s = parse_duration(budget)
    specs = api.rows(workloads, threads, params)
    found, stopped = api.compare(
        api.contenders(contenders),
        specs,
        pairs=pairs,
        budget_s=budget_s,
        seed=seed,
        reporter=Quiet() if quiet else Plain(sys.stderr),
    )
    if plot is not None and found.rows:
        api.draw(found, plot)
    if as_json:
        click.echo(api.comparison_json(found), nl=False)
    elif found.rows:
        click.echo(api.comparison_text(found, markdown=markdown, counters=counters))
    if stopped:
        raise StoppedByUser(f"interrupted; {len(found.rows)} of {len(specs)} rows are measured")
    return 0
