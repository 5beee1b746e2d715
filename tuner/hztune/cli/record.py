"""`hztune record`: record what a program does with its allocator."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from hztune import api
from hztune.arguments import parse_duration
from hztune.cli.program import Place, SplitCommand
from hztune.errors import UsageError

_HELP = """Record every call of a program to its allocator into a trace.

The program runs unchanged, on its usual allocator, with its own terminal, signals and exit status.
Start a server in the foreground, and end it when the trace is long enough, or give --for. --pid
records a process that was started with a sleeping recorder:

\b
HZ_RECORD=asleep LD_PRELOAD=$(hztune paths --recorder) ./server
hztune record -o server.trace --for 60s --pid PID

Static programs and those with an allocator inside cannot be recorded. Child processes are recorded,
too; the trace is of the busiest process.
"""


@click.command("record", cls=SplitCommand, help=_HELP,
               options_metavar="-o FILE [OPTIONS] [-- PROGRAM [ARGS]...]")  # fmt: skip
@click.option("--output", "-o", required=True, metavar="FILE", type=Place(),
              help="The trace.")  # fmt: skip
@click.option("--for", "duration", metavar="TIME",
              help="End the recording after that time; the program goes on.")  # fmt: skip
@click.option("--pid", type=click.IntRange(min=1), metavar="N", help="Record this process.")
@click.option("--touch", "touch_bytes", type=click.IntRange(min=1), metavar="BYTES",
              help="Note how much of blocks of that size and more is resident.")  # fmt: skip
@click.option("--each", is_flag=True,
              help="A trace for every program that is started: FILE.PID-N.")  # fmt: skip
def record_command(
    output: Path,
    duration: str | None,
    pid: int | None,
    touch_bytes: int | None,
    each: bool,
    words: tuple[str, ...] | None,
) -> int:
    """`hztune record`; hz-record replaces this process."""
    if (pid is None) == (not words):
        raise UsageError("want either a program after -- or --pid N")
    command = api.recorder_command(
        output,
        words or (),
        pid=pid,
        seconds=parse_duration(duration, "--for") if duration is not None else None,
        touch_bytes=touch_bytes,
        each=each,
    )
    sys.stdout.flush()
    os.execv(command[0], command)
