"""A comparison as text for a terminal, as Markdown, as CSV for tables and as JUnit XML for CI."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal

from jinja2 import Environment

from hztune import files
from hztune.arguments import printable
from hztune.comparing.comparison import Comparison
from hztune.comparing.contenders import Amount
from hztune.comparing.gate import Ruling, Standing, Standings, geometric_mean, whole
from hztune.stats.intervals import Interval
from hztune.templates import templates_in

_NO_FIGURE = "-"


def text(
    rows: Sequence[Standings],
    rulings: Sequence[Ruling] = (),
    *,
    markdown: bool = False,
    counters: bool = False,
) -> str:
    """Rows for people, as a terminal shows them or as a table for a Markdown document.

    Args:
        rows: The `standings` of a comparison.
        rulings: Its `answers`: under a gate.
        markdown: A table, without rows empty; under a gate, one of its answers.
        counters: In a terminal also what allocators hold and count.
    """
    template = _templates().get_template("table.markdown" if markdown else "table.txt")
    width = max((len(each.name) for row in rows for each in row.all), default=0)
    shown = template.render(rows=rows, rulings=rulings, counters=counters, width=width)
    return shown.strip("\n")


@cache
def _templates() -> Environment:
    made = templates_in(Path(__file__).parent)
    made.globals |= {"means": _means, "ratio": interval_text, "amount": amount_text}
    made.globals |= {"seconds": seconds_text, "whole": whole, "counted": _counted}
    made.filters |= {"cell": lambda told: str(told).replace("|", "\\|"), "printable": printable}
    return made


def _counted(row: Standings) -> list[str]:
    counts = [each for side in row.all for each in side.counters.items()]
    return list(dict.fromkeys(name for name, count in counts if count))


def _means(rows: Sequence[Standings]) -> str:
    if len(rows) < 2 or len(rows[0].all) < 2:
        return ""
    first, *others = (each.name for each in rows[0].all)
    each = {f"{name} / {first}": [row.of(name).speed for row in rows] for name in others}
    each[f"{first} / best of the others"] = [row.lead for row in rows]
    means = [
        f"{what} {interval_text(geometric_mean([one for one in those if one]), digits=3)}"
        for what, those in each.items()
    ]
    return f"geometric means over {len(rows)} rows: " + "; ".join(means)


def lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    told = ["| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in (head, *rows)]
    return [told[0], "|" + "---|" * len(head), *told[1:]]


def interval_text(interval: Interval | None, digits: int = 2) -> str:
    """A ratio with its interval: "1.14 [1.10, 1.19]"."""
    if interval is None:
        return _NO_FIGURE
    ratio, low, high = interval.ratio
    if not math.isfinite(interval.half_width):
        return f"{ratio:.{digits}f}"
    return f"{ratio:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def amount_text(rate: float, amount: Amount) -> str:
    if amount == "ops_per_s":
        return f"{rate / 1e6:.3f} Mops/s"
    if amount == "higher":
        return f"{rate:.5g}"
    figure = 1.0 / rate if rate else 0.0
    return f"{figure:.5g}" if amount == "lower" else seconds_text(figure)


def seconds_text(seconds: float) -> str:
    """A time in its unit: "1.204 s", "17.30 ms"."""
    return f"{seconds:.3f} s" if seconds >= 1.0 else f"{1e3 * seconds:.2f} ms"


# ---- for other programs --------------------------------------------------------------------------


def write(found: Comparison, path: Path, form: Literal["csv", "junit"]) -> None:
    """Writes a comparison, whole or not at all; HztuneError: the file system refused."""
    files.write_whole(path, csv_text(found) if form == "csv" else junit(found))


def csv_text(found: Comparison) -> str:
    rows = [_figures(row, standing, found) for row in found.standings for standing in row.all]
    told = io.StringIO()
    writer = csv.writer(told, lineterminator="\n")
    writer.writerow(dict.fromkeys(name for row in rows for name in row))
    writer.writerows([printable(str(cell)) for cell in row.values()] for row in rows)
    return told.getvalue()


def _figures(row: Standings, standing: Standing, found: Comparison) -> dict[str, object]:
    """The cells of a line of the CSV by the names of their columns; what is not known is empty.

    `figure` is the median, in `unit` (of a metric: higher or lower, whichever is better); `ratio`
    is that of speed to the first contender, above 1 is faster, with its 95 % interval. `kept_mib`
    is what stays at rest, `round_more_kib` what each round of load and rest adds.
    """
    speed, memory, keeps = standing.speed, standing.memory, standing.keeps
    place, rate = row.all.index(standing), row.rate(standing)
    figure = rate if row.amount in ("ops_per_s", "higher") or not rate else 1.0 / rate
    ends = [""] * 3
    if speed is not None and math.isfinite(speed.half_width):
        ends = [f"{end:.6f}" for end in speed.ratio]
    answers = {each.label: (each.answer, each.why) for each in found.answers if place == 1}
    answer, why = answers.get(row.label, ("", ""))
    return {
        "row": row.label,
        "contender": standing.name,
        "allocator": found.contenders[place].arm.allocator,
        "figure": f"{figure:.6g}" if rate else "",
        "unit": row.amount,
        **dict(zip(("ratio", "ci_low", "ci_high"), ends, strict=True)),
        "pairs": speed.pairs if speed else 0,
        "memory_mib": f"{standing.rss_mb:.3f}" if standing.rss_mb else "",
        "memory_ratio": f"{memory.ratio[0]:.6f}" if memory else "",
        "failures": len(standing.failures),
        "answer": answer,
        "why": why,
        "kept_mib": f"{keeps.kept_kb / 1024:.3f}" if keeps else "",
        "kept_ratio": f"{standing.kept.ratio[0]:.6f}" if standing.kept else "",
        "round_more_kib": f"{keeps.slope_kb[0]:.1f}" if keeps and keeps.slope_kb else "",
    }


def junit(found: Comparison) -> str:
    """A test case for each row: worse is a failure; too little data, or none, is a skipped test."""
    times = {
        row.spec.label: 1e-9
        * sum(t.counted_ns for b in row.blocks for o in b.outcomes for t in o.all_turns)
        for row in found.rows
    }
    return _templates().get_template("table.xml").render(found=found, times=times)
