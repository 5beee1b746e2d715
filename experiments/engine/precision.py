"""How precise a second of turns is: hz against itself, in pairs of fresh processes.

    python experiments/engine/precision.py [--repeats 30] [--cell remote-8 ...] [--pairs 2]

For each cell the table on stderr gives the standard deviation of log(A/A) for one measured second
of the two sides together, how it divides into what turns average away and what only fresh processes
do, the one that strayed farthest, the warm-up for each counted second, and the share of the wall
time that was measuring. With `--pairs N` each second is shared out among N fresh pairs: their
scatter averages, too, for more warm-up. JSON for programs goes to stdout.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import sys
from statistics import fmean
from typing import Any

from hztune.blocks import Arm
from hztune.machine import Machine
from hztune.measure.turns import TurnExecutor, tempo_for
from hztune.stats.ratios import PairRatio, pair_ratio
from hztune.workload import WorkloadSpec

SECOND_S = 1.0
CELLS = {
    "remote-2": ("remote", ["remote=50"], 2),
    "larson-2": ("larson", [], 2),
    "remote-8": ("remote", ["remote=50"], 8),
    "remote-32": ("remote", ["remote=90"], 32),
    "larson-32": ("larson", [], 32),
}


def measure(cell: str, repeats: int, pairs: int) -> dict[str, Any]:
    """Measures a cell: in each repeat some pairs of fresh processes share one counted second.

    Deviations are of log ratios for one measured second.
    """
    name, overrides, threads = CELLS[cell]
    spec = WorkloadSpec.from_text(name, overrides, threads)
    tempo = tempo_for(spec)
    rounds = max(2, round(SECOND_S * 500 / (tempo.turn_ms - tempo.skip_ms) / pairs))
    executor = TurnExecutor(spec, seed=1, tempo=tempo)
    ratios: list[PairRatio] = []
    for pair in range(repeats * pairs):
        block = executor.measure([Arm("hz"), Arm("hz")], role="aa", rounds=rounds, number=pair)
        ratio = pair_ratio(*block.outcomes)
        if ratio is None:
            raise SystemExit(f"{cell}: {block.outcomes}")
        ratios.append(ratio)
    seconds = [fmean(one.log_ratio for one in ratios[i::repeats]) for i in range(repeats)]
    variance = fmean(one**2 for one in seconds)
    within = fmean(one.turn_variance for one in ratios if not math.isnan(one.turn_variance)) / pairs
    spent = executor.accounting
    return {
        "cell": cell,
        "repeats": repeats,
        "pairs": pairs,
        "turn_ms": tempo.turn_ms,
        "deviation": math.sqrt(variance),
        "of_turns": math.sqrt(within),
        "of_processes": math.sqrt(max(0.0, variance - within)),
        "warmup_per_counted": spent.warmup_s / spent.measured_s,
        "measuring_share": (spent.measured_s + spent.warmup_s) / spent.wall_s,
        "disturbed_share": spent.disturbed / spent.turns,
        "load_average": os.getloadavg()[0],
        "farthest": max(abs(one) for one in seconds),
        "log_ratios": tuple(seconds),
    }


ROW = (
    "| {cell} | {pairs} | {turn_ms:g} ms | {deviation:.3f} | {of_turns:.3f} | {of_processes:.3f} "
    "| {farthest:.2f} | {warmup_per_counted:.2f} s | {measuring_share:.0%} "
    "| {disturbed_share:.0%} | {load_average:.1f} |"
)


def main() -> None:
    """Measures the cells that were asked for; a table for people, JSON for programs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--cell", action="append", choices=list(CELLS))
    parser.add_argument("--pairs", type=int, default=1, help="that share a second")
    options = parser.parse_args()
    columns = "cell | pairs | turn | SD of 1 s | of turns | of processes | farthest"
    columns += " | warm-up | share | disturbed | load"
    print(f"| {columns} |\n|{'---|' * 11}", file=sys.stderr)
    results = []
    for cell in options.cell or CELLS:
        found = measure(cell, options.repeats, options.pairs)
        results.append(found)
        print(ROW.format_map(found), file=sys.stderr)
    json.dump(
        {"schema": 1, "machine": dataclasses.asdict(Machine.here()), "cells": results}, sys.stdout
    )


if __name__ == "__main__":
    main()
