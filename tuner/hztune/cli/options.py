"""Options and arguments as rows of tables: their types, and what a shell completes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from click.types import FloatParamType

from hztune import api
from hztune.arguments import printable
from hztune.errors import UsageError


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
