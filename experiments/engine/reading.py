"""What the recorded landscapes say: how fast configurations are, and which parameters decide it.

    python experiments/engine/reading.py experiments/engine/landscape-*.json

A line each: how many configurations are surely faster or slower than the default (Student's
interval of their pairs, 95 %), the best of those that were measured at least LEAST_PAIRS times, and
the parameters that most likely have an effect at all, by the model of the search.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from hztune.params import Value
from hztune.sparse import Axis, Measurement, SparseModel
from hztune.sparse.grid import FAR
from hztune.stats.intervals import fixed_interval

LEAST_PAIRS = 6
NAMED = 4


def told(config: Mapping[str, Value]) -> str:
    """A configuration in words."""
    return " ".join(f"{name}={value}" for name, value in sorted(config.items())) or "the default"


def line(path: Path) -> str:
    """One landscape as a row of a table."""
    found: dict[str, Any] = json.loads(path.read_text())
    points = [point for point in found["points"] if point["status"] == "ok"]
    ends = [fixed_interval(point["pairs"]) for point in points]
    faster = sum(end.low > 0.0 for end in ends)
    slower = sum(end.high < 0.0 for end in ends)
    known = [
        (end, point) for end, point in zip(ends, points, strict=True) if end.pairs >= LEAST_PAIRS
    ]
    best, where = max(known, key=lambda one: one[0].estimate)
    deciding = islice(likely(points, found["defaults"]), NAMED)
    return " | ".join(
        [
            f"| {path.stem.removeprefix('landscape-')}",
            f"{len(points)}",
            f"{faster}",
            f"{slower}",
            f"{math.exp(best.estimate):.3f} [{math.exp(best.low):.3f}, {math.exp(best.high):.3f}]",
            told(where["params"]),
            ", ".join(f"{name} {share:.0%}" for name, share in deciding) + " |",
        ]
    )


def likely(
    points: Sequence[Mapping[str, Any]], defaults: Mapping[str, Value]
) -> list[tuple[str, float]]:
    """How likely each parameter has an effect, by hztune's own model, the likeliest first."""
    seen = {n: sorted({p["params"].get(n, d) for p in points} | {d}, key=str) for n, d in
            defaults.items()}  # fmt: skip
    names = [name for name, values in seen.items() if len(values) > 1]
    axes = [
        Axis(n, len(seen[n]), seen[n].index(defaults[n]), not isinstance(defaults[n], str))
        for n in names
    ]
    levels = [
        [seen[n].index(p["params"][n]) if n in p["params"] else -1 for n in names] for p in points
    ]
    pairs = [(n, pair) for n, point in enumerate(points) for pair in point["pairs"]]
    spread = float(np.median([np.var(p["pairs"], ddof=1) for p in points if len(p["pairs"]) > 1]))
    measured = [Measurement(n, k, max(FAR, y), spread) for k, (n, y) in enumerate(pairs)]
    model = SparseModel(axes, np.array(levels), measured)
    return sorted(zip(names, model.matters().tolist(), strict=True), key=lambda each: -each[1])


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("landscapes", nargs="+", type=Path)
    landscapes = parser.parse_args().landscapes
    columns = "landscape | configurations | faster | slower | best | it is | what decides"
    print(f"| {columns} |\n|{'---|' * 7}")
    for path in landscapes:
        print(line(path))


if __name__ == "__main__":
    main()
