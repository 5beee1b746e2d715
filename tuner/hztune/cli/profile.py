"""Commands that read a profile: show it, export it, run a program under it."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import click

from hztune import export, files, profile
from hztune.cli import completion
from hztune.errors import UsageError
from hztune.export.provenance import provenance
from hztune.profile import Profile

_SAMPLES = "samples"
"""The form of a results directory; all others are of a profile."""


def _formats() -> list[str]:
    return [*(each.name for each in export.FORMATS), _SAMPLES]


_profile_argument = click.argument(
    "profile_path", metavar="PROFILE", type=click.Path(path_type=Path)
)


@click.command("show")
@_profile_argument
@click.option("--json", "as_json", is_flag=True, help="Print the profile as JSON.")
def show_command(profile_path: Path, as_json: bool) -> None:
    """Print what a profile claims, and its parameters."""
    shown = profile.load(profile_path)
    click.echo(profile.dumps(shown) if as_json else _described(shown), nl=not as_json)


@click.command("export")
@_profile_argument
@click.option("--format", "format_name", required=True, metavar="FORMAT",
              shell_complete=completion.offer_names(_formats),
              help="The form to write; `hztune list formats` explains them.")  # fmt: skip
@click.option("--output", "-o", metavar="FILE", default="-", shell_complete=completion.offer_files,
              help="Where to; the default is stdout.")  # fmt: skip
def export_command(profile_path: Path, format_name: str, output: str) -> None:
    """Print a profile as a shell, container or compiler reads it.

    With --format samples and a results directory as PROFILE: every measurement of its study as
    lines of JSON, also while it runs, or when it was killed.
    """
    if format_name == _SAMPLES:
        _write_text(_samples_of(profile_path), output)
        return
    form = export.find(format_name)
    tuned = profile.load(profile_path)
    text = export.render(tuned, form.name)
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
    tuned = profile.load(profile_path)
    program = shutil.which(words[0])
    if program is None:
        raise UsageError(f"there is no program {words[0]!r} to run; give a path, or a name in PATH")
    _warn(tuned)
    environment = _environment_under(tuned)
    sys.stdout.flush()
    os.execve(program, list(words), environment)


def _write_text(text: str, output: str, *, executable: bool = False) -> None:
    """Writes what was exported to a file, or to stdout."""
    if output == "-":
        click.echo(text, nl=False)
    else:
        files.write_whole(Path(output), text, executable=executable)


def _samples_of(folder: Path) -> str:
    """Every measurement of a results directory, as lines of JSON."""
    from hztune.store.local import samples

    return b"".join(samples(folder)).decode()


def _environment_under(tuned: Profile) -> dict[str, str]:
    """This process's environment, without the allocator's old settings and with the profile's."""
    adapter = tuned.adapter
    found = adapter.installed()
    made = adapter.environment(tuned.config, found)
    kept = {key: value for key, value in os.environ.items() if key not in adapter.variables()}
    others = os.environ.get("LD_PRELOAD")
    if "LD_PRELOAD" in made and others:
        made["LD_PRELOAD"] += f":{others}"
    return {**kept, **made}


def _warn(tuned: Profile) -> None:
    """Names in what this machine is not the one that the profile was proved on."""
    from hztune import machine_diff

    for difference in machine_diff.from_proved(tuned):
        click.echo(f"hztune: warning: {difference}", err=True)


def _described(shown: Profile) -> str:
    """The profile for people: the claim first, then one line per parameter."""
    lines = provenance(shown, "unset what `hztune export --format env` sets")[:-1]
    knobs = {knob.name: knob for knob in shown.adapter.knobs(shown.allocator.as_installed())}
    width = max((len(name) for name, _ in shown.params), default=0)
    rows = [
        f"  {name:{width}}  {value}  "
        + (f"(default {knobs[name].default})" if name in knobs else "(no parameter any more)")
        for name, value in shown.params
    ]
    title = "parameters:" if rows else "parameters: all at their defaults"
    return "\n".join([*lines, title, *rows])
