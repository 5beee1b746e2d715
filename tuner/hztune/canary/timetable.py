"""Rows cut into blocks of time: a table of blocks and units for each name of rows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hztune.canary.effects import FloatTable
from hztune.canary.sources import FleetRow
from hztune.canary.spec import Canary, CanaryMetric

LEAST_SHARE = 0.25  # of the units of a group that must be seen for a block to count
SILENT_BLOCKS = 5  # one after the other without a row of any metric: an event
_BEGAN_AGAIN = 0.5  # of what it was, at most, is left of a counter that began again at 0


class FleetTables(NamedTuple):
    """All tables have the shape (blocks, units); NaN where there was no row."""

    # block of the first line; block 0 is (start, start + step_s], those below are before it
    first: int
    means: dict[str, FloatTable]  # of the rows of a block
    lasts: dict[str, FloatTable]  # the last one of them
    seen: NDArray[np.bool_]  # there was a row of a metric, even if it is NaN

    @property
    def blocks(self) -> NDArray[np.int_]:
        return self.first + np.arange(len(self.seen))

    @property
    def passed(self) -> int:
        # blocks since the start
        return int(self.blocks[self.seen.any(axis=1)].max(initial=-1)) + 1

    def figures(self, metric: CanaryMetric) -> FloatTable:
        """What is compared, ratios not yet as logarithms; NaN where nothing is known."""
        if not metric.counter:
            over = self.means[metric.per] if metric.per else 1.0
            with np.errstate(divide="ignore", invalid="ignore"):
                return self.means[metric.rows] / over
        found = self.lasts[metric.rows]
        if not metric.per:
            grown, gaps, fell = growth(found)
            return np.where(fell, np.nan, grown / gaps)  # since when it began again is not known
        both = np.where(np.isfinite(found), self.lasts[metric.per], np.nan)
        over, _, over_fell = growth(both)
        grown, _, fell = growth(np.where(np.isfinite(both), found, np.nan))
        with np.errstate(divide="ignore", invalid="ignore"):
            # where one alone began again, they are of unlike stretches of time
            return np.where(fell == over_fell, grown / over, np.nan)


def tabled(rows: Iterable[FleetRow], canary: Canary) -> FleetTables:
    """The tables of rows, in any order; what is before the baseline is left out."""
    spec, column = canary.spec, {unit.name: at for at, unit in enumerate(canary.units)}
    names = {name: at for at, name in enumerate(spec.wanted)}
    told = [
        (row.at_s, names[row.metric], column[row.unit], row.value)
        for row in sorted(rows)
        if row.metric in names and row.unit in column
    ]
    at_s, name, unit, value = np.array(told or [(canary.start_s, 0, 0, math.nan)]).T
    block = np.ceil((at_s - canary.start_s) / spec.step_s) - 1.0
    last = np.full(len(column), -math.inf)
    np.maximum.at(last, unit.astype(int), block)
    end = max(_end(last), *(_end(last[group]) for group in of_groups(canary)))
    # events of block 0 are counted from what the one before has told
    known = (block >= min(-1.0, -spec.baseline_s / spec.step_s)) & (block <= end)
    first = int(min(block[known], default=0))
    cells = tuple(each[known].astype(int) for each in (name, block - first, unit))
    shape = (len(names), int(max(cells[1], default=0)) + 1, len(column))
    seen = np.zeros(shape, dtype=bool)
    seen[cells] = bool(told)
    is_number = ~np.isnan(value[known])
    cells, number = tuple(each[is_number] for each in cells), value[known][is_number]
    sums, counts, lasts = np.zeros(shape), np.zeros(shape), np.full(shape, np.nan)
    np.add.at(sums, cells, number)
    np.add.at(counts, cells, 1.0)
    lasts[cells] = np.where(np.isfinite(number), number, np.nan)
    means = sums / np.where(counts > 0.0, counts, np.nan)
    lively = np.isin(list(names), [each.rows for each in spec.metrics])
    by_mean, by_last = (dict(zip(names, each, strict=True)) for each in (means, lasts))
    return FleetTables(first, by_mean, by_last, np.logical_or.reduce(seen[lively]))


def of_groups(canary: Canary) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    treated = np.array([unit.is_treated for unit in canary.units])
    return treated, ~treated


def _end(last: FloatTable) -> float:
    """The last block of units by the last one of each; later ones are of clocks ahead."""
    told = np.sort(last[np.isfinite(last)])[::-1]
    return float(told[int(LEAST_SHARE * len(told))]) if len(told) else -math.inf


def growth(counts: FloatTable) -> tuple[FloatTable, FloatTable, NDArray[np.bool_]]:
    """What counters grew by, in how many blocks, and whether they fell: began again at 0."""
    grown, gaps = np.full(counts.shape, np.nan), np.full(counts.shape, np.nan)
    fell = np.zeros(counts.shape, dtype=bool)
    for unit in range(counts.shape[1]):
        known = np.flatnonzero(np.isfinite(counts[:, unit]))
        old, new = counts[known[:-1], unit], counts[known[1:], unit]
        # one that has fallen by less is a sum that has lost a part: its growth is not known
        anew = np.where(new <= _BEGAN_AGAIN * old, new, np.nan)
        grown[known[1:], unit] = np.where(new < old, anew, new - old)
        gaps[known[1:], unit] = np.diff(known)
        fell[known[1:], unit] = new < old
    return grown, gaps, fell


def events(tables: FleetTables, name: str) -> FloatTable:
    """Events of a rail, shape (blocks, units); a counter that begins after its unit began at 0."""
    counts = tables.lasts[name].copy()
    for unit in np.flatnonzero(np.isfinite(counts).any(axis=0)):
        began = (tables.seen[:, unit] | np.isfinite(counts[:, unit])).argmax()
        counts[began, unit] = np.nan_to_num(counts[began, unit])
    return np.nan_to_num(growth(counts)[0])


def silences(tables: FleetTables, canary: Canary) -> FloatTable:
    """Where a unit that was seen has been silent for SILENT_BLOCKS, shape (blocks, units).

    Blocks in which less than a quarter of each group is seen are no time: the source was silent.
    Nor is a silence counted that began before units had settled, for which SILENT_BLOCKS are the
    most, and ended within SILENT_BLOCKS of that.
    """
    seen, found = tables.seen, np.zeros(tables.seen.shape)
    share = np.maximum(*(seen[:, group].mean(axis=1) for group in of_groups(canary)))
    lines = np.flatnonzero(share >= LEAST_SHARE)
    settled = min(SILENT_BLOCKS, math.ceil(canary.spec.settle_s / canary.spec.step_s))
    blocks = np.append(tables.blocks[lines], tables.blocks[lines].max(initial=0) + 1)
    for unit in range(seen.shape[1]):
        own = np.append(np.flatnonzero(seen[lines, unit]), len(lines))
        begin, end = own[:-1], own[1:]
        is_start = (blocks[begin] < settled) & (blocks[end] <= settled + SILENT_BLOCKS)
        late = begin[(end - begin > SILENT_BLOCKS) & ~is_start] + SILENT_BLOCKS
        found[lines[late], unit] = 1.0
    return found
