"""A comparison for other programs: CSV for tables, JUnit XML for pages of CI, SVG to look at."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

from hztune import files
from hztune.arguments import printable
from hztune.compare.comparison import Comparison
from hztune.compare.gate import Ruling
from hztune.compare.standings import Standing, Standings

COLUMNS = (
    "row", "contender", "allocator", "figure", "unit", "ratio", "ci_low", "ci_high", "pairs",
    "memory_mib", "memory_ratio", "failures", "answer", "kept_mib", "kept_ratio", "round_more_kib",
)  # fmt: skip

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#000000")
"""Told apart by colour-blind readers, too (Okabe & Ito, 2008)."""

_LEFT, _WIDTH, _STEP, _TOP = 260.0, 560.0, 14.0, 40.0
_TICKS = (0.1, 0.2, 0.5, 0.8, 1.0, 1.25, 2.0, 5.0, 10.0)


def write(found: Comparison, path: Path, form: Literal["csv", "junit", "svg"]) -> None:
    """Writes a comparison in one of the forms, so that the file is whole or absent.

    Raises:
        HztuneError: The file system refused.
    """
    make = {"csv": csv_text, "junit": junit}
    files.write_whole(path, svg(found.standings) if form == "svg" else make[form](found))


def csv_text(found: Comparison) -> str:
    """A line for each row and contender; what is not known is empty.

    `figure` is the median, in `unit` (of a metric: higher or lower, whichever is better); `ratio`
    is that of speed to the first contender, above 1 is faster, with its 95 % interval. `kept_mib`
    is what stays at rest, `round_more_kib` what each round of load and rest adds.
    """
    answers = {each.label: each.answer for each in found.rulings}
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
    suite = f"hztune compare {base} {new} --no-worse {found.gate.limit.text}"
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
    own = {"name": printable(suite), **told, "time": f"{sum(times.values()):.3f}"}
    cases = ElementTree.SubElement(root, "testsuite", own)
    for ruling in found.answers:
        _add_case(cases, ruling, suite, times.get(ruling.label, 0.0))
    ElementTree.indent(root)
    head = '<?xml version="1.0" encoding="UTF-8"?>\n'
    return head + ElementTree.tostring(root, encoding="unicode") + "\n"


def _add_case(cases: ElementTree.Element, ruling: Ruling, suite: str, seconds: float) -> None:
    name, time = printable(ruling.label), f"{seconds:.3f}"
    about = {"classname": printable(suite), "name": name, "time": time}
    case = ElementTree.SubElement(cases, "testcase", about)
    told = printable(f"{ruling.answer}: {ruling.why}")
    if ruling.answer == "worse":
        ElementTree.SubElement(case, "failure", {"type": "worse", "message": told}).text = told
    elif ruling.answer == "not enough data":
        ElementTree.SubElement(case, "skipped", {"message": told})
    if ruling.speed is not None:
        ratio, low, high = ruling.speed.ratio
        text = f"speed {ratio:.4f} [{low:.4f}, {high:.4f}], {ruling.pairs} pairs; {told}"
        ElementTree.SubElement(case, "system-out").text = text


def svg(rows: Sequence[Standings]) -> str:
    """A dot with its interval for each contender on a logarithmic axis; ratios to the first one."""
    speeds = [each.speed for row in rows for each in row.all[1:] if each.speed is not None]
    ends = [end for s in speeds for end in (s.low, s.estimate, s.high) if math.isfinite(end)]
    low, high = min(0.0, *ends, 0.0) - 0.1, max(0.0, *ends, 0.0) + 0.1

    def x_of(log_ratio: float) -> float:
        return _LEFT + _WIDTH * (log_ratio - low) / (high - low)

    first, *others = (each.name for each in rows[0].all)
    height = _TOP + sum(_STEP * (len(row.all) + 0.5) for row in rows) + 30.0
    shapes = [svg_text(_LEFT - 10, 20, f"speed / {first}", "end")]
    for tick in _TICKS:
        if low <= math.log(tick) <= high:
            x, colour = x_of(math.log(tick)), "#000000" if tick == 1.0 else "#d0d0d0"
            shapes.append(_line(x, _TOP, x, height - 25, colour))
            shapes.append(svg_text(x, height - 10, f"{tick:g}", "middle"))
    for index, name in enumerate(others):
        x = _LEFT + index * _WIDTH / len(others)
        shapes += [_dot(x + 4, 16, index), svg_text(x + 12, 20, name, "start")]
    y = _TOP
    for row in rows:
        shapes.append(svg_text(_LEFT - 10, y + _STEP * (len(row.all) + 0.5) / 2, row.label, "end"))
        for index, standing in enumerate(row.all[1:]):
            y += _STEP
            if (speed := standing.speed) is None:
                continue
            if math.isfinite(speed.half_width):
                left, right = x_of(speed.low), x_of(speed.high)
                shapes.append(_line(left, y, right, y, _COLOURS[index % 8], 2))
            shapes.append(_dot(x_of(speed.estimate), y, index))
        y += 1.5 * _STEP
    width = _LEFT + _WIDTH + 40.0
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        'font-family="sans-serif" font-size="11">\n<rect width="100%" height="100%" '
        'fill="#ffffff"/>\n' + "\n".join(shapes) + "\n</svg>\n"
    )


def _dot(x: float, y: float, index: int) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{_COLOURS[index % 8]}"/>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: int = 1) -> str:
    at = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {at} stroke="{colour}" stroke-width="{width}"/>'


def svg_text(x: float, y: float, text: str, anchor: str) -> str:
    """Returns text that begins, has its middle or ends at `x`, without what XML cannot hold."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(printable(text))}</text>'
