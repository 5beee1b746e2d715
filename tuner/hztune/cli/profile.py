"""Commands that read what a study left: show, export and run a profile; its page and history."""

from __future__ import annotations

import json
import os
import shutil
import sys
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from hztune import api, files
from hztune.arguments import printable
from hztune.cli.options import FILES, JSON, FilledCommand, argument, flag, offer, option
from hztune.errors import UsageError

if TYPE_CHECKING:
    from hztune.profile import Profile

_POLICY = "policy"  # a form of a directory, not of a profile
_DASHBOARD = "optuna-dashboard"
_PROFILE = argument("profile_path", "PROFILE")


@click.command("show", cls=FilledCommand, params=[
    _PROFILE, flag("--json", "Print the profile as JSON.", "as_json"),
])  # fmt: skip
def show_command(profile_path: Path, as_json: bool) -> None:
    """Print what a profile claims, and its parameters."""
    shown = api.load_profile(profile_path)
    if as_json:
        click.echo(api.profile_json(shown), nl=False)
        return
    defaults = {k.name: k.default for k in shown.adapter.knobs(shown.allocator.as_installed())}
    width = max(map(len, shown.params), default=0)
    click.echo("\n".join(api.profile_lines(shown)))
    click.echo("parameters:" if shown.params else "parameters: all at their defaults")
    for name, value in shown.params.items():
        known = f"default {defaults[name]}" if name in defaults else "no parameter any more"
        click.echo(f"  {name:{width}}  {value}  ({known})")


@click.command("export", cls=FilledCommand, params=[
    _PROFILE,
    option("--format FORMAT", "The form to write; `hztune list formats` explains them.",
           "form", required=True,
           shell_complete=offer(lambda: [*(each.name for each in api.formats()), _POLICY])),
    option("--output -o FILE", "Where to.  [default: stdout]", default="-", type=FILES),
])  # fmt: skip
def export_command(profile_path: Path, form: str, output: str) -> None:
    """Convert a profile for a shell, a container or a compiler.

    With --format policy and a front's directory, the members as arms for `hztune govern`.
    """
    executable = False
    if form == _POLICY:
        policy = api.policy_of_front(profile_path)  # of names that may be another's
        text = "".join(f"{printable(line)}\n" for line in policy.splitlines())
    else:
        executable, tuned = api.find_format(form).executable, api.load_profile(profile_path)
        text = api.export(tuned, form)
        _warn(tuned)
    if output == "-":
        click.echo(text, nl=False)
    else:
        files.write_whole(Path(output), text, mode=0o777 if executable else 0o666)


@click.command("run", context_settings={"ignore_unknown_options": True}, params=[
    option("--govern POLICY", "Govern it, too; see `hztune govern`."),
    argument("words", "[PROFILE] -- PROGRAM [ARGS]...", nargs=-1, required=True, type=FILES),
])  # fmt: skip
def run_command(words: tuple[str, ...], govern: str) -> None:
    """Run a program under a profile's allocator and parameters.

    The program replaces hztune: its process id, signals and exit status are its own. With --govern
    PROFILE may be left out; a process of its own steers the program, and writes to its stderr.
    """
    environment, tuned = dict(os.environ), None
    if not govern or words[0].endswith(".json"):
        tuned = api.load_profile(Path(words[0]))
        words, environment = words[1:], api.environment(tuned)
    program = shutil.which(words[0]) if words else None
    if program is None:
        named = repr(words[0]) if words else "after the profile"
        raise UsageError(
            f"there is no program {named} to run: give PROGRAM as a path, or a name in PATH"
        )
    if tuned is not None:
        _warn(tuned)
    sys.stdout.flush()
    if govern:
        environment = api.governed_child(govern, environment)
    os.execve(program, list(words), environment)


def _warn(tuned: Profile) -> None:
    for text in [*(caution.text for caution in tuned.cautions), *api.differences(tuned)]:
        click.echo(f"hztune: warning: {text}", err=True)


@click.command("report", cls=FilledCommand, params=[
    argument("folder", "RESULTS"),
    option("--out -o FILE.html", "Where to.  [default: report.html in RESULTS]"),
    flag("--dashboard", "Show the search in optuna-dashboard instead."),
])  # fmt: skip
def report_command(folder: Path, out: Path | None, dashboard: bool) -> None:
    """Write a study as one HTML page that works offline.

    RESULTS is the directory that `hztune tune` wrote. --dashboard makes an Optuna storage of its
    samples (study.journal) and serves it until Ctrl-C, also while the study runs.
    """
    if not dashboard:
        click.echo(api.report(folder, out))
        return
    if out is not None:
        raise UsageError("--out and --dashboard exclude each other; give one of them")
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    program = shutil.which(_DASHBOARD, path=places)
    if program is None:
        raise UsageError(
            f"{_DASHBOARD} is not installed; install it with: pip install 'hztune[dashboard]'"
        )
    path = api.optuna_storage(folder)
    click.echo(f"serving {path}; Ctrl-C ends it", err=True)
    sys.stdout.flush()
    os.execv(program, [program, str(path)])


@click.command("history", cls=FilledCommand, params=[
    argument("profile_path", "[PROFILE]", required=False), JSON,
])  # fmt: skip
def history_command(profile_path: Path | None, as_json: bool) -> None:
    """Print what verifications found, and what changed.

    Of PROFILE, or of all profiles. Each user's history is in $XDG_STATE_HOME/hztune/history.jsonl.
    """
    tuned = api.load_profile(profile_path) if profile_path is not None else None
    checks, unreadable = api.history(tuned)
    if unreadable:
        lines = "1 line is" if unreadable == 1 else f"{unreadable} lines are"
        click.echo(f"hztune: {lines} left out of the history: no check can be read there", err=True)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(checks), indent=2))
        return
    if not checks:
        click.echo("no profile was measured again yet: `hztune verify PROFILE` does that")
    by_profile = sorted(checks, key=lambda check: (check.label, check.profile))
    for _, several in groupby(by_profile, key=lambda check: check.profile):
        own = list(several)
        click.echo(f"{own[0].label}  ({own[0].profile})")
        if (claimed := own[0].claimed) is not None:
            click.echo(f"  claimed           {claimed.text}")
        for before, check in zip([None, *own[:-1]], own, strict=True):
            click.echo(f"  {check.words}")
            for change in api.changes(before, check.here) if before is not None else ():
                click.echo(f"      {change}")
