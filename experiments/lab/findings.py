"""The findings of experiments: question, answer, and whether the samples give what is claimed.

A figure is one arm against another over some rows, made from their samples. A ratio is the
geometric mean over the rows that the figure covers.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from hztune.comparing import comparison as comparisons
from hztune.comparing import table
from hztune.comparing.comparison import Comparison
from hztune.comparing.gate import Standing, Standings, between, geometric_mean
from hztune.comparing.match import Measured
from hztune.stats.intervals import Interval
from lab.definition import BEST, OF_MEMORY, OF_SPEED, CounterValue, Experiment, Figure
from lab.run import RESULTS

README = "README.md"
NOT_MEASURED = "not measured yet"
UNKNOWN = "-"

_TOLERANCE = 2e-6

_FINDING = re.compile(r"^## Finding\s*\n+(.+?)(?:\n\s*\n|\n#|\Z)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Shown:
    """A figure as the report shows it."""

    name: str
    text: str  # with its interval where it has one
    interval: Interval | None = None  # of the log of the ratio; None: no ratio, or unknown


@dataclass(frozen=True, slots=True)
class ExperimentReading:
    """What became of one question."""

    experiment: Experiment
    finding: str  # first paragraph of the README's Finding; NOT_MEASURED without results
    figures: tuple[Shown, ...] = ()  # what the samples say of it, the headline first
    date: str = ""  # of the last row, "2026-01-31"
    standings: tuple[Standings, ...] = ()  # what the samples of each row give
    problems: tuple[str, ...] = ()  # where results are not what samples, or definition, give

    @property
    def name(self) -> str:
        """Of the experiment."""
        return self.experiment.name

    def lines(self, *, rows: bool) -> list[str]:
        """The finding for a terminal; with `rows` its tables behind it."""
        text = [f"{self.name}: {self.experiment.file.question}", f"  {self.finding}"]
        text += [f"  {each.name}: {each.text}" for each in self.figures]
        text += [f"  measured {self.date}"] if self.date else []
        text += [f"  WRONG: {each}" for each in self.problems]
        if rows and self.standings:
            text += ["", table.text(self.standings), *self.values()]
        return text

    def cells(self) -> tuple[str, ...]:
        """The finding as a line of a table: name, question, finding, figures, date."""
        figures = "<br>".join(f"{each.name}: {each.text}" for each in self.figures)
        return (self.name, self.experiment.file.question, self.finding, figures, self.date)

    def values(self) -> list[str]:
        """What the counters give, a line for each arm on each row; nothing without any."""
        values = self.experiment.values
        if not values:
            return []
        every = [(row.label, each) for row in self.standings for each in row.all]
        head = ["row", "arm", *(value.name for value in values)]
        numbers = ([_number(_amount(value, each)) for value in values] for _, each in every)
        cells = zip(every, numbers, strict=True)
        return table.lines(head, [[label, each.name, *row] for (label, each), row in cells])


def markdown_of(readings: Sequence[ExperimentReading], *, rows: bool) -> str:
    """One table of all questions; with `rows` the tables of each one behind it."""
    head = ("experiment", "question", "finding", "figures, 95 % intervals", "date")
    text = table.lines(head, [each.cells() for each in readings])
    for each in readings:
        if rows and each.standings:
            shown = table.text(each.standings, markdown=True)
            text += ["", f"### {each.name}", "", shown, "", *each.values()]
    return "\n".join(text)


def examine(experiment: Experiment) -> ExperimentReading:
    """Returns what became of an experiment, every estimate made anew from its samples."""
    path, readme = experiment.folder / RESULTS, experiment.folder / README
    if not path.exists():
        return ExperimentReading(experiment, NOT_MEASURED)
    record = comparisons.load(path)
    stored, made = (
        json.loads(text)["rows"] for text in (path.read_text(), comparisons.dumps(record))
    )
    wrong = [
        f"{row.spec.label}: {each}"
        for row, told, given in zip(record.rows, stored, made, strict=True)
        for each in disagreements(told["standings"], given["standings"])
    ]
    found = _FINDING.search(readme.read_text(encoding="utf-8")) if readme.is_file() else None
    problems = [*wrong, *_strangers(experiment, record)]
    if not found:
        problems.append(f"{README} has no section '## Finding' with a sentence in it")
    figures = [_shown(figure, experiment, record) for figure in experiment.file.figure]
    return ExperimentReading(
        experiment,
        finding=" ".join(found[1].split()) if found else "",
        figures=tuple(figures or [_lead(record)]),
        date=max(row.created for row in record.rows)[:10] if record.rows else "",
        standings=record.standings,
        problems=tuple(problems),
    )


def disagreements(stored: object, computed: object, where: str = "") -> Iterator[str]:
    """Yields in which points something that was written is not what was computed."""
    if isinstance(stored, Mapping) and isinstance(computed, Mapping):
        for key, value in computed.items():
            yield from disagreements(stored.get(key), value, f"{where}.{key}".lstrip("."))
    elif isinstance(stored, int | float) and isinstance(computed, int | float):
        if not math.isclose(stored, computed, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE):
            yield f"{where} is {stored:g}, its samples give {computed:g}"
    elif stored != computed:
        yield f"{where} is {stored!r}, its samples give {computed!r}"


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


def _lead(record: Comparison) -> Shown:
    """Without figures: the first arm over the best of the others."""
    rows = record.standings
    over = f"over {len(rows)} rows" if len(rows) > 1 else "on one row"
    found = geometric_mean([row.lead for row in rows if row.lead is not None])
    name = f"{record.contenders[0].name} / best of the others {over}"
    return Shown(name, table.interval_text(found, 3), found)


def _shown(figure: Figure, experiment: Experiment, record: Comparison) -> Shown:
    positions = {each.name: index for index, each in enumerate(record.contenders)}
    rows = [row for row in record.rows if figure.covers(row.spec.label)]
    over = positions.get(figure.over) if figure.over else 0
    arm, name = positions.get(figure.arm), figure.name
    if figure.arm == BEST and over is not None:
        arm = _best(rows, over, range(len(positions)))
    if arm is None or over is None or not rows:
        return Shown(name, UNKNOWN)
    if figure.of in (OF_SPEED, OF_MEMORY):
        if figure.arm == BEST:
            name += f" ({record.contenders[arm].name}, the best of {len(positions) - 1})"
        parts = [between(row.blocks, over, arm)[figure.of == OF_MEMORY] for row in rows]
        found = geometric_mean([each for each in parts if each is not None])
        text = f"{table.interval_text(found, 3)} {figure.of}" if found else UNKNOWN
        return Shown(name, text, found)
    value = next(each for each in experiment.values if each.name == figure.of)
    means = []
    for index in (over, arm):
        standings = [row.all[index] for row in record.standings if figure.covers(row.label)]
        amounts = [_amount(value, each) for each in standings]
        known = [each for each in amounts if each is not None]
        means.append(_number(fmean(known) if known else None))
    return Shown(name, f"{' -> '.join(means)} {figure.of}")


def _best(rows: Sequence[Measured], over: int, positions: Sequence[int]) -> int | None:
    """Returns the fastest of the others over these rows; those that fail on one do not count."""
    means: dict[int, float] = {}
    for index in positions:
        speeds = [between(row.blocks, over, index)[0] for row in rows]
        known = [each.estimate for each in speeds if each is not None]
        if index != over and rows and len(known) == len(rows):
            means[index] = fmean(known)
    return max(means, key=lambda index: means[index], default=None)


def _amount(value: CounterValue, standing: Standing) -> float | None:
    """What a value is for one arm on one row; None: it does not count so."""
    counted = standing.counters.get(value.count)
    per = standing.counters.get(value.per) if value.per else 1.0
    return value.times * counted / per if counted is not None and per else None


def _number(value: float | None) -> str:
    """Returns a number with three digits that count, whole above a thousand."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
