"""Options and arguments as rows of tables; the user's own program, which stands after `--`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from click.types import FloatParamType

from hztune import api
from hztune.arguments import printable
from hztune.errors import UsageError

if TYPE_CHECKING:
    from hztune.measure.program import Program


class Place(click.Path):
    """What names a file or a directory: an empty name is not this directory."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "" and param is not None:
            words = isinstance(param, click.Argument) and param.metavar
            name = words.strip("[]") if words else param.opts[0]
            raise UsageError(f"{name} is empty; give it a value, or leave it out")
        return super().convert(value, param, ctx)


class Quantity(FloatParamType):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        with suppress(click.BadParameter):
            number = super().convert(value, param, ctx)
            if math.isfinite(number):
                return number
        self.fail(f"{value!r} is not a number; legal is one such as 2 or 0.5", param, ctx)


_KINDS: dict[str, Any] = {  # by what stands for their value; all others are texts
    "N": int,
    "BYTES": int,
    "DAYS": int,
    "SECONDS": Quantity(),
    "DIR": Place(),
    "FILE": Place(),
    "FILE.html": Place(),
}


def flag(names: str, told: str, to: str = "") -> click.Option:
    """An option without a value: "--quiet -q", and its help; `to` names its argument."""
    return click.Option([*names.split(), *filter(None, [to])], is_flag=True, help=told)


def option(spec: str, told: str, to: str = "", **more: Any) -> click.Option:
    """An option with a value: "--threads -t N", and its help; a text that is not given is ""."""
    words = spec.split(" ")
    names = [word for word in words if word.startswith("-")]
    metavar = " ".join(words[len(names) :]) or None
    more.setdefault("type", _KINDS.get(metavar or "", str))
    if more["type"] is str and not {"multiple", "required"} & more.keys():
        more.setdefault("default", "")
    more["show_default"] = bool(more.get("default")) and "[default: " not in told
    return click.Option([*names, *filter(None, [to])], metavar=metavar, help=told, **more)


def argument(name: str, metavar: str, **more: Any) -> click.Argument:
    """A word that is no option: a file, unless its type says otherwise."""
    return click.Argument([name], **{"metavar": metavar, "type": Place(), **more})


def pid_option(told: str, *, required: bool = False) -> click.Option:
    return option("--pid N", told, type=click.IntRange(min=1), required=required)


JSON = flag("--json", "Print JSON.", "as_json")
QUIET = flag("--quiet -q", "Show no progress.")
PRIVATE = flag("--private", "Do not save the command beside the results.")
SEED = option("--seed", "Seed of all random choices.", default=1, type=click.IntRange(min=0))


def print_lines(lines: Iterable[str], *, err: bool = False) -> None:
    """Prints lines, and nothing in them that steers a terminal."""
    if shown := [*map(printable, lines)]:
        click.echo("\n".join(shown), err=err)


def print_answer(as_json: bool, value: object, lines: Iterable[str]) -> None:
    if as_json:
        click.echo(json.dumps(value, indent=2))
    else:
        print_lines(lines)


# ---- what a shell completes; tuner/share holds the scripts that ask for it -----------------------

FILES = click.Path()  # the type of words of which each may be a file, as a shell completes them


