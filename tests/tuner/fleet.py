"""A fleet on paper: rows of two groups of units, and the canary that judges them."""

from __future__ import annotations

import math

import numpy as np

from hztune.canary.groups import FleetUnit
from hztune.canary.sources import FleetRow
from hztune.canary.spec import Canary, CanaryMetric, CanarySpec

START = "2026-01-01T00:00:00Z"
START_S = 1767225600.0
CPU = CanaryMetric(name="cpu", margin="2%", target=True)


def rows_of(metric, table, first=0, units=None):
    """Rows of a table of blocks and units, block `first` above; NaN: there is none."""
    return [
        FleetRow(START_S + 60.0 * (first + block), units[at] if units else f"u{at}", metric, value)
        for (block, at), value in np.ndenumerate(np.array(table, dtype=float))
        if not math.isnan(value)
    ]


def fleet(count=10, before=60, after=120, seed=1, treated=1.0, sd=0.01, change=None):
    """Rows of cpu of two groups on unlike hosts; `change` may alter the table before it is cut."""
    random = np.random.default_rng(seed)
    table = random.normal(0.0, 0.3, 2 * count) + random.normal(0.0, sd, (before + after, 2 * count))
    table += np.sin(np.arange(before + after) / 20.0)[:, None]  # the time of day
    table = np.exp(table)
    table[before:, count:] *= treated
    if change:
        change(table)
    return rows_of("cpu", table, 1 - before)


def canary(count=10, metrics=(CPU,), rails=(), folder=None, control=None, **more):
    units = tuple(FleetUnit(f"u{at}", at >= (control or count), "") for at in range(2 * count))
    more = {"settle_s": 0.0, "baseline_s": 3600.0, "planned_s": 7200.0, "file": "rows.csv", **more}
    spec = CanarySpec("a test", START, "groups.csv", tuple(metrics), tuple(rails), **more)
    return Canary(spec, folder, units, START_S)
