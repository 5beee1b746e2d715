"""Studies for the tests of reports: they replay a landscape, and hold text that is hostile."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lab.replay import ModelNoise, ReplayExecutor, Truth

from hztune import params, space
from hztune.blocks import Arm, Block, Role
from hztune.machine import Machine
from hztune.measure import Around
from hztune.space import Space
from hztune.store import Sink

from .conftest import tell

HOSTILE = "</title><script>alert(1)</script>\"'&<img src=x onerror=alert(2)>"
QUIET = ModelNoise(within=0.03, between=0.01, common=0.1)
MACHINE = Machine(HOSTILE, 2, None, "6.1.0", "glibc 2.36", 4096, "madvise", "", "", 8, None)


@dataclass
class Recorded(Around):
    """An executor that replays, counts, and keeps its samples; it may be stopped on the way."""

    inner: ReplayExecutor
    store: Sink
    stop_at: float = math.inf

    def measure(self, arms: Sequence[Arm], *, role: Role, rounds: int, number: int) -> Block:
        if self.inner.clock.now() > self.stop_at:
            raise KeyboardInterrupt
        block = self.inner.measure(arms, role=role, rounds=rounds, number=number)
        outcomes = []
        for index, outcome in enumerate(block.outcomes):
            count = 131_000 if outcome.arm.config.get("depot_lock") == "spin" else 943_000
            detail = f"{outcome.detail} {HOSTILE}" if outcome.detail else ""
            counted = {"ring_full": count, HOSTILE: index}
            outcomes.append(replace(outcome, counters=counted, detail=detail))
        altered = replace(block, outcomes=tuple(outcomes))
        tell(self.store, altered)
        return altered


def spin_wins(arm: Arm) -> Truth:
    """The spin lock is worth a quarter; no other parameter matters, and one value crashes."""
    if arm.config.get("magazine_growth") == "full":
        return Truth(status="crash")
    return Truth(0.25 if arm.config.get("depot_lock") == "spin" else 0.0)


def space_of_hz(folder: Path) -> Space:
    """A few of hz's own parameters; the file is made in a folder."""
    path = folder / "few.toml"
    names = ("depot_lock", "magazine_growth", "magazine_cap", "depot_slots", "thp")
    tables = "".join(f"[parameters.{name}]\n" for name in names) + 'values = ["off", "on"]\n'
    path.write_text(f'schema = 1\nallocator = "hz"\n{tables}')
    return space.load(path, params.table(), check=params.check)