def offer(known: Callable[[], Iterable[str]], *, files: bool = False) -> Callable[..., list[Any]]:
    """Names of a list that is made when it is asked for; after a comma, the next name."""

    def offered(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        before, comma, begun = incomplete.rpartition(",")
        names = [f"{before}{comma}{name}" for name in known() if name.startswith(begun)]
        fitting = [CompletionItem(name) for name in names]
        return [*fitting, *(FILES.shell_complete(ctx, param, incomplete) if files else [])]

    return offered


def workload_names() -> list[str]:
    return [each.text.removesuffix("FILE") for each in api.workloads()]


# ---- the user's own program ----------------------------------------------------------------------

_OF_PROGRAMS = (
    option("--metric-regex REGEX",
           "Its group finds the number to judge by in the program's output; instead of the run "
           "time."),
    option("--metric-cmd COMMAND",
           "The same: a shell command that reads the output and prints the number."),
    flag("--lower-is-better", "A lower number of --metric-regex or --metric-cmd is better."),
    option("--prepare COMMAND", "Run before each run, untimed."),
    option("--cleanup COMMAND", "Run after each run, untimed."),
    option("--check COMMAND", "Reads the program's output, and fails if it is wrong."),
    option("--input FILE",
           "Every run reads FILE on stdin, from its start.  [default: the file that stdin is "
           "redirected from, else nothing]", default="-", type=str),
    option("--warmup N",
           "Uncounted runs before the first measured one; a study makes at least one.", default=1),
    option("--timeout SECONDS", "A run that takes longer is killed, and has failed.",
           default=600.0),
    option("--by",
           "Measure by short turns of processes that live at once, or by whole runs, one after "
           "the other.  [default: what suits the program]", type=click.Choice(["turns", "runs"])),
    option("--server COMMAND",
           "A server to tune, instead of a program. Each run starts it anew; {port} is a free port "
           "and {dir} an empty directory."),
    option("--load COMMAND", "Puts the server under load; may contain {port} and {dir}."),
    option("--ready COMMAND", "Succeeds when the server answers.  [default: connect to {port}]"),
    option("--ready-port N", "The same: the TCP port on which the server answers."),
    option("--ready-timeout SECONDS", "A server that takes longer to answer has failed.",
           default=60.0),
    option("--idle-s SECONDS",
           "Read the memory again this long after the load; see --objective kept.  [default: 2 "
           "where memory at rest is asked for, else 0]", default=0.0),
    option("--rounds N",
           "Repeat load and rest N times, for kept memory and its growth.  [default: 1]"),
    option("--cpus N", "Measure in a container with a quota of N CPUs.", type=Quantity()),
    option("--memory SIZE",
           "Measure in a container with this memory limit (512M); the kernel kills what takes "
           "more."),
    option("--rests REGEX",
           "The program is at rest when a line of its stdout matches; a line on its stdin lets it "
           "go on."),
)  # fmt: skip

PROGRAM_OPTIONS = frozenset(str(each.name) for each in _OF_PROGRAMS)  # as `api.program` takes them

ABOUT_PROGRAMS = (  # options of commands that measure a program of the user's
    option("--command NAME='PROGRAM ARGS'", "One of several programs, instead of one after --.",
           "commands", multiple=True),
    *_OF_PROGRAMS,
)  # fmt: skip


# ---- what stands after -- ------------------------------------------------------------------------


_WORDS = "words"

_OF_ONE_RUN = frozenset({"out", "resume", "quiet", "as_json", "dry_run", "private"})
"""Options of a run, which are no part of what is repeated."""


def is_given(name: str | None) -> bool:
    source = click.get_current_context().get_parameter_source(name or "")
    return source is ParameterSource.COMMANDLINE


class FilledCommand(click.Command):
    """Refuses an option that is an empty text, as of an unset variable: it would stand for none."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        for each in self.params:
            value = ctx.params.get(each.name or "")
            source = ctx.get_parameter_source(each.name or "")
            is_blank = isinstance(value, str) and not value.strip()
            if is_blank and source is ParameterSource.COMMANDLINE:
                raise UsageError(f"{each.opts[0]} is empty; give it a value, or leave it out")
        return rest


class ProgramCommand(FilledCommand):
    """A command whose own words end at `--`: what stands behind it is its program, as `words`."""

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- PROGRAM [ARGS]...]"]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ctx.allow_extra_args = True
        strays = super().parse_args(ctx, args[:at])
        ctx.params[_WORDS] = tuple(args[at + 1 :])
        if not ctx.resilient_parsing:
            if strays:
                from hztune.cli import no_command

                raise no_command(strays[0], ctx.info_name or "")
            if args[at:] == ["--"]:
                raise UsageError("there is no program after --; write it and its arguments there")
        return strays

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        files = FILES.shell_complete(ctx, self.params[0], incomplete)
        return [*super().shell_complete(ctx, incomplete), *files]


def given_words(
    measured: Sequence[object] = (), leave_out: frozenset[str] = _OF_ONE_RUN
) -> tuple[str, ...]:
    """The words of this command line, to be given again; a redirected stdin stands as --input."""
    ctx = click.get_current_context()
    options: list[str] = []
    sides: list[str] = []
    for each in ctx.command.params:
        name = each.name or ""
        if not is_given(name) or name == _WORDS or name in leave_out:
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


def gone_on_with(out: Path | None, record: str) -> Any:
    """What the command beside a record comes to, with the options that are given now."""
    if out is None:
        raise UsageError("--resume goes on with what is in --out DIR: give that, too")
    ctx, words = click.get_current_context(), api.command_of(out / record)
    if not words:
        what = "does not hold its command" if out.is_dir() else "is no directory"
        raise UsageError(f"{str(out)!r} {what}; give the whole command again, with --resume")
    at = words.index("--") if "--" in words else len(words)
    again = [*words[:at], *given_words(leave_out=frozenset()), *words[at:]]
    with ctx.command.make_context(ctx.info_name, again, parent=ctx.parent) as resumed:
        return ctx.command.invoke(resumed)


def programs_of(
    words: tuple[str, ...], commands: tuple[str, ...], about: dict[str, Any]
) -> tuple[Program, ...]:
    if commands and (words or about["server"]):
        raise UsageError(
            "--command, a program after -- and --server exclude each other; of several programs, "
            "give each with --command NAME='PROGRAM ARGS'"
        )
    if commands:
        return api.named_programs(commands, api.program(("{}",), **about))
    return (api.program(words, **about),) if words or about["server"] else ()


def refuse_without_program(
    beside: frozenset[str] = frozenset(),
    why: str = "is for a program of your own, not for --workload",
) -> None:
    """Raises UsageError for an option about a program without one, but for those in `beside`."""
    for each in click.get_current_context().command.params:
        if each.name in PROGRAM_OPTIONS - beside and is_given(each.name):
            raise UsageError(f"{each.opts[0]} {why}")
