"""A comparison for other programs: CSV for tables, JUnit XML for the pages of a CI service."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

from hztune import files
from hztune.arguments import printable
from hztune.compare.comparison import Comparison
from hztune.compare.gate import Ruling
from hztune.compare.match import Measured
from hztune.compare.standings import Standing, Standings
from hztune.measure.live_share import LiveShare

COLUMNS = (
    "row", "contender", "allocator", "figure", "unit", "ratio", "ci_low", "ci_high", "pairs",
    "memory_mib", "memory_ratio", "failures", "answer", "kept_mib", "kept_ratio", "round_more_kib",
    "held_mib", "live_mib", "held_per_live", "last_held_mib", "last_live_mib", "last_held_per_live",
    "live_unknown",
)  # fmt: skip


def write(found: Comparison, path: Path, form: Literal["csv", "junit"]) -> None:
    """Writes a comparison in one of the forms, so that the file is whole or absent.

    Raises:
        HztuneError: The file system refused.
    """
    files.write_whole(path, csv_text(found) if form == "csv" else junit(found))


def csv_text(found: Comparison) -> str:
    """A line for each row and contender; what is not known is empty.

    `figure` is the median, in `unit` (of a metric: higher or lower, whichever is better); `ratio`
    is that of speed to the first contender, above 1 is faster, with its 95 % interval. `kept_mib`
    is what stays at rest, `round_more_kib` what each round of load and rest adds. `held_mib`
    is what the allocator held at most in one more run, `last_held_mib` when it was last asked;
    `live_unknown` says why one of the figures beside them is not known.
    """
    answers = {each.label: each.answer for each in found.rulings}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in found.standings:
        for number, (standing, side) in enumerate(zip(row.all, found.contenders, strict=True)):
            answer = answers.get(row.label, "") if number == 1 else ""
            cells = [*_cells(standing, side.arm.allocator, row), answer]
            more = [*_kept_cells(standing), *_live_cells(standing)]
            writer.writerow([printable(str(cell)) for cell in (row.label, *cells, *more)])
    return text.getvalue()


def junit(found: Comparison) -> str:
    """A test case for each row: worse is a failure; too little data, or none, is a skipped test."""
    base, new = (each.name for each in found.contenders)
    assert found.gate is not None  # the command line saw to it
    suite = f"hztune compare {base} {new} --no-worse {found.gate.limit.text}"
    times = {row.spec.label: _seconds(row) for row in found.rows}
    rulings = found.answers
    counts = {
        "tests": len(rulings),
        "failures": sum(each.answer == "worse" for each in rulings),
        "errors": 0,
        "skipped": sum(each.answer == "not enough data" for each in rulings),
    }
    told = {name: str(count) for name, count in counts.items()}
    root = ElementTree.Element("testsuites", told)
    own = {"name": printable(suite), **told, "time": f"{sum(times.values()):.3f}"}
    cases = ElementTree.SubElement(root, "testsuite", own)
    for ruling in rulings:
        cases.append(_case(ruling, suite, times.get(ruling.label, 0.0)))
    ElementTree.indent(root)
    head = '<?xml version="1.0" encoding="UTF-8"?>\n'
    return head + ElementTree.tostring(root, encoding="unicode") + "\n"


def _cells(standing: Standing, allocator: str, row: Standings) -> Iterator[object]:
    """The cells of a line from `contender` to `failures`."""
    rate, is_rate = row.rate(standing), row.amount in ("ops_per_s", "higher")
    yield standing.name
    yield allocator
    yield f"{rate if is_rate else 1.0 / rate:.6g}" if rate else ""
    yield row.amount
    speed = standing.speed
    is_known = speed is not None and speed.half_width != float("inf")
    yield from (f"{end:.6f}" for end in speed.ratio) if speed and is_known else ("", "", "")
    yield speed.pairs if speed else 0
    yield f"{standing.rss_mb:.3f}" if standing.rss_mb else ""
    yield f"{standing.memory.ratio[0]:.6f}" if standing.memory else ""
    yield len(standing.failures)


def _kept_cells(standing: Standing) -> Iterator[str]:
    """The cells from `kept_mib` to `round_more_kib`."""
    keeps, ratio = standing.keeps, standing.kept
    yield f"{keeps.kept_kb / 1024:.3f}" if keeps else ""
    yield f"{ratio.ratio[0]:.6f}" if ratio else ""
    yield f"{keeps.slope_kb[0]:.1f}" if keeps and keeps.slope_kb else ""


def _live_cells(standing: Standing) -> Iterator[str]:
    """The cells from `held_mib` on."""
    share = standing.live or LiveShare()
    for reading in (share.most, share.last):
        live_kb = reading.live_kb if reading else None
        ratio = reading.ratio if reading else None
        yield f"{reading.held_kb / 1024:.3f}" if reading else ""
        yield "" if live_kb is None else f"{live_kb / 1024:.3f}"
        yield "" if ratio is None else f"{ratio:.4f}"
    yield share.why


def _case(ruling: Ruling, suite: str, seconds: float) -> ElementTree.Element:
    case = ElementTree.Element(
        "testcase",
        {"classname": printable(suite), "name": printable(ruling.label), "time": f"{seconds:.3f}"},
    )
    told = printable(f"{ruling.answer}: {ruling.why}")
    if ruling.answer == "worse":
        ElementTree.SubElement(case, "failure", {"type": "worse", "message": told}).text = told
    elif ruling.answer == "not enough data":
        ElementTree.SubElement(case, "skipped", {"message": told})
    if ruling.speed is not None:
        ratio, low, high = ruling.speed.ratio
        text = f"speed {ratio:.4f} [{low:.4f}, {high:.4f}], {ruling.pairs} pairs; {told}"
        ElementTree.SubElement(case, "system-out").text = text
    return case


def _seconds(row: Measured) -> float:
    """What the turns or runs of a row took."""
    turns = (t for block in row.blocks for o in block.outcomes for t in o.all_turns)
    return 1e-9 * sum(turn.counted_ns for turn in turns)
