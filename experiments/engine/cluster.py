"""How much sooner do four workers of a cluster find what one finds?

    python experiments/engine/cluster.py            # a few minutes; the workers sleep

The workers draw their blocks from a landscape with three planted gains, and take BLOCK_S for each,
as if they measured. Told is when the incumbent first has 90 % of the gain that can be had.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import distributed

from hztune.blocks import Arm, Block, Role
from hztune.measure import Around, cluster
from hztune.measure.cluster import ClusterExecutor, Target, first_machine
from hztune.progress import Quiet
from hztune.store import Nowhere
from hztune.study.bench import Budget, SystemClock, Workbench
from hztune.study.ledger import Ledger
from hztune.study.search import Search
from hztune.tune.request import TuneRequest, understand
from hztune.workload import WorkloadSpec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lab.replay import ModelNoise, ReplayExecutor, Truth

BLOCK_S = 1.5
GAINS = {"thp": ("on", 0.10), "growth_rent": (64, 0.06), "span_bytes": (1 << 20, 0.04)}
ENOUGH = 0.9


def truth(arm: Arm) -> Truth:
    """The planted gains of an arm."""
    return Truth(
        sum(gain for name, (value, gain) in GAINS.items() if arm.config.get(name) == value)
    )


class Slow(Around):
    """Takes its time for each block."""

    def measure(self, arms: Sequence[Arm], *, role: Role, rounds: int, number: int) -> Block:
        """Measures a block, and lets the time of a real one go by."""
        time.sleep(BLOCK_S)
        return self.inner.measure(arms, role=role, rounds=rounds, number=number)


def dask_setup(worker: distributed.Worker) -> None:
    """Lets a worker draw its blocks; Dask calls it where this file is preloaded."""
    drawn = Slow(ReplayExecutor(truth, ModelNoise(within=0.05, between=0.02, common=0.1), seed=1))
    cluster.executor_for = lambda target: drawn


def found_after(workers: int, seed: int, most_s: float) -> float:
    """Seconds until a search with so many workers has ENOUGH of the gain; `most_s`: it has not."""
    task = understand(TuneRequest(WorkloadSpec.from_text("larson", (), 2), seed=seed))
    best = sum(gain for _, gain in GAINS.values())
    with (
        distributed.LocalCluster(
            n_workers=workers, threads_per_worker=1, dashboard_address=None, preload=[__file__]
        ) as there,
        cluster.cluster(there.scheduler_address) as client,
    ):
        target = Target(task.request.workloads, (), seed, 7)
        machine = first_machine(client)
        executor = ClusterExecutor(client, target, task.space.control, Nowhere(), machine)
        ledger, budget = Ledger(machine=machine.fingerprint), Budget(SystemClock(), most_s)
        times: list[float] = []

        class Watch(Quiet):
            """Looks at the incumbent after each block."""

            def update(self, status: object) -> None:
                """Ends the search where it has found enough."""
                leader = search.best()
                enough = leader and truth(leader.record.arm).log_ratio >= ENOUGH * best
                if enough and not times:
                    times.append(budget.elapsed())

        bench = Workbench(executor, ledger, budget, Watch(), lambda: bool(times))
        search = Search(bench, task.space, seed)
        try:
            search.run(1.0)
        except Exception:
            if not times:
                raise
        return times[0] if times else most_s


def main() -> None:
    """Prints the seconds of each seed, and the ratio of the medians."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args()
    found = {
        workers: [found_after(workers, seed, given.seconds) for seed in range(given.seeds)]
        for workers in (1, 4)
    }
    for workers, seconds in found.items():
        print(f"{workers} workers: {', '.join(f'{each:.1f}' for each in seconds)} s")
    print(f"four take {median(found[4]) / median(found[1]):.2f} of the time of one")


if __name__ == "__main__":
    main()
