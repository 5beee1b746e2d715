"""Whole studies on a virtual clock: verdicts, time, resumption, what is said again, budgets."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import pytest
from lab.replay import ModelNoise, Truth

from hztune.blocks import Arm, spent_s
from hztune.errors import HztuneError
from hztune.store.log import LocalStudy
from hztune.study import search as race
from hztune.study.bench import Budget
from hztune.study.calibration import LEAST_SLOTS, assess, calibrate
from hztune.study.ledger import Ledger
from hztune.study.limits import MemoryLimit
from hztune.tuning.story import Front, Story, Winner

from .conftest import MACHINE, QUIET, USUAL, Kept, Stopped, bench_of, flat, heard, spin_wins

CONTROL = Arm("hz")
IDLE, SPIN = (Arm.of("hz", {"lock": lock}) for lock in ("lockfree", "spin"))


def decided(bench, space, seed=1):
    return Winner(bench, space, seed).run()


def resumed(blocks, used, landscape, noise):
    """A bench that goes on after these blocks, with a part of the budget used."""
    again = bench_of(landscape, noise, ledger=Ledger.of(blocks))
    again.budget.spent_s = used * again.budget.total_s
    return again


@pytest.fixture(scope="module")
def ended(toy_space):
    """Bench and decision of a study of which one knob is worth a fifth."""
    bench = bench_of(spin_wins(), QUIET)
    return bench, decided(bench, toy_space)


# ---- verdicts and time ---------------------------------------------------------------------------


def only_the_default_runs(arm):
    return Truth(status="ok" if arm.is_default else "rejected")


def too_large(arm):
    return Truth(rss_kb=900_000)


VERDICTS = {
    "nothing helps": (spin_wins(-0.2), QUIET, {"seed": 2}, "no_gain"),
    "nothing scatters": (flat, ModelNoise(0.0, 0.0, 0.0), {}, ""),
    "everything else fails": (only_the_default_runs, QUIET, {}, "no_gain"),
    "little time": (spin_wins(), USUAL, {"budget_s": 30.0}, ""),
    "much time": (flat, USUAL, {"budget_s": 120.0}, ""),
    "an absolute limit below the default": (
        too_large, QUIET, {"limit": MemoryLimit.of("512M")}, "infeasible",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", VERDICTS)
def test_a_study_keeps_its_budget_and_comes_to_its_verdict(name, toy_space):
    landscape, noise, options, verdict = VERDICTS[name]
    bench = bench_of(landscape, noise, **options)
    decision = decided(bench, toy_space)
    assert verdict in ("", decision.verdict)
    assert bench.budget.elapsed() <= 1.1 * bench.budget.total_s
    assert heard(bench).lines[0].startswith("calibrated: noise floor")
    phases = [status.phase for status in heard(bench).statuses]
    assert all(status.floor > 0.0 for status in heard(bench).statuses[phases.index("search") :])
    if verdict == "no_gain":
        assert decision.arm.is_default
        assert decision.interval.low < 0.0 < decision.interval.high
    if landscape is only_the_default_runs:
        assert set(bench.ledger.failures()) == {"refused by hz"}


def test_a_knob_worth_a_fifth_is_found_and_proved(ended):
    _, decision = ended
    assert decision.verdict == "improved"
    assert decision.arm.config["lock"] == "spin"
    assert 0.0 < decision.interval.low < 0.2 < decision.interval.high


def test_proposals_end_for_want_of_promise(toy_space, monkeypatch):
    monkeypatch.setattr(race, "LEAST_TRIALS", 7)
    ends = []
    for much in (0.0, 2.0):
        monkeypatch.setattr(race.FastestGoal, "promise", lambda *_, much=much: much)
        monkeypatch.setattr(race.FastestGoal, "is_open", lambda *_, much=much: much > 0.0)
        bench = bench_of(flat, QUIET, budget_s=250.0)
        race.Search(bench, toy_space, seed=1).run(0.9)
        is_early = any("s early: " in line for line in heard(bench).lines)
        ends.append((len(bench.ledger.searched), is_early))
    (settled, is_early), (promising, is_late) = ends
    assert 7 <= settled < 7 + race.SLOTS < promising
    assert is_early and not is_late


def test_a_study_of_few_configurations_measures_all_and_says_so(toy_space):
    two = tuple(one for one in toy_space.dimensions if one.name in ("lock", "pages"))
    small = replace(toy_space, dimensions=two, presets=(), rules=())
    bench = bench_of(spin_wins(), QUIET, budget_s=1200.0)
    decision = decided(bench, small)
    assert len(bench.ledger.searched) == 3 * 2 - 1
    assert (decision.verdict, decision.arm) == ("improved", SPIN)
    lines = heard(bench).lines
    assert any(re.match(r"the search ends \d+ s early: ", line) for line in lines)


def test_what_a_machine_can_see_is_its_own_among_several(toy_space):
    """Its noise, how exact a verdict of no gain is, and how exactly memory is known."""
    noisy = ModelNoise(within=0.2, between=0.15, common=0.1)
    hosts = {"quiet": (QUIET, 0.002), "noisy": (noisy, 0.1)}
    benches = {
        name: bench_of(flat, noise, ledger=Ledger(machine=name), rss_scatter=scatter)
        for name, (noise, scatter) in hosts.items()
    }

    def seen(bench):
        nothing = Winner(bench, toy_space, seed=1).nothing_found("").interval
        memory = bench.ledger.memory_noises().on(bench.ledger.machine)
        return assess(bench, 20.0, 0.01), nothing, memory

    for bench in benches.values():
        calibrate(bench, CONTROL, share=0.1)
    alone = {name: seen(bench) for name, bench in benches.items()}
    blocks = [block for bench in benches.values() for block in bench.ledger.blocks]
    for name, bench in benches.items():
        bench.ledger = Ledger.of(blocks, machine=name)
        assert seen(bench) == alone[name]
    floors = {name: assess(bench, 20.0, 0.01).floor for name, bench in benches.items()}
    assert floors["noisy"] > 5.0 * floors["quiet"]


# ---- interruption and resumption -----------------------------------------------------------------


@pytest.mark.parametrize("blocks", [0, 5, 20])
def test_an_interrupted_study_claims_nothing(toy_space, blocks):
    bench = bench_of(spin_wins(), QUIET)
    bench.executor = Stopped(bench.executor, blocks)
    assert decided(bench, toy_space).verdict == "interrupted"
    assert len(bench.ledger.blocks) == blocks


@pytest.mark.parametrize("blocks", [4, 16, 22, None])
def test_a_resumed_study_goes_on_with_the_next_pair_and_an_ended_one_says_the_same(
    ended, toy_space, blocks
):
    bench, found = ended
    kept = bench.ledger.blocks[:blocks]
    used = 1.0 if blocks is None else spent_s(kept) / bench.budget.total_s
    again = resumed(kept, used, spin_wins(), QUIET)
    decision = decided(again, toy_space)
    assert (decision.verdict, decision.arm) == ("improved", SPIN)
    assert [block.number for block in again.ledger.blocks] == [*range(len(again.ledger.blocks))]
    assert again.ledger.blocks[: len(kept)] == kept
    assert again.budget.elapsed() <= 1.1 * again.budget.total_s
    if blocks is None:
        assert again.ledger.blocks == kept
        assert decision.interval.estimate == found.interval.estimate


@pytest.mark.parametrize("blocks", [22, 24])
def test_a_resumed_study_has_the_noise_floor_that_it_had(toy_space, blocks):
    first = bench_of(spin_wins(0.1), USUAL)
    first.executor = Stopped(first.executor, blocks)
    decided(first, toy_space)
    used = first.budget.elapsed() / first.budget.total_s
    again = resumed(first.ledger.blocks, used, spin_wins(0.1), USUAL)
    again.executor = Stopped(again.executor, left=0, dearer=1.5)
    decided(again, toy_space)
    assert again.floor == first.floor > 0.0


@pytest.mark.parametrize("first", [[IDLE], [IDLE, SPIN]])
def test_a_second_finalist_keeps_its_time_and_only_its_own_pairs(toy_space, first):
    """Also where the first attempt had it as a further step."""
    before = bench_of(spin_wins(), QUIET)
    for _ in range(2):
        before.measure([CONTROL] * 4, "aa", 16)
    before.measure([CONTROL, IDLE, SPIN], "search", 16)
    for chain in [first] * 8 + [[SPIN]] * 2:
        before.measure([CONTROL, *chain], "confirm", 16)
    again = resumed(before.ledger.blocks, 0.8, spin_wins(), QUIET)
    decision = decided(again, toy_space)
    assert [proof.first for proof in decision.proofs] == [IDLE, SPIN]
    assert (decision.verdict, decision.arm) == ("improved", SPIN)
    fresh = sum(block.outcomes[1].arm == SPIN for block in again.ledger.blocks[3:])
    assert decision.interval is not None and decision.interval.pairs == fresh


# ---- read back -----------------------------------------------------------------------------------


def told(folder, make, run):
    """What a session says with intervals; the first one measures, later ones read it back."""
    with LocalStudy(folder, {}, MACHINE, resume=True) as store:
        is_first = not store.replay()
        bench = make(ledger=Ledger.of(store.replay()))
        if is_first:
            bench.executor, bench.note = Kept(bench.executor, store), store.note
        else:
            bench.budget.spent_s = bench.budget.total_s
            bench.executor = Stopped(bench.executor, left=0, dearer=0.3)
        run(bench)
    return [line for line in heard(bench).lines if "[" in line]


def greedy_and_saving(arm):
    """The spin lock is fast, short delays save memory."""
    saves = arm.config.get("delay", 100) in (0, 1, 10)
    return Truth(spin_wins(0.08)(arm).log_ratio, rss_kb=80_000 if saves else 100_000)


READ_BACK = [(Winner, flat, 60.0, 4, 3), (Front, greedy_and_saving, 120.0, 1, 1)]


@pytest.mark.parametrize("study", READ_BACK)
def test_a_study_whose_end_was_lost_says_the_intervals_that_it_printed(study, toy_space, tmp_path):
    """Blocks that were measured later tell more of the noise, by which intervals are moderated."""
    kind, landscape, budget_s, seed, sentences = study
    make = partial(bench_of, landscape, USUAL, budget_s=budget_s, seed=seed, rss_scatter=0.01)
    said, again = (
        told(tmp_path, make, lambda bench: kind(bench, toy_space, seed).run()) for _ in range(2)
    )
    assert len(said) == sentences and again == said


# ---- a budget is used ----------------------------------------------------------------------------


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

    def bench(self, landscape):
        run_ms = 1e3 * self.budget_s / self.runs
        times = {"turn_ms": run_ms, "warmup_ms": 0.0, "start_ms": 0.0}
        if not self.is_whole:
            times = {"turn_ms": run_ms / 8, "warmup_ms": run_ms / 4, "start_ms": run_ms / 4}
        limit = MemoryLimit.of(self.limit) if self.limit else None
        bench = bench_of(landscape, limit=limit, skip_ms=0.0, **times)
        beside = {"panel": False, "program": False, **self.beside}
        bench.budget = Budget.divided(bench.budget.clock, self.budget_s, **beside)
        return bench

    def told(self, space):
        """The bench and the decision."""
        bench = self.bench(spin_is_lean)
        return bench, self.aim(bench, space, 1).run()


def spin_is_lean(arm):
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


def judge(case, space):
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
def test_a_budget_is_searched_with_or_refused_at_the_start(toy_space):
    begun = [case for case in CASES if judge(case, toy_space)]
    alone = [case for case in begun if case.is_whole and not (case.beside or case.limit)]
    assert {case.runs for case in alone} == {*FEW_RUNS[2:]}


@pytest.mark.slow
def test_the_budget_that_is_named_would_do(toy_space):
    for case in CASES:
        found = case.told(toy_space)[1] if case.runs <= FEW_RUNS[3] else None
        if found is not None and found.verdict == "not_enough_data":
            enough_s = float(re.findall(r"--budget (\d+)s would do", found.why)[0])
            runs = case.runs * enough_s / case.budget_s
            assert judge(replace(case, budget_s=enough_s, runs=runs), toy_space)


def test_a_default_that_never_ran_is_the_reason_before_the_time(toy_space):
    """Where there is no time for a calibration, the blocks that it would have had show it, too."""
    bench = Case(40.0, 3.5, {}).bench(lambda arm: Truth(status="ok" if arm.params else "crash"))
    with pytest.raises(HztuneError, match=r"hz with its defaults does not run: (\d) of \1 "):
        Winner(bench, toy_space, 1).run()
