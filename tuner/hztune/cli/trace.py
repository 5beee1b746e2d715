"""Commands that look at what a program does with its allocator: `suggest`, `record`, `trace`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from hztune import api
from hztune.arguments import parse_duration
from hztune.cli.options import (
    ABOUT_PROGRAMS,
    JSON,
    QUIET,
    FilledCommand,
    ProgramCommand,
    argument,
    flag,
    option,
    pid_option,
    print_answer,
    print_lines,
    programs_of,
)
from hztune.errors import UsageError
from hztune.progress import reporter

_SUGGEST = """Name three measurements of a program worth making.

Runs the program twice, unchanged and with its calls recorded, and stops each run after --for.
A server is observed under its load. Each measurement is a command to paste, with its reason.
Nothing is compared or claimed.

\b
hztune suggest -- ./program its arguments
hztune suggest --server 'redis-server --port {port}' --load '...'
"""


@click.command("suggest", cls=ProgramCommand, help=_SUGGEST, params=[
    option("--for TIME", "Time for each of the two runs.", "duration", default="5s"),
    JSON, QUIET, *ABOUT_PROGRAMS,
])  # fmt: skip
def suggest_command(duration: str, as_json: bool, quiet: bool, **about: Any) -> None:
    seconds = parse_duration(duration, "--for")
    programs = programs_of(about.pop("words"), about.pop("commands"), about)
    if len(programs) != 1:
        raise UsageError(
            f"{'there is nothing to look at' if not programs else 'give one program'}: "
            "hztune suggest -- ./program, or --server COMMAND --load COMMAND"
        )
    with reporter(quiet=quiet) as display:
        found = api.suggest(programs[0], seconds=seconds, reporter=display)
    print_answer(as_json, api.suggestion_json(found), api.suggestion_text(found))


_RECORD = """Record every call of a program to its allocator into a trace.

The program runs unchanged, on its usual allocator, with its own terminal, signals and exit status.
Start a server in the foreground, and end it when the trace is long enough, or give --for. --pid
records a process that was started with a sleeping recorder:

\b
HZ_RECORD=asleep LD_PRELOAD=$(hztune paths --recorder) ./server
hztune record -o server.trace --for 60s --pid PID

Static programs and those with an allocator inside cannot be recorded. Child processes are recorded,
too; the trace is of the busiest process.
"""


@click.command("record", cls=ProgramCommand, help=_RECORD,
               options_metavar="-o FILE [OPTIONS]", params=[
    option("--output -o FILE", "The trace.", required=True),
    option("--for TIME", "End the recording after that time; the program goes on.", "duration"),
    pid_option("Record this process."),
    flag("--each", "A trace for every program that is started: FILE.PID-N."),
])  # fmt: skip
def record_command(
    output: Path, duration: str, pid: int | None, words: tuple[str, ...], **more: Any
) -> int:
    if (pid is None) == (not words):
        raise UsageError("want either a program after -- or --pid N")
    seconds = parse_duration(duration, "--for") if duration else None
    command = api.recorder_command(output, words, pid=pid, seconds=seconds, **more)
    sys.stdout.flush()
    os.execv(command[0], command)


_FILE = argument("path", "FILE")
_OUTPUT = option("--output -o FILE", "The file to write.", required=True)


@click.group("trace", no_args_is_help=False)
def trace_command() -> None:
    """Show, cut, anonymize and convert traces."""


@trace_command.command("info", params=[_FILE, JSON])
def info_command(path: Path, as_json: bool) -> None:
    """Print what is in a trace."""
    told = api.trace_info(path)
    print_answer(as_json, told, api.trace_text(told))


def _changing(verb: str, *options: click.Parameter, doc: str) -> None:
    def command(path: Path, output: Path, **given: Any) -> None:
        said = api.changed_trace(verb, path, output, **given)
        print_lines((f"hztune: {line}" for line in said), err=True)

    params = [_FILE, _OUTPUT, *options]
    trace_command.command(verb, cls=FilledCommand, params=params, help=doc)(command)


_changing(
    "cut",
    option("--from SECONDS", "Where the part begins."),
    option("--to SECONDS", "Where it ends."),
    doc="Write a part of a trace.\n\nBlocks that are live where the part begins are allocated at "
    "its start.",
)
_changing(
    "anonymize",
    option("--round-sizes BYTES", "Round sizes up to multiples of BYTES, a power of two."),
    doc="Write a trace without the names of its program and of its threads.\n\nSizes, times, and "
    "the thread that freed each block stay.",
)
_changing(
    "convert",
    option("--to FORM", "trace or text.", default="trace"),
    doc="Write a trace as plain text, or make one of that or of an interrupted recording.",
)
