"""`hztune trace`: what is in a trace, parts of it, other forms, and whether it may stand."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from hztune import api
from hztune.arguments import parse_duration
from hztune.cli.program import Place, Quantity, SplitCommand, about_program
from hztune.errors import UsageError
from hztune.progress import Plain, Quiet

_file = click.argument("path", metavar="FILE", type=Place())
_output = click.option("--output", "-o", required=True, metavar="FILE",
                       type=Place(), help="The file to write.")  # fmt: skip


_STATUS = {"stands": 0, "does not stand": 4, "cannot tell": 6}
_CHECK = """Find out whether a trace may stand for its program.

Measures both under all installed allocators and two slow settings of them, or under the four or
more that are named, as for `hztune compare`. Records the program a second time. Writes the verdict
to FILE.check.json; a study of the trace prints it.

\b
hztune trace check app.trace -- ./app its arguments
hztune trace check redis.trace --server 'redis-server --port {port}' --load '...'

\b
exit status   0  it may stand for its program
              4  it may not: they disagree, and the sentence says on which point
              6  undecided: the allocators differ too little, or more time (--budget) is needed
"""


@click.group("trace", no_args_is_help=False)
def trace_command() -> None:
    """Show, check, cut, anonymize and convert traces."""


@trace_command.command("info")
@_file
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def trace_info(path: Path, as_json: bool) -> int:
    """Print what is in a trace; of a damaged one, what comes before the damage, with status 1."""
    told = api.trace_info(path)
    click.echo(json.dumps(told, indent=2) if as_json else "\n".join(api.trace_text(told)))
    return 1 if told["damage"] else 0


@trace_command.command("check", cls=SplitCommand, help=_CHECK)
@_file
@click.option("--budget", default="2m", show_default=True, metavar="TIME",
              help="Time for program and trace together.")  # fmt: skip
@click.option("--pairs", type=int, metavar="N",
              help="Fresh processes of program and trace.  [default: 8]")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True,
              help="Seed of all random choices.")  # fmt: skip
@click.option("--again/--not-again", default=True,
              help="Record the program a second time, and compare the calls.")  # fmt: skip
@click.option("--out", type=Place(), metavar="DIR",
              help="Results directory.  [default: a new one in hztune-results]")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
@about_program
@click.argument("contenders", metavar="[ALLOCATOR...] [-- PROGRAM...]", nargs=-1)
def trace_check(
    path: Path,
    contenders: tuple[str, ...],
    budget: str,
    pairs: int | None,
    seed: int,
    again: bool,
    out: Path | None,
    as_json: bool,
    quiet: bool,
    words: tuple[str, ...] | None,
    commands: tuple[str, ...],
    **about: Any,
) -> int:
    """`hztune trace check`."""
    if commands or bool(words) == bool(about["server"]):
        raise UsageError("give the program of the trace after --, or --server with --load")
    found = api.check_trace(
        path,
        api.program(words or (), **about),
        contenders,
        pairs=pairs,
        budget_s=parse_duration(budget, "--budget"),
        seed=seed,
        again=again,
        out=out or Path("hztune-results", f"check-{time.strftime('%Y%m%d-%H%M%S')}"),
        reporter=Quiet() if quiet else Plain(sys.stderr),
    )
    click.echo(found.as_json() if as_json else "\n".join(api.trace_check_text(found, path)),
               nl=not as_json)  # fmt: skip
    return _STATUS[found.answer]


@trace_command.command("cut")
@_file
@_output
@click.option("--from", "from_s", type=Quantity(), metavar="SECONDS", help="Where the part begins.")
@click.option("--to", "to_s", type=Quantity(), metavar="SECONDS", help="Where it ends.")
def trace_cut(path: Path, output: Path, from_s: float | None, to_s: float | None) -> None:
    """Write a part of a trace; of a damaged one, what comes before the damage.

    Blocks that are live where the part begins are allocated at its start.
    """
    _say(api.cut_trace(path, output, from_s=from_s, to_s=to_s))


@trace_command.command("anonymize")
@_file
@_output
@click.option("--round-sizes", type=int, metavar="BYTES",
              help="Round sizes up to multiples of BYTES, a power of two.")  # fmt: skip
def trace_anonymize(path: Path, output: Path, round_sizes: int | None) -> None:
    """Write a trace without the names of its program and of its threads.

    Sizes, times, and the thread that freed each block stay.
    """
    _say(api.anonymize_trace(path, output, round_sizes=round_sizes))


@trace_command.command("convert")
@_file
@_output
@click.option("--to", "form", default="trace", show_default=True, metavar="FORM",
              help="trace, text, aosp (zipped where FILE ends in .zip) or mtrace.")  # fmt: skip
def trace_convert(path: Path, output: Path, form: str) -> None:
    """Write a recording in another form.

    Reads traces, interrupted recordings (FILE.recording), the text or zip of Android's
    memory_replay, mtrace's text, workloads of trace_run, and the plain text of --to text.
    """
    _say(api.convert_trace(path, output, form=form))


def _say(lines: Sequence[str]) -> None:
    for line in lines:
        click.echo(f"hztune: {line}", err=True)
