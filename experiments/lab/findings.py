"""The findings of experiments: question, answer, and whether the samples give what is claimed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hztune.compare import comparison as comparisons
from hztune.compare.comparison import Comparison
from hztune.compare.standings import Standings
from lab.arm_figures import Shown, shown
from lab.definition import CounterValue, Experiment
from lab.run import RESULTS

README = "README.md"
NOT_MEASURED = "not measured yet"

_FINDING = re.compile(r"^## Finding\s*\n+(.+?)(?:\n\s*\n|\n#|\Z)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class ExperimentReading:
    """What became of one question.

    Attributes:
        name: Of the experiment.
        question: In one sentence.
        finding: First paragraph of the README's Finding; NOT_MEASURED without results.
        figures: What the samples say of it, the headline first; none without results.
        date: Of the last row, "2026-01-31"; "" without results.
        standings: What the samples of each row give.
        values: What the experiment makes of its counters.
        problems: Where the results are not what the samples, or the definition, give.
    """

    name: str
    question: str
    finding: str
    figures: tuple[Shown, ...]
    date: str
    standings: tuple[Standings, ...]
    values: tuple[CounterValue, ...]
    problems: tuple[str, ...]

    def lines(self) -> list[str]:
        """The finding for a terminal."""
        text = [f"{self.name}: {self.question}", f"  {self.finding}"]
        text += [f"  {each.name}: {each.text}" for each in self.figures]
        text += [f"  measured {self.date}"] if self.date else []
        return [*text, *(f"  WRONG: {each}" for each in self.problems)]

    def cells(self) -> tuple[str, ...]:
        """The finding as a line of a table: name, question, finding, figures, date."""
        figures = "<br>".join(f"{each.name}: {each.text}" for each in self.figures)
        return (self.name, self.question, self.finding, figures, self.date)


def examine(experiment: Experiment) -> ExperimentReading:
    """Returns what became of an experiment, every estimate made anew from its samples."""
    name, question = experiment.name, experiment.question
    path = experiment.folder / RESULTS
    if not path.exists():
        return ExperimentReading(name, question, NOT_MEASURED, (), "", (), experiment.values, ())
    record, wrong = comparisons.load(path)
    finding = _finding(experiment.folder / README)
    problems = [*wrong, *_strangers(experiment, record)]
    if not finding:
        problems.append(f"{README} has no section '## Finding' with a sentence in it")
    return ExperimentReading(
        name=name,
        question=question,
        finding=finding,
        figures=shown(experiment, record),
        date=max(row.created for row in record.rows)[:10] if record.rows else "",
        standings=record.standings,
        values=experiment.values,
        problems=tuple(problems),
    )


def _strangers(experiment: Experiment, record: Comparison) -> Iterator[str]:
    """Yields in what the results are of another experiment than the one that stands there."""
    measured = {row.spec.label for row in record.rows}
    asked = {row.label for row in experiment.rows}
    again = "measure it again"
    if missing := sorted(asked - measured):
        yield f"{len(missing)} of {len(asked)} rows are not measured ({missing[0]}); {again}"
    if strange := sorted(measured - asked):
        yield f"{strange[0]} is measured, but not a row of it; {again}"
    there = {each.name: each.arm for each in record.contenders}
    for side in experiment.sides:
        is_absent = side.name not in there
        if is_absent and not side.if_installed:
            yield f"the arm {side.name} is not measured; {again}"
        elif not is_absent and there[side.name] != side.arm:
            yield f"the arm {side.name} was measured with other parameters; {again}"
    if record.contenders[0].name != experiment.sides[0].name:
        yield f"the control was {record.contenders[0].name}; {again}"


def _finding(path: Path) -> str:
    """Returns the first paragraph under "## Finding", on one line; "" when there is none."""
    if not path.is_file():
        return ""
    found = _FINDING.search(path.read_text(encoding="utf-8"))
    return " ".join(found[1].split()) if found else ""
