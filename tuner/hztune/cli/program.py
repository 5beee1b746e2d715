"""The user's own program on a command line: what stands after `--`, and the options about it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hztune.cli import completion
from hztune.errors import UsageError

if TYPE_CHECKING:
    from hztune.measure.program import Better, Program, Rate, Service

F = TypeVar("F", bound=Callable[..., Any])

_DASHES = "hztune.dashes"

_OPTIONS = (
    click.option("--metric-regex", default="", metavar="REGEX",
                 help="The number in what the program prints, in a group; instead of its time."),
    click.option("--metric-cmd", default="", metavar="COMMAND",
                 help="A shell command that reads what it printed and prints the number."),
    click.option("--lower-is-better", is_flag=True,
                 help="A lower number of --metric-regex or --metric-cmd is better."),
    click.option("--prepare", default="", metavar="COMMAND", help="Run before each run, untimed."),
    click.option("--cleanup", default="", metavar="COMMAND", help="Run after each run, untimed."),
    click.option("--check", default="", metavar="COMMAND",
                 help="Reads what it printed, and fails where that is wrong."),
    click.option("--warmup", type=click.IntRange(0, 1000), default=1, show_default=True,
                 metavar="N", help="Uncounted runs before the first one."),
    click.option("--timeout", type=click.FloatRange(min=0.1), default=600.0, show_default=True,
                 metavar="SECONDS", help="A run that takes longer is hanging."),
    click.option("--server", default="", metavar="COMMAND",
                 help="A server to tune, instead of a program; started afresh for each run."),
    click.option("--load", default="", metavar="COMMAND",
                 help="What puts the server under load; its time or output is measured."),
    click.option("--ready", default="", metavar="COMMAND",
                 help="Succeeds as soon as the server answers."),
    click.option("--ready-port", type=click.IntRange(1, 65535), metavar="N",
                 help="Or: the TCP port on which it then answers."),
    click.option("--idle-s", type=click.FloatRange(0, 3600), default=0.0, metavar="SECONDS",
                 help="Read the server's memory again that long after the load."),
)  # fmt: skip


class ProgramCommand(click.Command):
    """A command that knows whether `--` was given: click does not tell."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Remembers the dashes, then parses as ever."""
        ctx.meta[_DASHES] = "--" in args
        return super().parse_args(ctx, args)


def program_options(command: F) -> F:
    """Gives a command the options about a program, and its words as `words`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    words = click.argument(
        "words",
        metavar="[-- PROGRAM [ARGS]...]",
        nargs=-1,
        type=click.UNPROCESSED,
        shell_complete=completion.offer_files,
    )
    return words(command)


def has_program(words: tuple[str, ...], server: str) -> bool:
    """Whether there is a program of the user's, or a server.

    Raises:
        UsageError: There are words, but no `--` before them.
    """
    if words and not click.get_current_context().meta.get(_DASHES):
        raise UsageError(
            f"{words[0]!r} is no command of hztune and no option "
            "(`hztune --help` lists the commands; a program of your own stands after --)"
        )
    return bool(words or server)


def program(
    words: tuple[str, ...],
    *,
    metric_regex: str,
    metric_cmd: str,
    lower_is_better: bool,
    prepare: str,
    cleanup: str,
    check: str,
    warmup: int,
    timeout: float,
    server: str,
    load: str,
    ready: str,
    ready_port: int | None,
    idle_s: float,
) -> Program:
    """The program that the words and options describe.

    Raises:
        UsageError: The options exclude each other, or the expression is none.
    """
    from hztune.measure.program import Program

    rate = _rate(metric_regex, metric_cmd, lower_is_better)
    service = _service(server, load, ready, ready_port, idle_s)
    if server and words:
        raise UsageError("give a server (--server) or a program (-- PROGRAM), one of them")
    return Program(
        argv=_split(server) if server else words,
        rate=rate,
        metric=json.dumps([metric_regex, metric_cmd, lower_is_better]) if rate else "",
        reads_output=rate is not None or bool(check),
        prepare=prepare,
        cleanup=cleanup,
        check=check,
        timeout_s=timeout,
        warmups=warmup,
        service=service,
    )


def _service(server: str, load: str, ready: str, port: int | None, idle_s: float) -> Service | None:
    """How a server is used, if there is one."""
    from hztune.measure.program import Service

    if not server:
        if load or ready or port or idle_s:
            raise UsageError("--load, --ready, --ready-port and --idle-s need --server COMMAND")
        return None
    if not load:
        raise UsageError("--server needs --load COMMAND, which puts the server under load")
    if bool(ready) == bool(port):
        raise UsageError("--server needs --ready COMMAND or --ready-port N, one of them")
    return Service(load, ready, port or 0, idle_s)


def _split(command: str) -> tuple[str, ...]:
    """The words of a command, as a shell would have them."""
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise UsageError(f"--server {command!r} cannot be read: {error}") from None
    if not words:
        raise UsageError("--server is empty; give the command that starts the server")
    return words


def _rate(regex: str, command: str, lower: bool) -> Rate | None:
    from hztune.measure.program import by_command, by_regex

    if regex and command:
        raise UsageError("--metric-regex and --metric-cmd exclude each other; give one of them")
    if lower and not (regex or command):
        raise UsageError(
            "--lower-is-better needs --metric-regex or --metric-cmd: time is so anyway"
        )
    better: Better = "lower" if lower else "higher"
    if regex:
        return by_regex(regex, better)
    return by_command(command, better) if command else None
