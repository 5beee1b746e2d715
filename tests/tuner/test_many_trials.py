"""A study of thousands of trials opens whole, goes on, and stays small."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from lab.replay import ModelNoise, ReplayExecutor, Truth

from hztune.blocks import Arm
from hztune.machine import Machine
from hztune.space import Space
from hztune.store.log import LocalStudy
from hztune.tune.candidates import TuneTarget, candidates

from .conftest import tell

CANDIDATES = 6
OPENER = """
import json, re, sys
from pathlib import Path
from hztune.machine import Machine
from lab.replay import ModelNoise, ReplayExecutor, Truth, VirtualClock
from hztune.progress import Quiet
from hztune.store.log import LocalStudy
from hztune.study.bench import Budget, Workbench
from hztune.study.ledger import Ledger
from hztune.study.search import Search
from hztune.tune.candidates import TuneTarget, candidates

space = candidates(["hz"], "", TuneTarget(8)).space
store = LocalStudy(Path(sys.argv[1]), {}, Machine.here(), resume=True)
ledger = Ledger.of(store.replay()) if store.ending is None else None
clock = VirtualClock()
executor = ReplayExecutor(lambda arm: Truth(), ModelNoise(), seed=2, clock=clock)
bench = Workbench(executor, ledger, Budget(clock, 1e6), Quiet())
bench.calibrated(0.001)
search = Search(bench, space, seed=1)
measured, new = set(ledger.searched), []
for _ in range(int(sys.argv[2])):
    arms = search._batch(proposing=True)
    new += [arm.key not in measured for arm in arms]
    bench.measure([search.control, *arms], "search", 4)
    measured |= {arm.key for arm in arms}
print(json.dumps({
    "trials": ledger.configurations - sum(new),
    "new": sum(new),
    "rss_mb": int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024,
}))
"""


def write(folder: Path, space: Space, trials: int, rounds: int) -> None:
    """Writes the samples of a study that has measured that many configurations."""
    executor = ReplayExecutor(lambda arm: Truth(), ModelNoise(), seed=1)
    rng = Random(1)
    configs = {space.arm(config).key: space.arm(config) for config in
               (space.sample(rng) for _ in range(2 * trials))}  # fmt: skip
    arms = list(configs.values())[:trials]
    with LocalStudy(folder, {}, Machine.here()) as store:
        for pair, start in enumerate(range(0, trials, CANDIDATES)):
            beside = [Arm("hz"), *arms[start : start + CANDIDATES]]
            tell(store, executor.measure(beside, role="search", rounds=rounds, number=pair))


@pytest.mark.slow
def test_a_study_of_two_thousand_trials_opens_and_asks_for_new_ones(tmp_path: Path) -> None:
    write(tmp_path, candidates(["hz"], "", TuneTarget(8)).space, trials=2000, rounds=4)
    done = subprocess.run(
        [sys.executable, "-c", OPENER, str(tmp_path), "2"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
        capture_output=True,
        timeout=300,
    )
    found = json.loads(done.stdout)
    assert found["trials"] == 2000 and found["new"] > 0
    assert found["rss_mb"] < 500
