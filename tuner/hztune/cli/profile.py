"""Commands that read a profile: show it, export it, run a program under it."""

from __future__ import annotations

import csv
import io
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hztune import api, files
from hztune.cli import completion
from hztune.cli.program import Place
from hztune.errors import UsageError

if TYPE_CHECKING:
    from hztune.profile import Profile

_SAMPLES, _CSV = "samples", "csv"
"""The forms of a results directory; all others are of a profile."""


def _formats() -> list[str]:
    return [*(each.name for each in api.formats()), _SAMPLES, _CSV]


_profile_argument = click.argument("profile_path", metavar="PROFILE", type=Place())


@click.command("show")
@_profile_argument
@click.option("--json", "as_json", is_flag=True, help="Print the profile as JSON.")
def show_command(profile_path: Path, as_json: bool) -> None:
    """Print what a profile claims, and its parameters."""
    shown = api.load_profile(profile_path)
    click.echo(api.profile_json(shown) if as_json else _described(shown), nl=not as_json)


@click.command("export")
@_profile_argument
@click.option("--format", "format_name", required=True, metavar="FORMAT",
              shell_complete=completion.offer_names(_formats),
              help="The form to write; `hztune list formats` explains them.")  # fmt: skip
@click.option("--output", "-o", metavar="FILE", default="-", shell_complete=completion.offer_files,
              help="Where to; the default is stdout.")  # fmt: skip
def export_command(profile_path: Path, format_name: str, output: str) -> None:
    """Convert a profile for a shell, a container or a compiler.

    With --format samples and a results directory as PROFILE, prints every measurement of its study
    as lines of JSON, also of a running or killed study; with --format csv, its turns as a table.
    """
    if format_name == _SAMPLES:
        _write_text(b"".join(api.samples(profile_path)).decode(), output)
        return
    if format_name == _CSV:
        _write_text(_table(api.sample_columns(profile_path)), output)
        return
    form = api.find_format(format_name)
    tuned = api.load_profile(profile_path)
    text = api.export(tuned, form.name)
    _warn(tuned)
    _write_text(text, output, executable=form.executable)


@click.command("run", context_settings={"ignore_unknown_options": True})
@_profile_argument
@click.argument("words", metavar="-- PROGRAM [ARGS]...", nargs=-1, required=True,
                type=click.UNPROCESSED, shell_complete=completion.offer_files)  # fmt: skip
def run_command(profile_path: Path, words: tuple[str, ...]) -> None:
    """Run a program under a profile's allocator and parameters.

    The program replaces hztune: its process id, signals and exit status are its own.
    """
    tuned = api.load_profile(profile_path)
    program = shutil.which(words[0])
    if program is None:
        raise UsageError(f"there is no program {words[0]!r} to run; give a path, or a name in PATH")
    _warn(tuned)
    environment = api.environment(tuned)
    sys.stdout.flush()
    os.execve(program, list(words), environment)


def _write_text(text: str, output: str, *, executable: bool = False) -> None:
    """Writes what was exported to a file, or to stdout."""
    if output == "-":
        click.echo(text, nl=False)
    else:
        files.write_whole(Path(output), text, mode=0o777 if executable else 0o666)


def _table(columns: Mapping[str, Sequence[object]]) -> str:
    """Columns as CSV; nothing stands where there is no value."""
    text = io.StringIO()
    written = csv.writer(text, lineterminator="\n")
    written.writerow(columns)
    written.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()


def _warn(tuned: Profile) -> None:
    """Names what the profile may do to other programs, and in what this machine is another one."""
    for caution in tuned.cautions:
        click.echo(f"hztune: warning: {caution.text}", err=True)
    for difference in api.differences(tuned):
        click.echo(f"hztune: warning: {difference}", err=True)


def _described(shown: Profile) -> str:
    """The profile for people: the claim first, then one line per parameter."""
    lines = api.profile_lines(shown)
    knobs = {knob.name: knob for knob in shown.adapter.knobs(shown.allocator.as_installed())}
    width = max((len(name) for name in shown.params), default=0)
    rows = [
        f"  {name:{width}}  {value}  "
        + (f"(default {knobs[name].default})" if name in knobs else "(no parameter any more)")
        for name, value in shown.params.items()
    ]
    title = "parameters:" if rows else "parameters: all at their defaults"
    return "\n".join([*lines, title, *rows])
