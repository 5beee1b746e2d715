"""A study that is read back from its directory says again, to the digit, what it has said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from lab.replay import Landscape, ModelNoise, ReplayExecutor, Truth, VirtualClock

from hztune.blocks import Arm, Block, ProofPlan, Role
from hztune.machine import Machine
from hztune.measure import Around, Executor
from hztune.space import Space
from hztune.store.log import LocalStudy
from hztune.study.bench import Budget, Note, Workbench
from hztune.study.ledger import Ledger
from hztune.tune.story import Front, Winner

from .conftest import Kept, Listener, tell

MACHINE = Machine("CPU 3000", 2, None, "6.1", "glibc 2.36", 4096, "madvise", "", "", 24, None)
LOUD = ModelNoise(within=0.12, between=0.05, common=0.1, drift=0.02, tail=4, outlier_share=0.01)


class Dated(Listener):
    """Remembers of each sentence with an interval after how many blocks it was said."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self.ledger = ledger
        self.said: list[tuple[int, str]] = []

    def say(self, line: str) -> None:
        if "[" in line:
            self.said.append((len(self.ledger.blocks), line))


class Interrupted(Around):
    """An executor that is interrupted at once, by a session that takes blocks for shorter."""

    def cost(self, arms: int, rounds: int) -> float:
        return 0.3 * self.inner.cost(arms, rounds)

    def measure(self, arms: Sequence[Arm], *, role: Role, rounds: int, number: int) -> Block:
        raise KeyboardInterrupt


@dataclass(frozen=True)
class Told:
    """A study that is told and read back.

    Attributes:
        folder: Its directory.
        space: What it searches.
        landscape: What is true of it.
        seed: Of its noise and its search.
        kind: What it looks for.
        budget_s: Its budget, seconds.
    """

    folder: Path
    space: Space
    landscape: Landscape
    seed: int
    kind: type[Winner] | type[Front] = Winner
    budget_s: float = 60.0

    def whole(self) -> tuple[list[tuple[int, str]], float]:
        """Tells it to its end; what was said of its proofs, and the seconds that it took."""
        clock = VirtualClock()
        with LocalStudy(self.folder, {}, MACHINE, resume=True) as store:
            executor = Kept(self._drawn(clock), store)
            said = self._said(executor, Ledger(), Budget(clock, self.budget_s), store.note)
        return said, clock.now()

    def read_back(self, blocks: int | None, spent_s: float) -> list[tuple[int, str]]:
        """What a session says that finds so many blocks, all for None, and measures no more."""
        clock = VirtualClock()
        with LocalStudy(self.folder, {}, MACHINE, resume=True) as store:
            ledger = Ledger.of(store.replay()[:blocks])
        budget = Budget(clock, self.budget_s, spent_s)
        return self._said(Interrupted(self._drawn(clock)), ledger, budget)

    def _drawn(self, clock: VirtualClock) -> ReplayExecutor:
        return ReplayExecutor(self.landscape, LOUD, seed=self.seed, clock=clock, rss_scatter=0.01)

    def _said(
        self, executor: Executor, ledger: Ledger, budget: Budget, note: Note = lambda plan: None
    ) -> list[tuple[int, str]]:
        reporter = Dated(ledger)
        bench = Workbench(executor, ledger, budget, reporter, note=note)
        self.kind(bench, self.space, self.seed).run()
        return reporter.said


def lock_wins(arm: Arm) -> Truth:
    return Truth(0.08 if arm.config.get("lock") == "spin" else 0.0)


def greedy_and_saving(arm: Arm) -> Truth:
    """The spin lock is fast, short delays save memory."""
    saves = arm.config.get("delay", 100) in (0, 1, 10)
    return Truth(lock_wins(arm).log_ratio, rss_kb=80_000 if saves else 100_000)


def sentences(said: list[tuple[int, str]]) -> list[str]:
    return [line for _, line in said]


@pytest.mark.parametrize(("kind", "budget_s"), [(Winner, 60.0), (Front, 120.0)])
def test_a_study_whose_end_was_lost_says_the_intervals_that_it_printed(
    kind: type[Winner] | type[Front], budget_s: float, toy_space: Space, tmp_path: Path
) -> None:
    study = Told(tmp_path, toy_space, greedy_and_saving, 1, kind, budget_s)
    said, spent_s = study.whole()
    assert said
    assert sentences(study.read_back(None, spent_s)) == sentences(said)


def test_a_study_that_went_on_says_of_each_refused_finalist_what_it_printed(
    toy_space: Space, tmp_path: Path
) -> None:
    """Blocks that were measured later tell more of the noise, by which intervals are moderated."""
    study = Told(tmp_path, toy_space, lambda arm: Truth(), seed=4)
    said, spent_s = study.whole()
    assert len(said) == 3
    for count, (blocks, _) in enumerate(said[:-1], start=1):
        again = study.read_back(blocks + 1, spent_s)
        assert sentences(again)[:count] == sentences(said)[:count]
    assert sentences(study.read_back(None, spent_s)) == sentences(said)


def test_the_plan_of_a_proof_is_kept_with_its_blocks(tmp_path: Path) -> None:
    plan = ProofPlan(pairs=23, rounds=7, floor=0.1 + 0.2)
    drawn = ReplayExecutor(lambda arm: Truth(), seed=1)
    arms = [Arm("hz"), Arm.of("hz", {"lock": "spin"})]
    with LocalStudy(tmp_path, {}, MACHINE, resume=True) as store:
        for number, each in enumerate([None, plan, None]):
            store.note(each)
            tell(store, drawn.measure(arms, role="confirm", rounds=7, number=number))
        assert [block.plan for block in store.replay()] == [None, plan, None]
