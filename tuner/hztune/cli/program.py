"""The user's own program on a command line: what stands after `--`, and the options about it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource
from click.types import FloatParamType

from hztune import api
from hztune.cli import completion
from hztune.cli.meant import no_command
from hztune.errors import UsageError

if TYPE_CHECKING:
    from hztune.measure.program import Program

F = TypeVar("F", bound=Callable[..., Any])

_DASHES = "hztune.dashes"
_WORDS = "words"
NO_PROGRAM = "there is no program after --; write it and its arguments there"


class Place(click.Path):
    """The type of what names a file or a directory: an empty name is not this directory."""

    def __init__(self) -> None:
        """Makes the type."""
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuses an empty name: of a variable that is not set, mostly."""
        if value == "" and param is not None:
            words = isinstance(param, click.Argument) and param.metavar
            name = words.strip("[]") if words else param.opts[0]
            raise UsageError(f"{name} is empty; give it a value, or leave it out")
        return super().convert(value, param, ctx)


class Quantity(FloatParamType):
    """The type of an option that is a number, with a fraction or without."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuses what is no finite number: nan and inf are none of anything."""
        with suppress(click.BadParameter):
            number = super().convert(value, param, ctx)
            if math.isfinite(number):
                return number
        self.fail(f"{value!r} is not a number; legal is one such as 2 or 0.5", param, ctx)


_OPTIONS = (
    click.option("--metric-regex", default="", metavar="REGEX",
                 help="Its group finds the number to judge by in the program's output; instead of "
                      "the run time."),
    click.option("--metric-cmd", default="", metavar="COMMAND",
                 help="The same: a shell command that reads the output and prints the number."),
    click.option("--lower-is-better", is_flag=True,
                 help="A lower number of --metric-regex or --metric-cmd is better."),
    click.option("--prepare", default="", metavar="COMMAND", help="Run before each run, untimed."),
    click.option("--cleanup", default="", metavar="COMMAND", help="Run after each run, untimed."),
    click.option("--check", default="", metavar="COMMAND",
                 help="Reads the program's output, and fails if it is wrong."),
    click.option("--input", default="-", metavar="FILE",
                 help="Every run reads FILE on stdin, from its start.  [default: the file that "
                      "stdin is redirected from, else nothing]"),
    click.option("--warmup", type=int, default=1, show_default=True,
                 metavar="N",
                 help="Uncounted runs before the first measured one; a study makes at least one."),
    click.option("--timeout", type=Quantity(), default=600.0, show_default=True,
                 metavar="SECONDS", help="A run that takes longer is killed, and has failed."),
    click.option("--by", type=click.Choice(["turns", "runs"]),
                 help="Measure by short turns of processes that live at once, or by whole runs, "
                      "one after the other.  [default: what suits the program]"),
    click.option("--server", default="", metavar="COMMAND",
                 help="A server to tune, instead of a program. Each run starts it anew; {port} is "
                      "a free port and {dir} an empty directory."),
    click.option("--load", default="", metavar="COMMAND",
                 help="Puts the server under load; may contain {port} and {dir}."),
    click.option("--ready", default="", metavar="COMMAND",
                 help="Succeeds when the server answers.  [default: connect to {port}]"),
    click.option("--ready-port", type=int, metavar="N",
                 help="The same: the TCP port on which the server answers."),
    click.option("--ready-timeout", type=Quantity(), default=60.0, show_default=True,
                 metavar="SECONDS", help="A server that takes longer to answer has failed."),
    click.option("--idle-s", type=Quantity(), default=0.0, metavar="SECONDS",
                 help="Read the memory again this long after the load; see --objective kept.  "
                      "[default: 2 where memory at rest is asked for, else 0]"),
    click.option("--rounds", type=int, metavar="N",
                 help="Repeat load and rest N times, for kept memory and its growth.  "
                      "[default: 1]"),
    click.option("--cpus", type=Quantity(), metavar="N",
                 help="Measure in a container with a quota of N CPUs."),
    click.option("--memory", default="", metavar="SIZE",
                 help="Measure in a container with this memory limit (512M); the kernel kills what "
                      "takes more."),
    click.option("--rests", default="", metavar="REGEX",
                 help="The program is at rest when a line of its stdout matches; a line on its "
                      "stdin lets it go on."),
)  # fmt: skip

_COMMANDS = click.option(
    "--command",
    "commands",
    multiple=True,
    metavar="NAME='PROGRAM ARGS'",
    help="One of several programs, instead of one after --.",
)

private_option = click.option(
    "--private", is_flag=True, help="Do not save the command beside the results."
)

_OF_ONE_RUN = frozenset({"out", "resume", "quiet", "as_json", "dry_run", "private"})
"""Options of a run, which are no part of what is repeated."""

PROGRAM_OPTIONS = frozenset({
    "metric_regex", "metric_cmd", "lower_is_better", "prepare", "cleanup", "check", "input",
    "warmup", "timeout", "server", "load", "ready", "ready_port", "ready_timeout", "idle_s",
    "rounds", "rests", "cpus", "memory", "by",
})  # fmt: skip
"""Their names, as `api.program` takes them."""


