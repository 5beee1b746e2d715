"""A comparison as text for a terminal, as Markdown, as CSV for tables and as JUnit XML for CI."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

from hztune import files
from hztune.arguments import printable
from hztune.comparing.comparison import Comparison
from hztune.comparing.contenders import Amount
from hztune.comparing.gate import Ruling, whole
from hztune.comparing.standings import Standing, Standings, geometric_mean
from hztune.stats.intervals import Interval

COLUMNS = (
    "row", "contender", "allocator", "figure", "unit", "ratio", "ci_low", "ci_high", "pairs",
    "memory_mib", "memory_ratio", "failures", "answer", "kept_mib", "kept_ratio", "round_more_kib",
)  # fmt: skip

_NO_FIGURE = "-"
_FIGURES: dict[Amount, str] = {
    "ops_per_s": "Mops/s", "seconds": "time", "higher": "metric", "lower": "metric",
}  # fmt: skip


def text(found: Comparison, *, markdown: bool = False, counters: bool = False) -> str:
    """A comparison for people, or as a table for a Markdown document."""
    if markdown:
        return as_markdown(found.standings, found.answers)
    return plain(found.standings, found.answers, counters=counters)


def plain(
    rows: Sequence[Standings], rulings: Sequence[Ruling] = (), *, counters: bool = False
) -> str:
    """The rows for a terminal; with `counters` also what allocators hold and count."""
    from jinja2 import Environment, StrictUndefined

    made = Environment(trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    template = made.from_string(Path(__file__).with_name("table.txt").read_text())
    width = max((len(each.name) for row in rows for each in row.all), default=0)
    return template.render(
        rows=rows, rulings=rulings, counters=counters, width=width, means=_means(rows),
        ratio=interval_text, amount=amount_text, seconds=seconds_text, whole=whole,
        counted=lambda row: dict.fromkeys(
            name for each in row.all for name, count in each.counters.items() if count
        ),
    ).strip("\n")  # fmt: skip


def as_markdown(rows: Sequence[Standings], rulings: Sequence[Ruling] = ()) -> str:
    """The rows as a table, under a gate one of its answers; empty without rows."""
    if not rows:
        return ""
    first, *others = (each.name for each in rows[0].all)
    if rulings:
        head = ["row", f"speed, {others[0]} / {first}", "peak memory", "pairs", "answer", "why"]
        memory = {row.label: row.all[1].memory for row in rows}
        cells = [
            [
                ruling.label,
                interval_text(ruling.interval("speed"), digits=3),
                interval_text(memory.get(ruling.label), digits=3),
                f"{ruling.pairs} of {ruling.planned}" if ruling.planned else f"{ruling.pairs}",
                ruling.answer,
                ruling.why,
            ]
            for ruling in rulings
        ]
        title = f"### {others[0]} against {first}: {whole(rulings)}"
        return "\n".join([title, "", *lines(head, cells)])
    head = ["row", f"{first}: {_FIGURES[rows[0].amount]}, MiB"]
    head += [f"{name} / {first}, MiB" for name in others]
    head += [f"{first} / best of the others"] if others else []
    text = [*lines(head, [_cells(row) for row in rows]), ""]
    kept = [
        [row.label, each.name, each.keeps.words, interval_text(each.kept), each.keeps.slope_words]
        for row in rows
        for each in row.all
        if each.keeps is not None
    ]
    if kept:
        head = ["row", "contender", "kept memory at rest", "ratio", "growth per round"]
        text += [*lines(head, kept), ""]
    return "\n".join([*text, *_means(rows)]).rstrip()


def _cells(row: Standings) -> list[str]:
    first, *others = row.all
    figure = amount_text(first.ops_per_s, row.amount).removesuffix(" Mops/s")
    cells = [row.label, f"{figure}, {first.rss_mb:.1f}"]
    for each in others:
        failed = each.failures[-1] if each.failures else _NO_FIGURE
        told = f"{interval_text(each.speed)}, {each.rss_mb:.1f}"
        cells.append(failed if each.speed is None else told)
    if others:
        cells.append(interval_text(row.lead) + (f" ({row.best})" if row.best else ""))
    return cells


def _means(rows: Sequence[Standings]) -> list[str]:
    if len(rows) < 2 or len(rows[0].all) < 2:
        return []
    first, *others = (each.name for each in rows[0].all)
    each = {f"{name} / {first}": [row.of(name).speed for row in rows] for name in others}
    each[f"{first} / best of the others"] = [row.lead for row in rows]
    means = [
        f"{what} {interval_text(geometric_mean([one for one in those if one]), digits=3)}"
        for what, those in each.items()
    ]
    return [f"geometric means over {len(rows)} rows: " + "; ".join(means)]


def lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table for a Markdown document."""
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
    """A line for each row and contender; what is not known is empty.

    `figure` is the median, in `unit` (of a metric: higher or lower, whichever is better); `ratio`
    is that of speed to the first contender, above 1 is faster, with its 95 % interval. `kept_mib`
    is what stays at rest, `round_more_kib` what each round of load and rest adds.
    """
    answers = {each.label: each.answer for each in found.answers}
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in found.standings:
        for number, (standing, side) in enumerate(zip(row.all, found.contenders, strict=True)):
            cells = {"allocator": side.arm.allocator, **_figures(row, standing)}
            cells["answer"] = answers.get(row.label, "") if number == 1 else ""
            writer.writerow({name: printable(str(cell)) for name, cell in cells.items()})
    return text.getvalue()


