"""`hztune trace`: what is in a trace, parts of it, and other forms."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from hztune import api
from hztune.cli.lines import print_lines
from hztune.cli.program import Place, Quantity

_file = click.argument("path", metavar="FILE", type=Place())
_output = click.option("--output", "-o", required=True, metavar="FILE",
                       type=Place(), help="The file to write.")  # fmt: skip


@click.group("trace", no_args_is_help=False)
def trace_command() -> None:
    """Show, cut, anonymize and convert traces."""


@trace_command.command("info")
@_file
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def info_command(path: Path, as_json: bool) -> None:
    """Print what is in a trace."""
    told = api.trace_info(path)
    click.echo(json.dumps(told, indent=2) if as_json else "\n".join(api.trace_text(told)))


@trace_command.command("cut")
@_file
@_output
@click.option("--from", "from_s", type=Quantity(), metavar="SECONDS", help="Where the part begins.")
@click.option("--to", "to_s", type=Quantity(), metavar="SECONDS", help="Where it ends.")
def cut_command(path: Path, output: Path, from_s: float | None, to_s: float | None) -> None:
    """Write a part of a trace.

    Blocks that are live where the part begins are allocated at its start.
    """
    _say(api.cut_trace(path, output, from_s=from_s, to_s=to_s))


@trace_command.command("anonymize")
@_file
@_output
@click.option("--round-sizes", type=int, metavar="BYTES",
              help="Round sizes up to multiples of BYTES, a power of two.")  # fmt: skip
def anonymize_command(path: Path, output: Path, round_sizes: int | None) -> None:
    """Write a trace without the names of its program and of its threads.

    Sizes, times, and the thread that freed each block stay.
    """
    _say(api.anonymize_trace(path, output, round_sizes=round_sizes))


@trace_command.command("convert")
@_file
@_output
@click.option("--to", "form", default="trace", show_default=True, metavar="FORM",
              help="trace or text.")  # fmt: skip
def convert_command(path: Path, output: Path, form: str) -> None:
    """Write a trace as plain text, or make one of that or of an interrupted recording."""
    _say(api.convert_trace(path, output, form=form))


def _say(lines: Sequence[str]) -> None:
    print_lines((f"hztune: {line}" for line in lines), err=True)
