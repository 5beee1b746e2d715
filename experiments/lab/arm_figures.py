"""The figures of an experiment, made from its samples: one arm against another over some rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from hztune.compare import table
from hztune.compare.comparison import Comparison
from hztune.compare.match import Measured
from hztune.compare.standings import Standing, Standings, between, geometric_mean
from hztune.stats.intervals import Interval
from lab.definition import BEST, OF_MEMORY, OF_SPEED, CounterValue, Experiment, Figure

UNKNOWN = "-"


@dataclass(frozen=True, slots=True)
class Shown:
    """A figure as the report shows it.

    Attributes:
        name: What it shows.
        text: The figure, with its interval where it has one.
        interval: Of the log of the ratio; None: it is no ratio, or it is unknown.
    """

    name: str
    text: str
    interval: Interval | None = None


def shown(experiment: Experiment, record: Comparison) -> tuple[Shown, ...]:
    """Returns the figures of an experiment; without any, its first arm over the best of the others.

    A ratio is the geometric mean over the rows that the figure covers.
    """
    if not experiment.figures:
        return (_lead(record),)
    return tuple(_shown(figure, experiment, record) for figure in experiment.figures)


def amount(value: CounterValue, standing: Standing) -> float | None:
    """Returns what a value is for one arm on one row; None: it does not count so."""
    counted = standing.counters.get(value.count)
    per = standing.counters.get(value.per) if value.per else 1.0
    return value.times * counted / per if counted is not None and per else None


def values_table(values: Sequence[CounterValue], rows: Sequence[Standings]) -> list[str]:
    """Returns what the values are, a line for each arm on each row; nothing without any."""
    instructions = any(each.instructions is not None for row in rows for each in row.all)
    columns: list[tuple[str, Callable[[Standing], float | None]]] = [
        (value.name, partial(amount, value)) for value in values
    ]
    if instructions:
        columns.append(("instructions an operation", lambda each: each.instructions))
    if not columns:
        return []
    head = ["row", "arm", *(name for name, _ in columns)]
    return table.lines(
        head,
        [
            [row.label, each.name, *(_number(of(each)) for _, of in columns)]
            for row in rows
            for each in row.all
        ],
    )


def _lead(record: Comparison) -> Shown:
    rows = record.standings
    over = f"over {len(rows)} rows" if len(rows) > 1 else "on one row"
    found = geometric_mean([row.lead for row in rows if row.lead is not None])
    name = f"{record.contenders[0].name} / best of the others {over}"
    return Shown(name, table.interval_text(found, 3), found)


def _shown(figure: Figure, experiment: Experiment, record: Comparison) -> Shown:
    positions = {each.name: index for index, each in enumerate(record.contenders)}
    rows = [row for row in record.rows if figure.covers(row.spec.label)]
    over = positions.get(figure.over) if figure.over else 0
    arm = positions.get(figure.arm)
    if figure.arm == BEST and over is not None:
        arm = _best(rows, over, range(len(positions)))
    if arm is None or over is None or not rows:
        return Shown(figure.name, UNKNOWN)
    if figure.of in (OF_SPEED, OF_MEMORY):
        name = figure.name
        if figure.arm == BEST:
            name += f" ({record.contenders[arm].name}, the best of {len(positions) - 1})"
        found = _ratio(rows, over, arm, figure.of)
        text = f"{table.interval_text(found, 3)} {figure.of}" if found else UNKNOWN
        return Shown(name, text, found)
    standings = [row for row in record.standings if figure.covers(row.label)]
    before, after = (_mean(_amounts(figure, experiment, standings, index)) for index in (over, arm))
    return Shown(figure.name, f"{_number(before)} -> {_number(after)} {figure.of}")


def _ratio(rows: Sequence[Measured], over: int, arm: int, of: str) -> Interval | None:
    """Returns the geometric mean over rows of one contender's speed or memory over another's."""
    pairs = [between(row.blocks, over, arm) for row in rows]
    parts = [speed if of == OF_SPEED else memory for speed, memory in pairs]
    return geometric_mean([each for each in parts if each is not None])


def _best(rows: Sequence[Measured], over: int, positions: Sequence[int]) -> int | None:
    """Returns the fastest of the others over these rows; those that fail on one do not count."""
    means: dict[int, float] = {}
    for index in positions:
        speeds = [between(row.blocks, over, index)[0] for row in rows]
        known = [each.estimate for each in speeds if each is not None]
        if index != over and rows and len(known) == len(rows):
            means[index] = fmean(known)
    return max(means, key=lambda index: means[index], default=None)


def _amounts(
    figure: Figure, experiment: Experiment, rows: Sequence[Standings], index: int
) -> Iterator[float]:
    """Yields what a contender has of a value, or of instructions, on the rows where it is known."""
    value = next((each for each in experiment.values if each.name == figure.of), None)
    for row in rows:
        standing = row.all[index]
        found = amount(value, standing) if value is not None else standing.instructions
        if found is not None:
            yield found


def _mean(amounts: Iterator[float]) -> float | None:
    found = list(amounts)
    return fmean(found) if found else None


def _number(value: float | None) -> str:
    """Returns a number with three digits that count, whole above a thousand."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