class FilledCommand(click.Command):
    """A command none of whose options is a text that says nothing: of a variable that is not set.

    An empty expression would stand for none, and another thing be measured than was meant.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses as ever.

        Raises:
            UsageError: A text that was given is blank.
        """
        rest = super().parse_args(ctx, args)
        for each in self.params:
            value = ctx.params.get(each.name or "")
            is_given = ctx.get_parameter_source(each.name or "") is ParameterSource.COMMANDLINE
            if is_given and isinstance(value, str) and not value.strip():
                raise UsageError(f"{each.opts[0]} is empty; give it a value, or leave it out")
        return rest


class ProgramCommand(FilledCommand):
    """A command that knows whether `--` was given: click does not tell."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Remembers the dashes, then parses as ever."""
        ctx.meta[_DASHES] = "--" in args
        return super().parse_args(ctx, args)


class SplitCommand(FilledCommand):
    """A command whose own words end at `--`: what stands behind it is its program, as `words`.

    They are None where there is no `--`.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses what stands before the dashes."""
        at = args.index("--") if "--" in args else None
        rest = super().parse_args(ctx, args[:at])
        ctx.params["words"] = None if at is None else tuple(args[at + 1 :])
        return rest


def about_program(command: F) -> F:
    """Gives a command the options about programs."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return _COMMANDS(command)


def program_options(command: F) -> F:
    """Gives a command the options about programs, and the words of one as `words`."""
    command = about_program(command)
    words = click.argument(
        "words",
        metavar="[-- PROGRAM [ARGS]...]",
        nargs=-1,
        type=click.UNPROCESSED,
        shell_complete=completion.offer_files,
    )
    return words(command)


def given_words(
    measured: Sequence[object] = (), leave_out: frozenset[str] = _OF_ONE_RUN
) -> tuple[str, ...]:
    """The words of this command line, to be given again: its options stand first.

    Where stdin was redirected from a file, --input names it.
    """
    ctx = click.get_current_context()
    options: list[str] = []
    sides: list[str] = []
    for each in ctx.command.params:
        name = each.name or ""
        is_given = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if not is_given or name == _WORDS or name in leave_out:
            continue
        value = ctx.params[name]
        values = value if isinstance(value, tuple) else (value,)
        texts = [f"{one:g}" if isinstance(one, float) else str(one) for one in values]
        if isinstance(each, click.Option) and each.is_flag:
            options.append((each.opts if value else each.secondary_opts)[0])
        elif isinstance(each, click.Option):
            options += [word for text in texts for word in (each.opts[0], text)]
        else:
            sides += texts
    read = [found for each in measured if (found := getattr(each, "input", None))]
    if read and "--input" not in options:
        options += ["--input", read[0].name]
    own = ctx.params.get(_WORDS)
    return (*options, *sides, *(("--", *own) if own else ()))


def gone_on_with(record: Path) -> Any:
    """What the command beside a record comes to, with the options that are given now.

    Raises:
        UsageError: It was not kept, or another user may have written it.
    """
    ctx, words = click.get_current_context(), api.command_of(record)
    if not words:
        raise UsageError(
            f"{str(record.parent)!r} does not hold the command that is to be resumed; give all of "
            "it again, with --resume"
        )
    at = words.index("--") if "--" in words else len(words)
    again = [*words[:at], *given_words(leave_out=frozenset()), *words[at:]]
    with ctx.command.make_context(ctx.info_name, again, parent=ctx.parent) as resumed:
        return ctx.command.invoke(resumed)


def programs_of(
    words: tuple[str, ...], commands: tuple[str, ...], about: dict[str, Any]
) -> tuple[Program, ...]:
    """The programs of the user's, or the server; empty: there is none.

    Raises:
        UsageError: There are words, but no `--` before them; or the options exclude each other.
    """
    _require_dashes(words)
    if commands and (words or about["server"]):
        raise UsageError(
            "--command, a program after -- and --server exclude each other; of several programs, "
            "give each with --command NAME='PROGRAM ARGS'"
        )
    if commands:
        return api.named_programs(commands, **about)
    return (api.program(words, **about),) if words or about["server"] else ()


def refuse_without_program(
    beside: frozenset[str] = frozenset(),
    why: str = "is for a program of your own, not for --workload",
) -> None:
    """Sees to it that no option about a program was given where there is none.

    Args:
        beside: Names of those that are legal all the same, as workloads have them, too.
        why: What is told of another one.

    Raises:
        UsageError: One was.
    """
    ctx = click.get_current_context()
    for each in ctx.command.params:
        is_given = ctx.get_parameter_source(each.name or "") is ParameterSource.COMMANDLINE
        if each.name in PROGRAM_OPTIONS - beside and is_given:
            raise UsageError(f"{each.opts[0]} {why}")


def _require_dashes(words: tuple[str, ...]) -> None:
    """Sees to it that words are a program, and that there is one where there are dashes."""
    ctx = click.get_current_context()
    if not words and ctx.meta.get(_DASHES):
        raise UsageError(NO_PROGRAM)
    if words and not ctx.meta.get(_DASHES):
        if ctx.info_name == "tune":
            raise no_command(words[0])
        raise UsageError(
            f"{words[0]!r} is no command of hztune and no option "
            "(`hztune --help` lists the commands; a program of your own stands after --)"
        )
