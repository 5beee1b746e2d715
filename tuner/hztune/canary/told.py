"""A verdict for readers: a line, a page of Markdown, a picture."""

from __future__ import annotations

from pathlib import Path

from hztune import report
from hztune.canary.spec import Canary
from hztune.canary.verdict import CanaryVerdict, MetricEffect
from hztune.progress import duration, percent
from hztune.report.charts import Strip, interval_words
from hztune.templates import templates_in

_WIDTH, _STRIP = 792.0, 44.0


def verdict_line(verdict: CanaryVerdict) -> str:
    told = (f"; {each.metric.name} {_figures(each)}" for each in verdict.effects)
    return f"{verdict.answer} after {duration(verdict.passed_s)}{''.join(told)}"


def verdict_page(verdict: CanaryVerdict, canary: Canary) -> str:
    """A verdict as a page of Markdown."""
    template = templates_in(Path(__file__).parent).get_template("verdict.txt")
    return template.render(
        verdict=verdict, canary=canary, figures=_figures, answer=_answer, clock=duration
    )


def verdict_picture(verdict: CanaryVerdict) -> str:
    """The ratios of all metrics as SVG, in the style of a report; a dot is a treated unit."""
    rows = [
        Strip(each.metric.name, f"{interval_words(each.interval)} - {_answer(each)}",
              each.deviations, each.interval,
              "gain" if each.is_better else "loss" if each.is_worse else "neutral")
        for each in verdict.effects if each.interval and each.metric.is_ratio
    ]  # fmt: skip
    shown = report.templates().from_string(
        '{% from "charts.html" import strips with context %}{{ strips(width, rows, 0.0, title) }}'
    )
    drawn = shown.render(width=_WIDTH, rows=rows, title=f"Canary: {verdict.answer}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:g} '
        f'{_STRIP * len(rows) + 28.0:g}" font-family="sans-serif">'
        f"<style>{(report.HERE / 'page.css').read_text()}</style>"
        f'<rect width="100%" height="100%" style="fill: var(--paper)"/>{drawn}</svg>\n'
    )


def _figures(each: MetricEffect) -> str:
    if (shown := each.interval) is None:
        return "-"
    told = percent if each.metric.is_ratio else "{:+.4g}".format
    return f"{told(shown.estimate)} [{told(shown.low)}, {told(shown.high)}]"


def _answer(each: MetricEffect) -> str:
    if each.is_worse or each.is_better:
        return "worse by its margin" if each.is_worse else "better"
    return "no worse" if each.is_no_worse else "open"
