"""A study that is read back from its directory says again, to the digit, what it has said."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from lab.replay import Landscape, ReplayExecutor, Truth

from hztune.blocks import Arm, ProofPlan
from hztune.space import Space
from hztune.store.log import LocalStudy
from hztune.study.ledger import Ledger
from hztune.tune.story import Front, Winner

from .conftest import MACHINE, USUAL, Kept, Listener, Stopped, bench_of, flat, spin_wins, tell


class Dated(Listener):
    """Remembers of each sentence with an interval after how many blocks it was said."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self.ledger = ledger
        self.said: list[tuple[int, str]] = []

    def say(self, line: str) -> None:
        if "[" in line:
            self.said.append((len(self.ledger.blocks), line))


class Told:
    """A study that is told and read back; what a session says, each after so many blocks."""

    def __init__(
        self,
        folder: Path,
        space: Space,
        landscape: Landscape,
        seed: int = 1,
        kind: type[Winner] | type[Front] = Winner,
        budget_s: float = 60.0,
    ) -> None:
        self.folder, self.budget_s = folder, budget_s
        self.make = partial(bench_of, landscape, USUAL, seed=seed, rss_scatter=0.01)
        self.run = lambda bench: kind(bench, space, seed).run()
        self.spent_s = 0.0
        self.said = self.session()

    def session(self, blocks: int | None = None) -> list[tuple[int, str]]:
        """The first one tells it to its end; others find so many blocks, and measure no more."""
        with LocalStudy(self.folder, {}, MACHINE, resume=True) as store:
            is_first = not store.replay()
            ledger = Ledger.of(store.replay()[:blocks])
            bench = self.make(ledger=ledger, budget_s=self.budget_s)
            bench.budget.spent_s, bench.reporter = self.spent_s, Dated(ledger)
            if is_first:
                bench.executor, bench.note = Kept(bench.executor, store), store.note
            else:
                bench.executor = Stopped(bench.executor, left=0, dearer=0.3)
            self.run(bench)
        self.spent_s = bench.budget.elapsed()
        return bench.reporter.said


def greedy_and_saving(arm: Arm) -> Truth:
    """The spin lock is fast, short delays save memory."""
    saves = arm.config.get("delay", 100) in (0, 1, 10)
    return Truth(spin_wins(0.08)(arm).log_ratio, rss_kb=80_000 if saves else 100_000)


def sentences(said: list[tuple[int, str]]) -> list[str]:
    return [line for _, line in said]


@pytest.mark.parametrize(("kind", "budget_s"), [(Winner, 60.0), (Front, 120.0)])
def test_a_study_whose_end_was_lost_says_the_intervals_that_it_printed(
    kind: type[Winner] | type[Front], budget_s: float, toy_space: Space, tmp_path: Path
) -> None:
    study = Told(tmp_path, toy_space, greedy_and_saving, 1, kind, budget_s)
    assert study.said
    assert sentences(study.session()) == sentences(study.said)


def test_a_study_that_went_on_says_of_each_refused_finalist_what_it_printed(
    toy_space: Space, tmp_path: Path
) -> None:
    """Blocks that were measured later tell more of the noise, by which intervals are moderated."""
    study = Told(tmp_path, toy_space, flat, seed=4)
    said = sentences(study.said)
    assert len(said) == 3
    for count, (blocks, _) in enumerate(study.said[:-1], start=1):
        assert sentences(study.session(blocks + 1))[:count] == said[:count]
    assert sentences(study.session()) == said


def test_the_plan_of_a_proof_is_kept_with_its_blocks(tmp_path: Path) -> None:
    plan = ProofPlan(pairs=23, rounds=7, floor=0.1 + 0.2)
    drawn = ReplayExecutor(flat, seed=1)
    arms = [Arm("hz"), Arm.of("hz", {"lock": "spin"})]
    with LocalStudy(tmp_path, {}, MACHINE, resume=True) as store:
        for number, each in enumerate([None, plan, None]):
            store.note(each)
            tell(store, drawn.measure(arms, role="confirm", rounds=7, number=number))
        assert [block.plan for block in store.replay()] == [None, plan, None]
