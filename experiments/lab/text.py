"""The answers of experiments as text, for people and as Markdown; and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hztune import files
from hztune.compare import table
from hztune.errors import UsageError
from lab import arm_figures, chart
from lab.findings import ExperimentReading


def draw_answer(finding: ExperimentReading, path: Path) -> None:
    """Writes the picture of an experiment that was measured."""
    if not finding.standings:
        raise UsageError(f"{finding.name} is not measured yet, so there is nothing to draw")
    files.write_whole(path, chart.draw(finding.standings))


def for_people(finding: ExperimentReading, *, rows: bool) -> str:
    """An answer in lines; with `rows` its tables behind it."""
    if not rows or not finding.standings:
        return "\n".join(finding.lines())
    details = [
        table.plain(finding.standings),
        *arm_figures.values_table(finding.values, finding.standings),
    ]
    return "\n".join([*finding.lines(), "", *details])


def markdown_of(findings: Sequence[ExperimentReading], *, rows: bool) -> str:
    """One table of all questions; with `rows` the tables of each one behind it."""
    head = ("experiment", "question", "finding", "figures, 95 % intervals", "date")
    text = table.lines(head, [each.cells() for each in findings])
    for each in findings:
        if rows and each.standings:
            text += ["", f"### {each.name}", "", table.markdown(each.standings), ""]
            text += arm_figures.values_table(each.values, each.standings)
    return "\n".join(text)
