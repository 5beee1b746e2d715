"""`hztune report`: a study as one HTML page, or in the browser view of Optuna."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import click

from hztune import api
from hztune.cli.program import Place
from hztune.errors import UsageError

_DASHBOARD = "optuna-dashboard"


@click.command("report")
@click.argument("folder", metavar="RESULTS", type=Place())
@click.option("--out", "-o", type=Place(), metavar="FILE.html",
              help="Where to.  [default: report.html in RESULTS]")  # fmt: skip
@click.option("--dashboard", is_flag=True, help="Show the search in optuna-dashboard instead.")
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
    program = _dashboard()
    path = api.optuna_storage(folder)
    click.echo(f"serving {path}; Ctrl-C ends it", err=True)
    sys.stdout.flush()
    os.execv(program, [program, str(path)])


def _dashboard() -> str:
    """The program of the extra `dashboard`, from this Python's own directory first.

    Raises:
        UsageError: It is not installed.
    """
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    found = shutil.which(_DASHBOARD, path=places)
    if found is None:
        raise UsageError(
            f"{_DASHBOARD} is not installed; install it with: pip install 'hztune[dashboard]'"
        )
    return found
