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
@click.argument("folder", metavar="[RESULTS]", required=False, type=Place())
@click.option("--out", "-o", type=Place(), metavar="FILE.html",
              help="Where to.  [default: report.html in RESULTS]")  # fmt: skip
@click.option("--dashboard", is_flag=True, help="Show the search in optuna-dashboard instead.")
@click.option("--storage", metavar="URL", help="Of a study that several workers share.")
@click.option("--study", metavar="NAME", help="Its name, as given to `hztune tune`.")
def report_command(
    folder: Path | None, out: Path | None, dashboard: bool, storage: str | None, study: str | None
) -> None:
    """Write a study as one HTML page that works offline.

    RESULTS is the directory that `hztune tune` wrote. --dashboard makes an Optuna storage of its
    samples (study.journal) and serves it until Ctrl-C, also while the study runs; with --storage
    and --study, of a shared study.
    """
    _refuse(folder, out, dashboard, storage, study)
    program = _dashboard() if dashboard else ""
    if not dashboard:
        assert folder is not None  # or it was refused
        click.echo(api.report(folder, out))
        return
    path = _copied(folder, storage, study)
    click.echo(f"serving {path}; Ctrl-C ends it", err=True)
    sys.stdout.flush()
    os.execv(program, [program, str(path)])


def _refuse(
    folder: Path | None, out: Path | None, dashboard: bool, storage: str | None, study: str | None
) -> None:
    """Sees to it that one study is named.

    Raises:
        UsageError: It is not, or something does not go with the rest.
    """
    if dashboard and out is not None:
        raise UsageError("--out and --dashboard exclude each other; give one of them")
    if bool(storage) != bool(study):
        raise UsageError("--storage URL and --study NAME belong together; give both")
    if storage and not dashboard:
        raise UsageError(
            "--storage is for --dashboard; the page is made from the results directory that "
            "`hztune tune` or `hztune worker --out DIR` writes at the end"
        )
    if folder is None and not storage:
        raise UsageError("give RESULTS, the directory that `hztune tune` wrote")


def _copied(folder: Path | None, storage: str | None, study: str | None) -> Path:
    """The Optuna storage with what the study has measured by now."""
    if storage and study:
        return api.optuna_storage(api.study_address(storage, study), folder)
    assert folder is not None  # or it was refused
    return api.optuna_storage(folder)


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
