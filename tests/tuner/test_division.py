"""A budget is used: a study searches, or says after one run which budget it needs."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import product

import pytest
from lab.replay import Landscape, ModelNoise, ReplayExecutor, Truth, VirtualClock

from hztune.blocks import Arm
from hztune.progress import Quiet
from hztune.result import Decision
from hztune.space import Space
from hztune.study.bench import Budget, Workbench
from hztune.study.calibration import LEAST_SLOTS, Division
from hztune.study.ledger import Ledger
from hztune.study.limits import MemoryLimit
from hztune.tune.story import Front, Story, Winner

BUDGETS_S = (40.0, 110.0)
FEW_RUNS = (10, 20, 26, 30, 36, 50)
"""Runs for which the budget has time; a study needs about 25."""

BESIDE = ({}, {"panel": True}, {"program": True})


@dataclass(frozen=True)
class Case:
    """A study that is told on a virtual clock."""

    budget_s: float
    runs: float
    beside: dict[str, bool]
    aim: type[Story] = Winner
    limit: str = ""
    is_whole: bool = True

    def bench(self, landscape: Landscape) -> Workbench:
        clock, run_ms = VirtualClock(), 1e3 * self.budget_s / self.runs
        times = {"turn_ms": run_ms, "warmup_ms": 0.0, "start_ms": 0.0}
        if not self.is_whole:
            times = {"turn_ms": run_ms / 8, "warmup_ms": run_ms / 4, "start_ms": run_ms / 4}
        executor = ReplayExecutor(
            landscape, ModelNoise(), seed=1, clock=clock, skip_ms=0.0, **times
        )
        wanted = {"panel": False, "program": False} | self.beside
        own = Division.of(self.budget_s, **wanted)
        budget = Budget(clock, own.phases_s, 0.0, own.panel_s, own.program_s, own.part)
        ledger = Ledger(MemoryLimit.of(self.limit) if self.limit else None)
        return Workbench(executor, ledger, budget, Quiet())

    def told(self, space: Space) -> tuple[Workbench, Decision]:
        """The bench and the decision."""
        bench = self.bench(spin_wins)
        return bench, self.aim(bench, space, 1).run()


def spin_wins(arm: Arm) -> Truth:
    """Spin is a third faster, and the default takes most memory."""
    return Truth(0.3 * (arm.config.get("lock") == "spin"), rss_kb=90_000 if arm.params else 100_000)


CASES = [
    *(Case(*each) for each in product(BUDGETS_S, FEW_RUNS, BESIDE)),
    *(Case(70.0, runs, {}, Front) for runs in FEW_RUNS),
    *(Case(110.0, runs, {}, limit="0.95x") for runs in FEW_RUNS),
    *(Case(110.0, runs, {}, limit="0.5x") for runs in FEW_RUNS),
    *(Case(60.0, runs, {"panel": True}, is_whole=False) for runs in FEW_RUNS),
    *(Case(60.0, runs, {}, Front, is_whole=False) for runs in FEW_RUNS),
]


def judge(case: Case, space: Space) -> bool:
    """Whether a study was told to its end; else it claims nothing of what there was time for."""
    bench, found = case.told(space)
    assert bench.budget.elapsed() <= 1.02 * bench.budget.total_s, case
    if found.verdict == "not_enough_data":
        calibrated = sum(block.role == "aa" for block in bench.ledger.blocks)
        assert calibrated <= 1 and len(bench.ledger.blocks) >= 1, case
        assert "the budget is too small: " in found.why
        return False
    assert len(bench.ledger.searched) >= LEAST_SLOTS, case
    assert "no time was left" not in found.why, case
    return True


@pytest.mark.slow
def test_a_budget_is_searched_with_or_refused_at_the_start(toy_space: Space) -> None:
    begun = [case for case in CASES if judge(case, toy_space)]
    assert {case.runs for case in begun if not (case.beside or case.limit) and case.is_whole} == {
        *FEW_RUNS[2:]
    }


def test_a_limit_that_the_default_breaks_needs_less_time(toy_space: Space) -> None:
    for runs in (18, 20, 22, 26):
        bench, found = Case(110.0, runs, {}, limit="0.95x").told(toy_space)
        assert found.verdict in ("within_limit", "improved"), (runs, found)
        assert bench.budget.elapsed() <= 1.02 * bench.budget.total_s


@pytest.mark.slow
def test_the_budget_that_is_named_would_do(toy_space: Space) -> None:
    for case in CASES:
        found = case.told(toy_space)[1] if case.runs <= FEW_RUNS[3] else None
        if found is not None and found.verdict == "not_enough_data":
            enough_s = float(re.findall(r"--budget (\d+)s would do", found.why)[0])
            runs = case.runs * enough_s / case.budget_s
            assert judge(replace(case, budget_s=enough_s, runs=runs), toy_space)
