"""The report: every question with its finding, and whether its samples give what is claimed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hztune.compare import record as records
from hztune.compare.record import Record
from hztune.compare.standings import Standings, geometric_mean
from hztune.compare.table import interval_text
from hztune.experiment.definition import Experiment
from hztune.experiment.run import RESULTS
from hztune.stats import Interval

README = "README.md"
NOT_MEASURED = "not measured yet"

_FINDING = re.compile(r"^## Finding\s*\n+(.+?)(?:\n\s*\n|\n#|\Z)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of one question.

    Attributes:
        name: Of the experiment.
        question: In one sentence.
        finding: First paragraph of the README's Finding; NOT_MEASURED without results.
        headline: What the interval is about, in words.
        interval: Log ratio, above 0 is better; None: not measured.
        date: Of the last row, "2026-01-31"; "" without results.
        standings: What the samples of each row give.
        problems: Where the results are not what the samples, or the definition, give.
    """

    name: str
    question: str
    finding: str
    headline: str
    interval: Interval | None
    date: str
    standings: tuple[Standings, ...]
    problems: tuple[str, ...]

    def lines(self) -> list[str]:
        """The finding for a terminal."""
        text = [f"{self.name}: {self.question}", f"  {self.finding}"]
        if self.interval is not None:
            text.append(f"  {self.headline}: {interval_text(self.interval, 3)}  ({self.date})")
        return [*text, *(f"  WRONG: {each}" for each in self.problems)]

    def cells(self) -> tuple[str, ...]:
        """The finding as a line of a table: name, question, finding, figure, date."""
        figure = f"{self.headline}: {interval_text(self.interval, 3)}" if self.interval else ""
        return (self.name, self.question, self.finding, figure, self.date)


def examine(experiment: Experiment) -> Finding:
    """Returns what became of an experiment, every estimate made anew from its samples.

    Raises:
        UsageError: Its results are no legal record.
    """
    path = experiment.folder / RESULTS
    if not path.exists():
        return Finding(experiment.name, experiment.question, NOT_MEASURED, "", None, "", (), ())
    record, wrong = records.load(path)
    found = record.standings
    headline, interval = _headline(experiment, record, found)
    finding = _finding(experiment.folder / README)
    problems = [*wrong, *_strangers(experiment, record)]
    if not finding:
        problems.append(f"{README} has no section '## Finding' with a sentence in it")
    return Finding(
        name=experiment.name,
        question=experiment.question,
        finding=finding,
        headline=headline,
        interval=interval,
        date=max(row.created for row in record.rows)[:10] if record.rows else "",
        standings=found,
        problems=tuple(problems),
    )


def _headline(
    experiment: Experiment, record: Record, found: Sequence[Standings]
) -> tuple[str, Interval | None]:
    """Returns the one figure of an experiment, a geometric mean over its rows, and its meaning."""
    first = record.contenders[0].name
    name = experiment.headline
    over = f"over {len(found)} rows" if len(found) > 1 else "on one row"
    if not name:
        parts = [row.lead for row in found]
        return f"{first} / best of the others {over}", _mean(parts)
    if name not in {each.name for each in record.contenders}:
        return f"{name} / {first}", None
    standings = [row.of(name) for row in found]
    if experiment.metric == "rss_peak_kb":
        return f"memory of {first} / {name} {over}", _mean(
            [_less(each.memory) for each in standings]
        )
    return f"{name} / {first} {over}", _mean([each.speed for each in standings])


def _mean(parts: Sequence[Interval | None]) -> Interval | None:
    return geometric_mean([each for each in parts if each is not None])


def _less(memory: Interval | None) -> Interval | None:
    """Returns a ratio of memory the other way round, so that above 1 is better."""
    if memory is None:
        return None
    return Interval(-memory.estimate, -memory.high, -memory.low, memory.pairs)


def _strangers(experiment: Experiment, record: Record) -> Iterator[str]:
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
