"""A thousand fleets: what a canary claims falsely, what it finds in a day, and how narrow it is.

simulate.py                      fleets without an effect
simulate.py --cpu -2             the change saves 2 % of CPU; --memory -3
simulate.py --cpu 2 --margin 2   it costs as much as its margin: promoted or reverted falsely?
simulate.py --series FOLDER      noise from recorded series, such as CloudWatch's
simulate.py --restarting 0.1     a tenth of the treated units restarts all night
simulate.py --counters           CPU by counters, for each request that a balancer has counted
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from functools import cache, partial
from multiprocessing import Pool
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from msgspec.structs import replace

from hztune.canary.groups import FleetUnit
from hztune.canary.spec import Canary, CanaryMetric, CanarySpec, GuardRail
from hztune.canary.timetable import FleetTables
from hztune.canary.verdict import decided
from hztune.stats.intervals import t_quantile

STEP_MIN = 5
DAY = 24 * 60 // STEP_MIN
LOOKS = sorted({round(6 * 1.17**n) for n in range(60) if 6 * 1.17**n < DAY} | {DAY})
FAST, MIDDLE, SLOW = (0.02, 0.0), (0.02, 30.0), (0.007, 720.0)  # SD and correlation time, minutes
HOSTS = 0.08  # SD of hosts of one type
METRICS = ("cpu", "memory", "p99")


def canary_of(asked: argparse.Namespace, random: np.random.Generator) -> Canary:
    count = 2 * asked.units
    strata = ["old" if unit < 0.4 * count else "new" for unit in range(count)]
    treated = np.zeros(count, dtype=bool)
    for stratum in ("old", "new"):
        own = [unit for unit in range(count) if strata[unit] == stratum]
        treated[random.permutation(own)[: len(own) // 2]] = True
    units = tuple(
        FleetUnit(f"unit-{unit}", bool(treated[unit]), strata[unit]) for unit in range(count)
    )
    metrics = tuple(
        CanaryMetric(name=name, margin=f"{asked.margin * times:g}%", target=name != "p99")
        for name, times in zip(METRICS, (1.0, 1.5, 5.0), strict=True)
    )
    if asked.counters:
        metrics = (replace(metrics[0], counter=True, per="requests"), *metrics[1:])
    rails = (GuardRail(name="restarts"), GuardRail(name="oom"))
    spec = CanarySpec("simulated", "2026-01-01T00:00:00Z", "-", metrics, rails, file="-",
                      step_s=60.0 * STEP_MIN, settle_s=0.0)  # fmt: skip
    return Canary(spec, Path(), units, 0.0)


@cache
def recorded(folder: str) -> list[Any]:
    """Logs of recorded series of 5 minutes (CSV: time, value) without their hours of the day."""
    found = []
    for path in sorted(Path(folder).glob("*.csv")):
        logs = np.log(np.loadtxt(path, delimiter=",", skiprows=1, usecols=1))
        hours = np.arange(len(logs)) % DAY // 12
        found.append(logs - np.array([logs[hours == hour].mean() for hour in range(24)])[hours])
    return found


def noise(random: np.random.Generator, blocks: int, units: int, asked: Any, times: float) -> Any:
    """Pieces of recorded series, or noise of three lengths of time, with t_4 where it is fast."""
    if asked.series:
        series = [recorded(asked.series)[each] for each in random.integers(
            len(recorded(asked.series)), size=units)]  # fmt: skip
        starts = [random.integers(len(each)) for each in series]
        pieces = [np.roll(each, -at)[:blocks] for each, at in zip(series, starts, strict=True)]
        return asked.noise * np.array(pieces).T
    times *= asked.noise
    found = times * FAST[0] * random.standard_t(4, (blocks, units)) / math.sqrt(2.0)
    for deviation, minutes in (MIDDLE, SLOW):
        kept = math.exp(-STEP_MIN / minutes)
        at = random.standard_normal(units)
        for block in range(blocks):
            found[block] += times * deviation * at
            at = kept * at + math.sqrt(1.0 - kept**2) * random.standard_normal(units)
    return found


def fleet(asked: argparse.Namespace, random: np.random.Generator, canary: Canary) -> FleetTables:
    """All that a day of a fleet and the time before it show, blocks by units."""
    before, units = int(asked.baseline * DAY), len(canary.units)
    blocks = before + DAY
    clock = np.arange(blocks)[:, None]
    light = np.sin(2.0 * np.pi * clock / DAY)
    treated = np.array([unit.is_treated for unit in canary.units])
    is_after = (clock >= before) & treated
    restarting = is_after & (np.cumsum(treated) <= asked.restarting * treated.sum())
    restarted = random.random((blocks, units)) < np.where(restarting, 0.05, asked.restarts / DAY)
    last = np.maximum.accumulate(np.where(restarted, clock, -DAY), axis=0)
    age = (clock - last) * STEP_MIN
    effects = asked.cpu, asked.memory, asked.p99
    means = {}
    for name, effect, times in zip(METRICS, effects, (1.0, 1.2, 4.0), strict=True):
        kinds = np.array([unit.stratum == "old" for unit in canary.units]) * 0.25
        host = kinds + random.normal(0.0, HOSTS, units)
        drift = np.cumsum(random.normal(0.0, 0.002, (blocks, 1)), axis=0)
        day = light * (0.3 + random.normal(0.0, 0.01, units))
        young = np.exp(-age / (10.0 if name == "cpu" else 60.0))
        start = young * (0.3 if name != "memory" else -0.4)
        own = math.log1p(0.01 * effect) * is_after
        table = host + drift + day + start + own + noise(random, blocks, units, asked, times)
        table[random.random(table.shape) < 0.005] = math.nan  # scrapes that failed
        means[name] = np.exp(table)
    counts = np.cumsum(restarted, axis=0).astype(float)
    means |= {"restarts": counts, "oom": np.zeros((blocks, units))}
    if asked.counters:  # that of CPU begins again at a restart, that of requests does not
        lost, requests = np.isnan(means["cpu"]), np.exp(random.normal(0.0, 0.2, (blocks, units)))
        cpu = np.cumsum(np.where(lost, 1.0, means["cpu"]) * requests, axis=0)
        began = np.maximum.accumulate(np.where(restarted, cpu, 0.0), axis=0)
        means["cpu"] = np.where(lost, math.nan, cpu - began)
        means["requests"] = np.cumsum(requests, axis=0)
    return FleetTables(-before, means, means, np.isfinite(means["cpu"]) | np.isfinite(means["p99"]))


def plain_half(tables: FleetTables, canary: Canary) -> float:
    """Half of the 95 % interval of Student's test on the units' means, once, at the end."""
    treated = np.array([unit.is_treated for unit in canary.units])
    cpu = tables.figures(canary.spec.metrics[0])[tables.blocks > 0]
    means = np.nanmean(np.log(np.where(cpu > 0.0, cpu, np.nan)), axis=0)
    groups = means[treated], means[~treated]
    pooled = sum(group.var(ddof=1) * (len(group) - 1) for group in groups) / (len(means) - 2)
    error = math.sqrt(pooled * sum(1.0 / len(group) for group in groups))
    return t_quantile(0.025, len(means) - 2.0) * error


def day_of(asked: argparse.Namespace, seed: int) -> tuple[str, float, float, float, bool]:
    """Answer and hour of one fleet; half-widths of CPU, ours and plain; whether ours covered."""
    random = np.random.default_rng([asked.seed, seed])
    canary = canary_of(asked, random)
    tables = fleet(asked, random, canary)
    before, answer, hour, covered = -tables.first, "hold", math.inf, True
    truth = math.log1p(0.01 * asked.cpu)
    for look in LOOKS:
        seen = {name: table[: before + look] for name, table in tables.means.items()}
        found = decided(FleetTables(tables.first, seen, seen, tables.seen[: before + look]), canary)
        shown = found.effects[0].interval
        covered &= shown is None or shown.low <= truth <= shown.high
        if answer == "hold" and found.answer != "hold":
            answer, hour = found.answer, look * STEP_MIN / 60.0
    half = shown.half_width if shown else math.inf
    return answer, hour, half, plain_half(tables, canary), covered


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, default in (
        ("runs", 1000), ("units", 20), ("seed", 1),
        ("cpu", 0.0), ("memory", 0.0), ("p99", 0.0), ("margin", 2.0), ("baseline", 1.0),
        ("noise", 1.0), ("restarts", 0.2), ("restarting", 0.0), ("series", ""),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("--counters", action="store_true")
    asked = parser.parse_args()
    with Pool(2) as pool:
        found = pool.map(partial(day_of, asked), range(asked.runs), chunksize=5)
    answers = Counter(each[0] for each in found)
    print({name: f"{100 * answers[name] / asked.runs:.1f} %" for name in answers})
    hours = sorted(each[1] for each in found)
    tenth = hours[int(0.9 * len(hours))]
    print(f"hours until decided: median {median(hours):.1f}, in 90 % {tenth:.1f}")
    halves = [median(each[at] for each in found) for at in (2, 3)]
    print(f"half-width of CPU {100 * halves[0]:.2f} %, plain t-test {100 * halves[1]:.2f} %, "
          f"ratio {halves[0] / halves[1]:.2f}")  # fmt: skip
    print(f"covered at all looks: {sum(each[4] for each in found) / asked.runs:.1%}")


if __name__ == "__main__":
    main()