def _figures(row: Standings, standing: Standing) -> dict[str, object]:
    speed, memory, keeps = standing.speed, standing.memory, standing.keeps
    rate = row.rate(standing)
    figure = rate if row.amount in ("ops_per_s", "higher") or not rate else 1.0 / rate
    cells: dict[str, object] = {
        "row": row.label,
        "contender": standing.name,
        "figure": f"{figure:.6g}" if rate else "",
        "unit": row.amount,
        "pairs": speed.pairs if speed else 0,
        "memory_mib": f"{standing.rss_mb:.3f}" if standing.rss_mb else "",
        "memory_ratio": f"{memory.ratio[0]:.6f}" if memory else "",
        "failures": len(standing.failures),
        "kept_mib": f"{keeps.kept_kb / 1024:.3f}" if keeps else "",
        "kept_ratio": f"{standing.kept.ratio[0]:.6f}" if standing.kept else "",
        "round_more_kib": f"{keeps.slope_kb[0]:.1f}" if keeps and keeps.slope_kb else "",
    }
    if speed is not None and math.isfinite(speed.half_width):
        ends = (f"{end:.6f}" for end in speed.ratio)
        cells |= zip(("ratio", "ci_low", "ci_high"), ends, strict=True)
    return cells


def junit(found: Comparison) -> str:
    """A test case for each row: worse is a failure; too little data, or none, is a skipped test."""
    base, new = (each.name for each in found.contenders)
    assert found.gate is not None  # the command line saw to it
    suite = printable(f"hztune compare {base} {new} {found.gate.options}")
    times = {
        row.spec.label: 1e-9
        * sum(t.counted_ns for b in row.blocks for o in b.outcomes for t in o.all_turns)
        for row in found.rows
    }
    answers = [each.answer for each in found.answers]
    failures, skipped = answers.count("worse"), answers.count("not enough data")
    counts = {"tests": len(answers), "failures": failures, "errors": 0, "skipped": skipped}
    told = {name: str(count) for name, count in counts.items()}
    root = ElementTree.Element("testsuites", told)
    own = {"name": suite, **told, "time": f"{sum(times.values()):.3f}"}
    cases = ElementTree.SubElement(root, "testsuite", own)
    for ruling in found.answers:
        time = f"{times.get(ruling.label, 0.0):.3f}"
        about = {"classname": suite, "name": printable(ruling.label), "time": time}
        case = ElementTree.SubElement(cases, "testcase", about)
        said = printable(f"{ruling.answer}: {ruling.why}")
        if ruling.answer == "worse":
            ElementTree.SubElement(case, "failure", {"type": "worse", "message": said}).text = said
        elif ruling.answer == "not enough data":
            ElementTree.SubElement(case, "skipped", {"message": said})
        seen = [
            f"{each.of} {interval_text(each.interval, digits=4)}"
            for each in ruling.parts
            if each.interval is not None
        ]
        if seen:
            text = f"{', '.join(seen)}, {ruling.pairs} pairs; {said}"
            ElementTree.SubElement(case, "system-out").text = text
    ElementTree.indent(root)
    head = '<?xml version="1.0" encoding="UTF-8"?>\n'
    return head + ElementTree.tostring(root, encoding="unicode") + "\n"
