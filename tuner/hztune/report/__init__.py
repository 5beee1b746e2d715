"""A study as one HTML page that needs nothing but itself: no script, no network, light and dark.

page.html is the page and charts.html its pictures. All text is escaped by jinja2: names of
workloads, programs and machines come from outside.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from hztune import export, files
from hztune.profile import ratio_text
from hztune.progress import duration
from hztune.report import charts, words
from hztune.report.dashboard import write_storage
from hztune.report.page import Page
from hztune.rests import MEMORIES, Rested
from hztune.result import figures
from hztune.result.kept import slope_words

__all__ = ["PAGE", "memory_chart", "render", "write", "write_storage"]

PAGE = "report.html"
HERE = Path(__file__).parent


def render(folder: Path) -> str:
    """Returns the page about the study in a results directory.

    Raises:
        UsageError: There is no finished study in it.
        HztuneError: Its samples are damaged.
    """
    found = figures.read(folder)
    page, verdict = Page(found), found.profile.claim.verdict
    account = found.result.account if found.result else None
    tells_why = account and (verdict != "improved" or found.front)
    return (
        _templates()
        .get_template("page.html")
        .render(
            found=found,
            page=page,
            profile=found.profile,
            verdict=verdict,
            account=account,
            reason=account.why if account and tells_why else "",
            control=words.control_words(found.profile),
            place=shlex.quote(str(found.place)),
            program=page.program,
            command=shlex.join(["hztune", "tune", *found.command]),
            hyperfine=page.hyperfine,
            forms=export.FORMATS,
        )
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


def memory_chart(default: Sequence[Rested], tuned: Sequence[Rested], width: float) -> str:
    """Memory of processes over time as an SVG, which the rules of page.css colour."""
    template = _templates().from_string(
        '{% from "charts.html" import memory with context %}{{ memory(width, default, tuned) }}'
    )
    return template.render(width=width, default=default, tuned=tuned)


@cache
def _templates() -> Environment:
    made = Environment(
        loader=FileSystemLoader(HERE),
        extensions=["jinja2.ext.do"],
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {"words": words, "axes": charts, "duration": duration, "memories": MEMORIES}
    made.globals |= {"ratio": ratio_text, "slope_words": slope_words}
    made.filters |= {"cell": _cell, "fitted": _fitted, "polyline": _polyline, "px": _px}
    return made


def _px(value: float) -> str:
    return f"{value:.5g}"


def _polyline(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _fitted(text: str, room: float, beside: str | None) -> str:
    """A label, cut where there is no room for it beside a note."""
    letters = int(room / charts.CHARACTER - (len(beside) + 2 if beside is not None else 0))
    return text if len(text) <= letters else text[: max(1, letters - 1)] + "…"


def _cell(text: str | int) -> str | int:
    """A cell; the interval behind a number gets a line of its own where the page is narrow."""
    if not isinstance(text, str):
        return text
    number, bracket, interval = text.partition(" [")
    if isinstance(text, Markup) or not bracket:
        return text
    return Markup('{} <span class="interval">[{}</span>').format(number, interval)
