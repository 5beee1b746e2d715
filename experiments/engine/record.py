"""Records a landscape: how fast hz is in some hundred configurations of one workload.

    python experiments/engine/record.py remote-8 [--configs 300] [--passes 3]

Every configuration stands beside the default in `passes` blocks, each time with other neighbours.
The file landscape-NAME.json gets the log ratio of each to the default with its standard error and
its memory, and A/A blocks, whose noise a simulation draws from. About 300 configurations a quarter
of an hour; the machine must be quiet. An interruption keeps what there is.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hztune.machine import Machine
from hztune.measure import Arm
from hztune.measure.types import Executor
from hztune.measure.workloads import workload_executor
from hztune.samples import Block
from hztune.search import SLOTS, Ledger
from hztune.space import Space
from hztune.stats import pool_plain
from hztune.tune.candidates import candidates
from hztune.workload import WorkloadSpec

HERE = Path(__file__).parent
WORKLOADS = {
    "remote-8": ("remote@main", ["remote=50"], 8),
    "larson-4": ("larson", [], 4),
    "mstress-8": ("mstress", [], 8),
    "sh6-4": ("sh6", [], 4),
}
ROUNDS = 12
NOISE_BLOCKS, NOISE_ROUNDS = 12, 48


def drawn(space: Space, count: int, seed: int) -> list[Arm]:
    """Different configurations, evenly over the space; the presets are among them."""
    rng = random.Random(seed)
    arms = {space.arm(preset.config).key: space.arm(preset.config) for preset in space.presets}
    while len(arms) < count:
        arm = space.arm(space.sample(rng))
        arms[arm.key] = arm
    return list(arms.values())[:count]


def blocks(executor: Executor, arms: list[Arm], passes: int, seed: int) -> Iterator[Block]:
    """Measures all arms `passes` times, SLOTS of them beside the default in each block."""
    rng = random.Random(seed)
    pair = 0
    for _ in range(passes):
        order = rng.sample(arms, len(arms))
        for start in range(0, len(order), SLOTS):
            beside = [Arm("hz"), *order[start : start + SLOTS]]
            yield executor.measure(beside, role="search", rounds=ROUNDS, pair=pair)
            pair += 1


def noise(executor: Executor) -> list[list[list[float]]]:
    """Log rates of A/A blocks, shape (blocks, rounds, arms), each less its block's mean."""
    recorded = []
    for pair in range(NOISE_BLOCKS):
        arms = [Arm("hz")] * (1 + SLOTS)
        block = executor.measure(arms, role="aa", rounds=NOISE_ROUNDS, pair=10_000 + pair)
        logs = [[math.log(turn.rate) for turn in one.turns] for one in block.outcomes]
        mean = sum(map(sum, logs)) / sum(map(len, logs))
        recorded.append([[round(x - mean, 4) for x in turns] for turns in zip(*logs, strict=False)])
    return recorded


def record(name: str, count: int, passes: int, path: Path) -> None:
    """Records a landscape; its file is there as soon as the configurations are measured."""
    workload, overrides, threads = WORKLOADS[name]
    spec = WorkloadSpec.from_text(workload, overrides, threads)
    space = candidates("hz", "", threads).space
    machine = Machine.here()
    executor = workload_executor(spec, seed=1, machine=machine, processes=1 + SLOTS)
    arms = drawn(space, count, seed=1)
    ledger = Ledger()
    total = passes * math.ceil(len(arms) / SLOTS)
    try:
        for number, block in enumerate(blocks(executor, arms, passes, seed=2)):
            ledger.add(block)
            print(f"\r{name}: block {number + 1} of {total}", end="", file=sys.stderr)
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
    points = []
    for seen in ledger.searched.values():
        ratio, error = pool_plain(seen.pairs, ledger.noise()) if seen.pairs else (0.0, 0.0)
        rss = sum(seen.rss) / len(seen.rss) if seen.rss else 0.0
        status = "ok" if not seen.failures else seen.failures[0].status
        points.append(
            {
                "params": dict(seen.arm.params),
                "log_ratio": round(ratio, 5),
                "error": round(error, 5),
                "log_rss": round(rss, 4),
                "status": status,
            }
        )
    found: dict[str, Any] = {
        "schema": 1,
        "workload": spec.label,
        "space_sha256": space.fingerprint(),
        "machine": asdict(machine),
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "points": points,
        "noise": [],
    }
    path.write_text(json.dumps(found, separators=(",", ":")) + "\n")
    found["noise"] = noise(executor)
    path.write_text(json.dumps(found, separators=(",", ":")) + "\n")
    print(f"\n{path}: {len(points)} configurations", file=sys.stderr)


def main() -> None:
    """Records the landscapes that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="+", choices=list(WORKLOADS), metavar="NAME")
    parser.add_argument("--configs", type=int, default=300)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--out", type=Path, default=HERE, help="where the files go")
    options = parser.parse_args()
    for name in options.names:
        record(name, options.configs, options.passes, options.out / f"landscape-{name}.json")


if __name__ == "__main__":
    main()
