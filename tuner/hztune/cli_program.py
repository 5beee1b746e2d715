"""The user's own program on a command line: what stands after `--`, and the options about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hztune.errors import UsageError

if TYPE_CHECKING:
    from hztune.measure.program import Better, Program, Rate

F = TypeVar("F", bound=Callable[..., Any])

_DASHES = "hztune.dashes"

_OPTIONS = (
    click.option("--metric-regex", default="", metavar="REGEX",
                 help="The number in what the program prints, in a group; instead of its time."),
    click.option("--metric-cmd", default="", metavar="COMMAND",
                 help="A shell command that reads what it printed and prints the number."),
    click.option("--lower-is-better", is_flag=True, help="Of that number."),
    click.option("--prepare", default="", metavar="COMMAND", help="Run before each run, untimed."),
    click.option("--cleanup", default="", metavar="COMMAND", help="Run after each run, untimed."),
    click.option("--check", default="", metavar="COMMAND",
                 help="Reads what it printed, and fails where that is wrong."),
    click.option("--timeout", type=click.FloatRange(min=0.1), default=600.0, show_default=True,
                 metavar="SECONDS", help="A run that takes longer is hanging."),
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
        "words", metavar="[-- PROGRAM [ARGS]...]", nargs=-1, type=click.UNPROCESSED
    )
    return words(command)


def has_program(words: tuple[str, ...]) -> bool:
    """Whether the words are a program's.

    Raises:
        UsageError: There are words, but no `--` before them.
    """
    if words and not click.get_current_context().meta.get(_DASHES):
        raise UsageError(
            f"{words[0]!r} is no command of hztune and no option "
            "(`hztune --help` lists the commands; a program of your own stands after --)"
        )
    return bool(words)


def program(
    words: tuple[str, ...],
    *,
    metric_regex: str,
    metric_cmd: str,
    lower_is_better: bool,
    prepare: str,
    cleanup: str,
    check: str,
    timeout: float,
) -> Program:
    """The program that the words and options describe.

    Raises:
        UsageError: The options exclude each other, or the expression is none.
    """
    from hztune.measure.program import Program

    rate = _rate(metric_regex, metric_cmd, lower_is_better)
    return Program(
        argv=words,
        rate=rate,
        reads_output=rate is not None or bool(check),
        prepare=prepare,
        cleanup=cleanup,
        check=check,
        timeout_s=timeout,
    )


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
