"""The user's own program on a command line: what stands after `--`, and the options about it."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from hztune import api
from hztune.arguments import workload_name
from hztune.cli import COMMANDS
from hztune.cli.options import FILES, PROGRAM_OPTIONS
from hztune.errors import HztuneError, UsageError

if TYPE_CHECKING:
    from hztune.measure.program import Program

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


def gone_on_with(record: Path) -> Any:
    """What the command beside a record comes to, with the options that are given now."""
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


# ---- what was meant by a word that is no command -------------------------------------------------


def no_command(word: str, after: str = "tune") -> UsageError:
    if after.rpartition(" ")[2] == "tune":
        return UsageError(f"{word!r} is no command of hztune; {_meant(word)}")
    return UsageError(
        f"{word!r} is no command of hztune and no option "
        "(`hztune --help` lists the commands; a program of your own stands after --)"
    )


def _meant(word: str) -> str:
    try:
        workloads = [each.name for each in api.workloads()]
    except HztuneError:  # hz was not built
        workloads = []
    if workload_name(word) in workloads:
        return f"it is a workload: hztune --workload {shlex.quote(word)}"
    beside = f"./{word}" if "/" not in word else word
    if program := next((each for each in (word, beside) if shutil.which(each)), ""):
        return f"it is a program: hztune -- {shlex.quote(program)}"
    if Path(word).is_file():
        return f"it is a file, and not executable: hztune -- INTERPRETER {shlex.quote(word)}"
    if near := get_close_matches(word, COMMANDS, n=1):
        return f"did you mean hztune {near[0]}? (`hztune --help` lists the commands)"
    if near := get_close_matches(word, workloads, n=1):
        return f"did you mean hztune --workload {near[0]}? (`hztune list workloads` lists them)"
    return "`hztune --help` lists the commands, and a program of your own stands after --"
