"""Whole studies on a virtual clock: verdicts, allocators as one space, resumption, budgets."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from random import Random

import pytest
from lab.replay import ModelNoise, Truth

from hztune import allocator
from hztune.blocks import Arm, spent_s
from hztune.errors import HztuneError
from hztune.space import Choice, Preset, Space
from hztune.store.log import LocalStudy
from hztune.study import search as race
from hztune.study.bench import Budget
from hztune.study.calibration import LEAST_SLOTS, assess, calibrate
from hztune.study.ledger import Ledger
from hztune.study.limits import MemoryLimit
from hztune.tuning.candidates import TuneTarget, candidates
from hztune.tuning.story import Front, Story, Winner

from .conftest import MACHINE, QUIET, USUAL, Kept, Stopped, bench_of, flat, spin_wins

CONTROL, UNCHANGED = Arm("hz"), Arm("none")
IDLE, SPIN = (Arm.of("hz", {"lock": lock}) for lock in ("lockfree", "spin"))


def decided(bench, space, seed=1):
    return Winner(bench, space, seed).run()


def resumed(blocks, used, landscape, noise):
    """A bench that goes on after these blocks, with a part of the budget used."""
    again = bench_of(landscape, noise, ledger=Ledger.of(blocks))
    again.budget.spent_s = used * again.budget.total_s
    return again


@pytest.fixture(scope="module")
def choice(toy_space):
    """Two allocators with the same parameters, and one without any."""
    fixed = Space("fixed", (), (), (), ())
    return Choice((*(replace(toy_space, allocator=name) for name in ("one", "two")), fixed))


@pytest.fixture(scope="module")
def ended(toy_space):
    """Bench and decision of a study in which one knob is worth a fifth."""
    bench = bench_of(spin_wins(), QUIET)
    return bench, decided(bench, toy_space)


# ---- verdicts and time ---------------------------------------------------------------------------


def landscape(**speeds):
    """Each allocator's log speed; the spin lock of `two` adds 0.3 to that."""

    def truth(arm):
        bonus = 0.3 if arm.allocator == "two" and arm.config.get("lock") == "spin" else 0.0
        return Truth(speeds.get(arm.allocator, 0.0) + bonus)

    return truth


def only_the_default_runs(arm):
    return Truth(status="ok" if arm.is_default else "rejected")


def lean_but_slow(arm):
    """`one` needs half of the memory with four shards, and is a tenth slower then."""
    lean = arm.allocator == "one" and arm.config.get("shards") == 4
    return Truth(-0.1 if lean else 0.2, rss_kb=50_000 if lean else 100_000)


def two_takes(rss_kb):
    return lambda arm: Truth(0.3, rss_kb=rss_kb) if arm.allocator == "two" else Truth()


