"""A study of thousands of trials opens whole and goes on."""

from __future__ import annotations

from random import Random

import pytest
from lab.replay import ReplayExecutor

from hztune.blocks import Arm
from hztune.store.log import LocalStudy
from hztune.study.ledger import Ledger
from hztune.study.search import Search
from hztune.tuning.candidates import TuneTarget, candidates

from .conftest import MACHINE, bench_of, flat, tell

TRIALS, CANDIDATES = 2000, 6


@pytest.mark.slow
def test_a_study_of_two_thousand_trials_opens_and_asks_for_new_ones(tmp_path):
    rng, executor, arms = Random(1), ReplayExecutor(flat, seed=1), dict[str, Arm]()
    hz = candidates(["hz"], "", TuneTarget(8)).space
    while len(arms) < TRIALS:
        arm = hz.arm(hz.sample(rng))
        arms[arm.key] = arm
    with LocalStudy(tmp_path, {}, MACHINE) as store:
        for pair, start in enumerate(range(0, TRIALS, CANDIDATES)):
            beside = [Arm("hz"), *[*arms.values()][start : start + CANDIDATES]]
            tell(store, executor.measure(beside, role="search", rounds=4, number=pair))
    with LocalStudy(tmp_path, {}, MACHINE, resume=True) as store:
        ledger = Ledger.of(store.replay())
    bench = bench_of(flat, ledger=ledger, budget_s=1e6)
    bench.calibrated(0.001)
    proposed = {arm.key for arm in Search(bench, hz, seed=1)._batch(proposing=True)}
    assert len(ledger.searched) == ledger.configurations == TRIALS
    assert proposed - {*ledger.searched}
