"""A study as one HTML page that needs nothing but itself: no script, no network, light and dark."""

from __future__ import annotations

from importlib.resources import files as resources
from pathlib import Path
from string import Template

from hztune import files
from hztune.report.dashboard import write_storage
from hztune.report.markup import join
from hztune.report.sections import body
from hztune.report.words import verdict_words
from hztune.result import figures

__all__ = ["PAGE", "render", "write", "write_storage"]

PAGE = "report.html"


def render(folder: Path) -> str:
    """Returns the page about the study in a results directory.

    Raises:
        UsageError: There is no finished study in it.
        HztuneError: Its samples are damaged.
    """
    found = figures.read(folder)
    here = resources(__package__)
    return Template((here / "page.html").read_text()).substitute(
        title=join(verdict_words(found.profile)),
        style=(here / "page.css").read_text(),
        body=body(found),
    )


def write(folder: Path, out: Path | None = None) -> Path:
    """Writes the page, beside the samples unless `out` says where, and returns its path.

    Raises:
        UsageError: There is no finished study in `folder`.
        HztuneError: Its samples are damaged, or the file system refused.
    """
    path = out if out is not None else folder / PAGE
    files.write_whole(path, render(folder))
    return path
