"""Preloaded by a worker of Dask: it draws its blocks, each in a hundredth of a second."""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))

from lab.replay import ModelNoise, ReplayExecutor, Truth

from hztune.measure import Around, cluster

BLOCK_S = 0.01


class Slow(Around):
    """Takes its time for each block."""

    def measure(self, arms, *, role, rounds, number):
        time.sleep(BLOCK_S)
        return self.inner.measure(arms, role=role, rounds=rounds, number=number)


def truth(arm):
    """Huge pages are faster."""
    return Truth(0.2 if arm.config.get("thp") == "on" else 0.0)


DRAWN = Slow(ReplayExecutor(truth, ModelNoise(within=0.02, between=0.01, common=0.05), seed=1))
cluster.kept_executor = lambda target: DRAWN
