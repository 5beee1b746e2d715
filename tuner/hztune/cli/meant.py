"""What was probably meant by a word that is no command: a workload, a program, another command."""

from __future__ import annotations

import shlex
import shutil
from difflib import get_close_matches
from pathlib import Path

import click

from hztune import api
from hztune.arguments import workload_name
from hztune.cli import COMMANDS, hztune
from hztune.errors import HztuneError, UsageError


def no_command(word: str) -> UsageError:
    """The error for a word where a command or an option should stand, with what was meant."""
    return UsageError(f"{word!r} is no command of hztune; {_meant(word)}")


def commands_with(option: str) -> list[str]:
    """The commands that have an option, as they are written."""
    ctx = click.Context(hztune)
    known = {name: hztune.get_command(ctx, name) for name in COMMANDS}
    return [
        f"hztune {name}"
        for name, command in known.items()
        if command is not None and any(option in each.opts for each in command.params)
    ]


def _meant(word: str) -> str:
    workloads = _workloads()
    if workload_name(word) in workloads:
        return f"it is a workload: hztune --workload {shlex.quote(word)}"
    if program := _program(word):
        return f"it is a program: hztune -- {shlex.quote(program)}"
    if Path(word).is_file():
        return f"it is a file, and not executable: hztune -- INTERPRETER {shlex.quote(word)}"
    if near := get_close_matches(word, COMMANDS, n=1):
        return f"did you mean hztune {near[0]}? (`hztune --help` lists the commands)"
    if near := get_close_matches(word, workloads, n=1):
        return f"did you mean hztune --workload {near[0]}? (`hztune list workloads` lists them)"
    return "`hztune --help` lists the commands, and a program of your own stands after --"


def _workloads() -> list[str]:
    """The names of the workloads; none where hz was not built."""
    try:
        return [each.name for each in api.workloads()]
    except HztuneError:
        return []


def _program(word: str) -> str:
    """The word as it starts a program: in PATH, or a file; "" where it is none."""
    if shutil.which(word):
        return word
    beside = f"./{word}"
    return beside if "/" not in word and shutil.which(beside) else ""
