"""Rows cut into blocks of time: a table of blocks and units for each name of rows."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hztune.canary.effects import FloatTable
from hztune.canary.sources import FleetRow
from hztune.canary.spec import Canary, CanaryMetric

LEAST_SHARE = 0.25  # of the units that must be seen for a block to count
SILENT_BLOCKS = 5  # in a row without a figure: an event


class FleetTables(NamedTuple):
    """All tables have the shape (blocks, units); NaN where there was no row."""

    first: int  # block of the first line; those below 0 are before the start
    means: dict[str, FloatTable]  # of the rows of a block
    lasts: dict[str, FloatTable]  # the last one of them

    @property
    def blocks(self) -> NDArray[np.int_]:
        return self.first + np.arange(len(self.seen))

    @property
    def seen(self) -> NDArray[np.bool_]:
        """Where there is any row."""
        return functools.reduce(np.logical_or, map(np.isfinite, self.lasts.values()))

    def figures(self, metric: CanaryMetric) -> FloatTable:
        """What is compared, in logarithms if ratios are; NaN where that is none."""
        tables = self.lasts if metric.counter else self.means
        found, over = tables[metric.rows], np.ones(self.seen.shape)
        if metric.counter:
            found, over = growth(found)
        if metric.per:
            over = growth(tables[metric.per])[0] if metric.counter else tables[metric.per]
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.log(found / over) if metric.is_ratio else found / over
        return np.where(np.isfinite(found), found, np.nan)


def tabled(rows: Iterable[FleetRow], canary: Canary) -> FleetTables:
    """The tables of rows, in any order; what is before the baseline is left out."""
    spec, column = canary.spec, {unit.name: at for at, unit in enumerate(canary.units)}
    names = {name: at for at, name in enumerate(spec.wanted)}
    told = [
        (row.at_s, names[row.metric], column[row.unit], row.value)
        for row in sorted(rows)
        if row.metric in names and row.unit in column and not math.isnan(row.value)
    ]  # fmt: skip
    at_s, name, unit, value = np.array(told or [(canary.start_s, 0, 0, math.nan)]).T
    block = np.floor((at_s - canary.start_s) / spec.step_s)
    ends = sorted((block[unit == each].max() for each in np.unique(unit)), reverse=True)
    end = ends[int(LEAST_SHARE * len(ends))]  # later ones are of clocks that are ahead
    known = (block >= -spec.baseline_s / spec.step_s) & (block <= end)
    first = int(min(block[known], default=0))
    cells = tuple(each[known].astype(int) for each in (name, block - first, unit))
    shape = (len(names), int(max(cells[1], default=0)) + 1, len(column))
    sums, counts, lasts = np.zeros(shape), np.zeros(shape), np.full(shape, np.nan)
    np.add.at(sums, cells, value[known])
    np.add.at(counts, cells, 1.0)
    lasts[cells] = np.where(np.isfinite(value[known]), value[known], np.nan)
    means = sums / np.where(counts > 0.0, counts, np.nan)
    return FleetTables(first, *(dict(zip(names, each, strict=True)) for each in (means, lasts)))


def growth(counts: FloatTable) -> tuple[FloatTable, FloatTable]:
    """What counters grew by, and in how many blocks; one that has fallen began again at 0."""
    grown, gaps = np.full(counts.shape, np.nan), np.full(counts.shape, np.nan)
    for unit in range(counts.shape[1]):
        known = np.flatnonzero(np.isfinite(counts[:, unit]))
        values, more = counts[known, unit], np.diff(counts[known, unit])
        grown[known[1:], unit] = np.where(more < 0.0, values[1:], more)
        gaps[known[1:], unit] = np.diff(known)
    return grown, gaps


def events(tables: FleetTables, name: str) -> FloatTable:
    """Events of a rail, shape (blocks, units); a counter that begins after its unit began at 0."""
    counts = tables.lasts[name].copy()
    for unit in np.flatnonzero(np.isfinite(counts).any(axis=0)):
        began = tables.seen[:, unit].argmax()
        counts[began, unit] = np.nan_to_num(counts[began, unit])
    return np.nan_to_num(growth(counts)[0])


def silences(tables: FleetTables) -> FloatTable:
    """Where a unit that was seen has been silent for SILENT_BLOCKS, shape (blocks, units).

    Blocks in which less than a quarter of all is seen are no time: the source was silent.
    """
    seen, found = tables.seen, np.zeros(tables.seen.shape)
    lines = np.flatnonzero(seen.mean(axis=1) >= LEAST_SHARE)
    for unit in range(seen.shape[1]):
        own = np.append(np.flatnonzero(seen[lines, unit]), len(lines))
        late = own[:-1][np.diff(own) > SILENT_BLOCKS] + SILENT_BLOCKS
        found[lines[late], unit] = 1.0
    return found
