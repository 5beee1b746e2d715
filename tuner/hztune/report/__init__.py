"""A study as one HTML page that needs nothing but itself: no script, no network, light and dark.

page.html is the page, words.html its sentences and charts.html its pictures. All text is escaped by
jinja2: names of workloads, programs and machines come from outside.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment
from markupsafe import Markup

from hztune import export, files
from hztune.profile import PROFILE, TOLD_FROM, ratio_text
from hztune.report import charts, words
from hztune.report.dashboard import write_storage
from hztune.rests import MEMORIES, Rested
from hztune.result import figures
from hztune.result.kept import slope_words
from hztune.templates import templates_in

__all__ = ["PAGE", "memory_chart", "render", "templates", "write", "write_storage"]

PAGE = "report.html"
HERE = Path(__file__).parent


def render(folder: Path) -> str:
    found = figures.read(folder)
    page = templates().get_template("page.html")
    return page.render(
        found=found,
        account=found.result.account,
        profile=found.result.profile,
        place=shlex.quote(str(folder / PROFILE)),
        command=shlex.join(["hztune", "tune", *found.command]),
        forms=export.FORMATS,
    )


def write(folder: str | Path, out: str | Path | None = None) -> Path:
    """Writes the study in a results directory as one HTML page, and returns the page's path.

    `out`: None: report.html in `folder`. UsageError: no study in it has ended. HztuneError: its
    samples are damaged, or the file system refused.
    """
    path = Path(folder) / PAGE if out is None else Path(out)
    files.write_whole(path, render(Path(folder)))
    return path


def memory_chart(default: Sequence[Rested], tuned: Sequence[Rested], width: float) -> str:
    """Memory of processes over time as an SVG, which the rules of page.css colour."""
    template = templates().from_string(
        '{% from "charts.html" import memory with context %}{{ memory(width, default, tuned) }}'
    )
    return template.render(width=width, default=default, tuned=tuned)


@cache
def templates() -> Environment:
    made = templates_in(HERE)
    made.globals |= {"words": words, "axes": charts, "memories": MEMORIES}
    made.globals |= {"ratio": ratio_text, "slope_words": slope_words, "told_from": TOLD_FROM}
    made.filters |= {
        "cell": _cell,
        "fitted": _fitted,
        "count": words.count_words,
        "px": "{:.5g}".format,
    }
    made.filters["polyline"] = lambda points: "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return made


def _fitted(text: str, room: float, beside: str | None) -> str:
    letters = int(room / charts.CHARACTER - (len(beside) + 2 if beside is not None else 0))
    return text if len(text) <= letters else text[: max(1, letters - 1)] + "…"


def _cell(text: str | int) -> str | int:
    """A cell; the interval behind a number gets a line of its own where the page is narrow."""
    number, bracket, interval = str(text).partition(" [")
    if isinstance(text, (int, Markup)) or not bracket:
        return text
    return Markup('{} <span class="interval">[{}</span>').format(number, interval)
