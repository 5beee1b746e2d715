"""A study of thousands of trials opens whole, goes on, and stays small."""

from __future__ import annotations

import os
import subprocess
import sys
from random import Random

import pytest
from lab.replay import ReplayExecutor

from hztune.blocks import Arm
from hztune.store.log import LocalStudy
from hztune.study.ledger import Ledger
from hztune.study.search import Search
from hztune.tuning.candidates import TuneTarget, candidates

from .conftest import MACHINE, bench_of, flat, resident_kb, tell

TRIALS, CANDIDATES = 2000, 6
OPEN = """
import sys
from pathlib import Path
from tests.tuner import test_many_trials
test_many_trials.open_and_go_on(Path(sys.argv[1]))
"""


def space():
    return candidates(["hz"], "", TuneTarget(8)).space


def open_and_go_on(folder):
    with LocalStudy(folder, {}, MACHINE, resume=True) as store:
        ledger = Ledger.of(store.replay())
    known = {*ledger.searched}
    bench = bench_of(flat, ledger=ledger, budget_s=1e6)
    bench.calibrated(0.001)
    search = Search(bench, space(), seed=1)
    proposed = {arm.key for arm in search._batch(proposing=True)}
    assert len(known) == ledger.configurations == TRIALS
    assert proposed - known
    assert resident_kb() < 500 << 10


@pytest.mark.slow
def test_a_study_of_two_thousand_trials_opens_and_asks_for_new_ones(tmp_path):
    rng, executor, arms = Random(1), ReplayExecutor(flat, seed=1), dict[str, Arm]()
    hz = space()
    while len(arms) < TRIALS:
        arm = hz.arm(hz.sample(rng))
        arms[arm.key] = arm
    with LocalStudy(tmp_path, {}, MACHINE) as store:
        for pair, start in enumerate(range(0, TRIALS, CANDIDATES)):
            beside = [Arm("hz"), *[*arms.values()][start : start + CANDIDATES]]
            tell(store, executor.measure(beside, role="search", rounds=4, number=pair))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", OPEN, tmp_path], env=environment, check=True)
