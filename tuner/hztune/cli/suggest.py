"""`hztune suggest`: what is worth measuring of a program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from hztune import api
from hztune.arguments import parse_duration
from hztune.cli.lines import print_lines
from hztune.cli.program import Place, ProgramCommand, program_options, programs_of
from hztune.errors import UsageError
from hztune.progress import reporter

_HELP = """Name three measurements of a program worth making.

Runs the program twice, unchanged and with its calls recorded, and stops each run after --for.
A server is observed under its load. Each measurement is a command to paste, with its reason.
Nothing is compared or claimed. Earlier profiles of this machine are listed, too.

\b
hztune suggest -- ./program its arguments
hztune suggest --server 'redis-server --port {port}' --load '...'
"""


@click.command("suggest", cls=ProgramCommand, help=_HELP)
@click.option("--for", "duration", default="5s", show_default=True, metavar="TIME",
              help="Time for each of the two runs.")  # fmt: skip
@click.option("--profiles", default="hztune-results", show_default=True, metavar="DIR",
              type=Place(), help="Where earlier profiles are.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
@program_options
def suggest_command(
    duration: str,
    profiles: Path,
    as_json: bool,
    quiet: bool,
    words: tuple[str, ...],
    commands: tuple[str, ...],
    **about: Any,
) -> None:
    """`hztune suggest`."""
    seconds = parse_duration(duration, "--for")
    programs = programs_of(words, commands, about)
    if len(programs) != 1:
        raise UsageError(
            f"{'there is nothing to look at' if not programs else 'give one program'}: "
            "hztune suggest -- ./program, or --server COMMAND --load COMMAND"
        )
    given = click.get_current_context().get_parameter_source("profiles")
    if given is click.core.ParameterSource.COMMANDLINE and not profiles.is_dir():
        raise UsageError(f"--profiles {str(profiles)!r} is no folder")
    with reporter(quiet=quiet) as display:
        found = api.suggest(programs[0], seconds=seconds, profiles=profiles, reporter=display)
    if as_json:
        click.echo(json.dumps(api.suggestion_json(found), indent=2))
    else:
        print_lines(api.suggestion_text(found))