LESS = {"limit": MemoryLimit.of("0.7x")}
OF_HZ = {  # the landscape, with which bench, the verdict, the arm or allocator that wins, why
    "nothing helps": (spin_wins(-0.2), {"seed": 2}, "no_gain", CONTROL, ""),
    "nothing scatters": (flat, {"noise": ModelNoise(0.0, 0.0, 0.0)}, "", "hz", ""),
    "everything else fails": (only_the_default_runs, {}, "no_gain", CONTROL, ""),
    "little time": (spin_wins(), {"noise": USUAL, "budget_s": 30.0}, "", "hz", ""),
    "much time": (flat, {"noise": USUAL, "budget_s": 120.0}, "", "hz", ""),
    "an absolute limit below the default": (
        lambda arm: Truth(rss_kb=900_000), {"limit": MemoryLimit.of("512M")},
        "infeasible", CONTROL, "",
    ),
}  # fmt: skip
OF_ALLOCATORS = {
    "with the one parameter that matters": (
        landscape(one=-0.1), {"budget_s": 300.0}, "improved", Arm.of("two", {"lock": "spin"}), "",
    ),
    "as it comes": (landscape(fixed=0.5), {"budget_s": 200.0}, "improved", Arm("fixed"), ""),
    "the unchanged program": (
        landscape(one=-0.2, two=-0.6, fixed=-0.1), {"seed": 3}, "no_gain", UNCHANGED, "",
    ),
    "some speed for a limit that the default breaks": (
        lean_but_slow, LESS, "within_limit", "one", "stays within 0.7x of peak memory",
    ),
    "faster within the limit": (
        two_takes(50_000), {**LESS, "budget_s": 40.0}, "improved", "two", "",
    ),
    "an impossible limit": (
        lean_but_slow, {"limit": MemoryLimit.of("0.3x"), "budget_s": 30.0}, "infeasible", UNCHANGED,
        "the least is 0.50x of its peak memory, by one ",
    ),
    "a gain that costs memory": (
        two_takes(157_000), {}, "improved", "two", ", at 1.57 times the peak memory",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", [*OF_HZ, *OF_ALLOCATORS])
def test_a_study_keeps_its_budget_and_comes_to_its_verdict(name, toy_space, choice):
    truth, options, verdict, winner, why = (OF_HZ | OF_ALLOCATORS)[name]
    bench = bench_of(truth, **{"noise": QUIET, **options})
    decision = decided(bench, choice if name in OF_ALLOCATORS else toy_space)
    assert verdict in ("", decision.verdict)
    assert winner in (decision.arm, decision.arm.allocator)
    assert why in decision.why
    assert bench.budget.elapsed() <= 1.1 * bench.budget.total_s
    assert bench.reporter.lines[0].startswith("calibrated: noise floor")
    phases = [status.phase for status in bench.reporter.statuses]
    assert all(status.floor > 0.0 for status in bench.reporter.statuses[phases.index("search") :])
    if verdict == "no_gain":
        assert decision.arm.is_default
        assert decision.interval.low < 0.0 < decision.interval.high
    if truth is only_the_default_runs:
        assert set(bench.ledger.failures()) == {"refused by hz"}


def test_proposals_end_for_want_of_promise(toy_space, monkeypatch):
    monkeypatch.setattr(race, "LEAST_TRIALS", 7)
    ends = []
    for much in (0.0, 2.0):
        monkeypatch.setattr(race.FastestGoal, "promise", lambda *_, much=much: much)
        monkeypatch.setattr(race.FastestGoal, "is_open", lambda *_, much=much: much > 0.0)
        bench = bench_of(flat, QUIET, budget_s=250.0)
        race.Search(bench, toy_space, seed=1).run(0.9)
        is_early = any("s early: " in line for line in bench.reporter.lines)
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
    lines = bench.reporter.lines
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


# ---- allocators as one space ---------------------------------------------------------------------


def measured(bench):
    """The arms of the search in the order of their first measurement."""
    return [record.arm for record in bench.ledger.searched.values()]


def searched(bench, space, share):
    """A search that has ended, of a study that can see one per cent."""
    bench.calibrated(0.01)
    search = race.Search(bench, space, seed=1)
    search.run(share)
    return search


def test_every_allocator_as_it_comes_is_measured_before_every_preset(choice):
    defaults = [Arm("one"), Arm("two"), Arm("fixed")]
    sharded = [Arm.of(name, {"shards": 4}) for name in ("one", "two")]
    assert [*choice.starts] == [*defaults, *sharded]
    bench = bench_of(landscape(), QUIET)
    searched(bench, choice, 0.2)
    assert measured(bench)[:3] == defaults
    assert {block.control.arm for block in bench.ledger.blocks} == {UNCHANGED}


def test_where_none_promises_anything_only_the_leader_is_searched(choice):
    bench = bench_of(landscape(two=-0.2, one=0.2), QUIET)
    searched(bench, choice, 0.1)
    before = measured(bench)
    bench.calibrated(2.0)
    race.Search(bench, choice, seed=1).run(0.5)
    assert {arm.allocator for arm in measured(bench)[len(before) :]} == {"one"}


def test_what_is_known_of_one_allocator_does_not_end_another_one(toy_space):
    both = Choice(tuple(replace(toy_space, allocator=name) for name in ("one", "two")))
    rng, bench = Random(1), bench_of(flat, QUIET, budget_s=1e6)
    arms = [replace(toy_space.arm(toy_space.sample(rng)), allocator="one") for _ in range(300)]
    arms[20:40] = [replace(arm, allocator="two") for arm in arms[20:40]]
    for at in range(0, len(arms), 20):
        bench.measure([both.control, *arms[at : at + 20]], "search", 20)
    search = race.Search(bench, both, seed=1)
    bench.calibrated(5.0)  # nothing promises so much
    assert not search._promises("one", race.SLOTS)
    assert search._promises("two", race.SLOTS)


def one_crashes(arm):
    return Truth(status="crash") if arm.allocator == "one" else Truth()


@pytest.mark.parametrize("truth", [landscape(one=-1.5), one_crashes])
def test_of_a_hopeless_one_only_the_default_is_tried(choice, truth):
    bench = bench_of(truth, QUIET)
    searched(bench, choice, 0.5)
    assert [arm for arm in measured(bench) if arm.allocator == "one"] == [Arm("one")]
    assert len(measured(bench)) > 20


def test_an_allocator_a_little_behind_is_still_searched(choice):
    best = searched(bench_of(landscape(two=-0.1, one=0.05), QUIET), choice, 0.8).best()
    assert best.record.arm.allocator == "two"


FIRST = [
    ("0.7x", ["one delay=0", "two delay=0"], "within_limit"),
    ("1.1x", ["one with its defaults", "two with its defaults"], None),
]


@pytest.mark.parametrize(("limit", "first", "verdict"), FIRST)
def test_what_returns_memory_is_tried_first_where_the_default_breaks_a_limit(
    toy_space, limit, first, verdict
):
    """Where speed is sought, it waits for its turn."""

    def lean_at_once(arm):
        is_lean = arm.allocator == "two" and arm.config.get("delay") == 0
        return Truth(-0.2 * is_lean, rss_kb=20_000 if is_lean else 100_000)

    at_once = Preset("at-once", "it returns memory", {"delay": 0}, returns=True)
    spaces = replace(toy_space, presets=(*toy_space.presets, at_once))
    returning = Choice(tuple(replace(spaces, allocator=name) for name in ("one", "two")))
    bench = bench_of(lean_at_once, QUIET, budget_s=8.0, limit=MemoryLimit.of(limit))
    decision = decided(bench, returning)
    assert [arm.text for arm in measured(bench)[:2]] == first
    if verdict:
        assert (decision.verdict, decision.arm) == (verdict, Arm.of("two", {"delay": 0}))


def test_the_unchanged_program_in_another_word_is_not_searched(choice):
    bench = bench_of(landscape(one=0.05), QUIET)
    decided(bench, replace(choice, unchanged=frozenset({"one"})))
    arms = {o.arm for block in bench.ledger.blocks for o in block.outcomes}
    assert Arm("one") not in arms
    assert {arm.allocator for arm in arms} == {"none", "one", "two", "fixed"}


def test_any_is_every_installed_allocator_but_the_unchanged_program():
    found = candidates(["any"], "", TuneTarget(2))
    names = [each.name for each in found.installed]
    assert names[:5] == ["glibc", "jemalloc", "mimalloc", "tcmalloc", "hz"]
    assert not {missing.split()[0] for missing in found.missing} & set(names)


SAME = [
    ({"GLIBC_TUNABLES": "glibc.malloc.tcache_count=7:glibc.malloc.mxfast=0x80"}, "", "glibc"),
    ({"MALLOC_ARENA_MAX": "2"}, "", ""),
    ({"MALLOC_CONF": "dirty_decay_ms:10000"}, "inside:jemalloc", "glibc inside:jemalloc"),
    ({"MALLOC_CONF": "stats_print:true"}, "inside:jemalloc", ""),
    ({"mimalloc_purge_delay": "1"}, "inside:mimalloc", ""),
    ({"LD_PRELOAD": "libjemalloc.so.2:a_link"}, "", "jemalloc"),
    ({"LD_PRELOAD": "a_link:/lib/libother.so"}, "", ""),
    ({"LD_PRELOAD": "a_link", "MALLOC_CONF": "narenas:2"}, "", ""),
    ({}, "a_link", "glibc jemalloc"),
]


@pytest.mark.parametrize(("variables", "brought", "same"), SAME)
def test_what_the_unchanged_program_is_already_is_not_searched(variables, brought, same, tmp_path):
    library = allocator.get("jemalloc").installed()
    (tmp_path / "a_link").symlink_to(library.path)
    given = {name: text.replace("a_link", f"{tmp_path}/a_link") for name, text in variables.items()}
    inside = (replace(library, name=brought, preload=""),) if ":" in brought else ()
    target = TuneTarget(2, inside, variables=given, linked={tmp_path / brought})
    found = candidates(["glibc", "jemalloc", *(part.name for part in inside)], "", target)
    assert found.space.unchanged == set(same.split())


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
        assert 0.0 < found.interval.low < 0.2 < found.interval.high


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
    return [line for line in bench.reporter.lines if "[" in line]


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


def judged(case, space):
    """What a study came to at its end; or it claims nothing of what there was time for."""
    bench, found = case.told(space)
    assert bench.budget.elapsed() <= 1.02 * bench.budget.total_s, case
    if found.verdict == "not_enough_data":
        calibrated = sum(block.role == "aa" for block in bench.ledger.blocks)
        assert calibrated <= 1 and len(bench.ledger.blocks) >= 1, case
        assert "the budget is too small: " in found.why
        return found
    assert len(bench.ledger.searched) >= LEAST_SLOTS, case
    assert "no time was left" not in found.why, case
    return found


@pytest.mark.slow
def test_a_budget_is_searched_with_or_refused_at_the_start_with_one_that_would_do(toy_space):
    begun = set()
    for case in CASES:
        found = judged(case, toy_space)
        if found.verdict != "not_enough_data":
            begun |= {case.runs} if case.is_whole and not (case.beside or case.limit) else set()
            continue
        enough_s = float(re.findall(r"--budget (\d+)s would do", found.why)[0])
        runs = case.runs * enough_s / case.budget_s
        again = judged(replace(case, budget_s=enough_s, runs=runs), toy_space)
        assert again.verdict != "not_enough_data"
    assert begun == {*FEW_RUNS[2:]}


def test_a_default_that_never_ran_is_the_reason_before_the_time(toy_space):
    """Where there is no time for a calibration, the blocks that it would have had show it, too."""
    bench = Case(40.0, 3.5, {}).bench(lambda arm: Truth(status="ok" if arm.params else "crash"))
    with pytest.raises(HztuneError, match=r"hz with its defaults does not run: (\d) of \1 "):
        Winner(bench, toy_space, 1).run()
