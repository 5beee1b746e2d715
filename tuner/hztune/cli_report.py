"""`hztune report`: a study as one HTML page, or in the browser view of Optuna."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import click

from hztune.errors import UsageError

_DASHBOARD = "optuna-dashboard"


@click.command("report")
@click.argument("folder", metavar="RESULTS", type=click.Path(path_type=Path))
@click.option("--out", "-o", type=click.Path(path_type=Path), metavar="FILE.html",
              help="Where to.  [default: report.html in RESULTS]")  # fmt: skip
@click.option("--dashboard", is_flag=True, help="Show the search in optuna-dashboard instead.")
def report_command(folder: Path, out: Path | None, dashboard: bool) -> None:
    """Write a study as one HTML page that works offline.

    RESULTS is the directory that `hztune tune` wrote. --dashboard makes an Optuna storage of its
    samples (study.journal) and serves it until Ctrl-C.
    """
    if dashboard and out is not None:
        raise UsageError("--out and --dashboard exclude each other; give one of them")
    program = _dashboard() if dashboard else ""
    from hztune import report

    if not dashboard:
        click.echo(report.write(folder, out))
        return
    storage = report.write_storage(folder)
    click.echo(f"serving {storage}; Ctrl-C ends it", err=True)
    sys.stdout.flush()
    os.execv(program, [program, str(storage)])


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
