"""Allocators and their parameters as one space: what is proposed, raced, proved and said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from lab.replay import Landscape, ModelNoise, Truth

from hztune.blocks import Arm
from hztune.errors import UsageError
from hztune.result import Decision
from hztune.space import AnySpace, Choice, Preset, Space
from hztune.study.bench import Workbench
from hztune.study.limits import MemoryLimit
from hztune.study.search import SLOTS, Search
from hztune.tune.candidates import TuneTarget, candidates
from hztune.tune.story import Winner

MakeBench = Callable[..., Workbench]
QUIET = ModelNoise(within=0.03, between=0.01, common=0.1)
UNCHANGED = Arm("none")
GOOD = {"ran": -1.0, "max_rss": -1.0}


@pytest.fixture
def choice(toy_space: Space) -> Choice:
    """Two allocators with the same parameters, and one without any."""
    fixed = Space("fixed", (), (), (), ())
    return Choice((*(replace(toy_space, allocator=name) for name in ("one", "two")), fixed))


def landscape(**speeds: float) -> Landscape:
    """Each allocator's log speed; the spin lock of `two` adds 0.3 to that."""

    def truth(arm: Arm) -> Truth:
        bonus = 0.3 if arm.allocator == "two" and arm.config.get("lock") == "spin" else 0.0
        return Truth(speeds.get(arm.allocator, 0.0) + bonus)

    return truth


def measured(bench: Workbench) -> list[Arm]:
    """The arms of the search in the order of their first measurement."""
    return [record.arm for record in bench.ledger.searched.values()]


def searched(bench: Workbench, space: AnySpace, share: float) -> Search:
    """A search that has ended, of a study that can see one per cent."""
    bench.calibrated(0.01)
    search = Search(bench, space, seed=1)
    search.run(share)
    return search


def decided(bench: Workbench, space: AnySpace) -> Decision:
    return Winner(bench, space, seed=1).run()


# ---- the space -----------------------------------------------------------------------------------


def test_every_allocator_as_it_comes_stands_before_every_preset(choice: Choice) -> None:
    sharded = [Arm.of(name, {"shards": 4}) for name in ("one", "two")]
    assert [*choice.starts] == [Arm("one"), Arm("two"), Arm("fixed"), *sharded]


# ---- the search ----------------------------------------------------------------------------------


def one_crashes(arm: Arm) -> Truth:
    return Truth(status="crash") if arm.allocator == "one" else Truth()


def test_every_allocator_is_first_measured_as_it_comes_beside_the_unchanged_program(
    make_bench: MakeBench, choice: Choice
) -> None:
    bench = make_bench(landscape(), QUIET)
    searched(bench, choice, 0.5)
    assert measured(bench)[:3] == [Arm("one"), Arm("two"), Arm("fixed")]
    assert {block.control.arm for block in bench.ledger.blocks} == {UNCHANGED}


def test_where_none_promises_anything_only_the_leader_is_searched(
    make_bench: MakeBench, choice: Choice
) -> None:
    bench = make_bench(landscape(two=-0.2, one=0.2), QUIET)
    searched(bench, choice, 0.1)
    before = measured(bench)
    bench.calibrated(2.0)
    Search(bench, choice, seed=1).run(0.5)
    assert {arm.allocator for arm in measured(bench)[len(before) :]} == {"one"}


def test_what_was_measured_of_one_allocator_does_not_end_the_search_of_another(
    make_bench: MakeBench, toy_space: Space
) -> None:
    both = Choice(tuple(replace(toy_space, allocator=name) for name in ("one", "two")))
    rng, bench = Random(1), make_bench(lambda arm: Truth(), QUIET, budget_s=1e6)
    arms = [replace(toy_space.arm(toy_space.sample(rng)), allocator="one") for _ in range(300)]
    arms[20:40] = [replace(arm, allocator="two") for arm in arms[20:40]]
    for at in range(0, len(arms), 20):
        bench.measure([both.control, *arms[at : at + 20]], "search", 20)
    search = Search(bench, both, seed=1)
    bench.calibrated(5.0)  # nothing promises so much
    assert not search._promises("one", SLOTS)
    assert search._promises("two", SLOTS)


def test_a_hopeless_allocator_gets_no_more_than_its_default(
    make_bench: MakeBench, choice: Choice
) -> None:
    bench = make_bench(landscape(one=-1.5), QUIET)
    searched(bench, choice, 0.8)
    assert [arm for arm in measured(bench) if arm.allocator == "one"] == [Arm("one")]
    assert len(measured(bench)) > 20


def test_an_allocator_a_little_behind_is_still_searched(
    make_bench: MakeBench, choice: Choice
) -> None:
    bench = make_bench(landscape(two=-0.1, one=0.05), QUIET)
    best = searched(bench, choice, 0.8).best()
    assert best is not None
    assert best.record.arm.allocator == "two"


def test_an_allocator_that_crashes_as_it_comes_is_not_searched(
    make_bench: MakeBench, choice: Choice
) -> None:
    bench = make_bench(one_crashes, QUIET)
    searched(bench, choice, 0.5)
    assert [arm for arm in measured(bench) if arm.allocator == "one"] == [Arm("one")]


# ---- the verdict ---------------------------------------------------------------------------------


def test_the_winner_is_an_allocator_with_the_one_parameter_that_matters(
    make_bench: MakeBench, choice: Choice
) -> None:
    decision = decided(make_bench(landscape(one=-0.1), QUIET, budget_s=300), choice)
    assert (decision.verdict, decision.arm) == ("improved", Arm.of("two", {"lock": "spin"}))


def test_an_allocator_may_win_as_it_comes(make_bench: MakeBench, choice: Choice) -> None:
    decision = decided(make_bench(landscape(fixed=0.5), QUIET, budget_s=200), choice)
    assert (decision.verdict, decision.arm) == ("improved", Arm("fixed"))


def test_where_no_allocator_helps_the_program_stays_unchanged(
    make_bench: MakeBench, choice: Choice
) -> None:
    slower = landscape(one=-0.2, two=-0.6, fixed=-0.1)
    decision = decided(make_bench(slower, QUIET, seed=3), choice)
    assert (decision.verdict, decision.arm) == ("no_gain", UNCHANGED)


# ---- memory --------------------------------------------------------------------------------------


def lean_but_slow(arm: Arm) -> Truth:
    """`one` needs half of the memory with four shards, and is a tenth slower then."""
    lean = arm.allocator == "one" and arm.config.get("shards") == 4
    return Truth(-0.1 if lean else 0.2, rss_kb=50_000 if lean else 100_000)


def test_a_limit_that_the_default_breaks_is_worth_some_speed(
    make_bench: MakeBench, choice: Choice
) -> None:
    bench = make_bench(lean_but_slow, QUIET, limit=MemoryLimit.of("0.7x"))
    decision = decided(bench, choice)
    assert decision.verdict == "within_limit"
    assert (decision.arm.allocator, decision.arm.config["shards"]) == ("one", 4)
    assert "stays within 0.7x of peak memory" in decision.why


def test_a_faster_configuration_within_the_limit_is_an_improvement(
    make_bench: MakeBench, choice: Choice
) -> None:
    def truth(arm: Arm) -> Truth:
        return Truth(0.3, rss_kb=50_000) if arm.allocator == "two" else Truth(rss_kb=100_000)

    bench = make_bench(truth, QUIET, budget_s=40.0, limit=MemoryLimit.of("0.7x"))
    decision = decided(bench, choice)
    assert (decision.verdict, decision.arm.allocator) == ("improved", "two")


def test_an_impossible_limit_is_infeasible_and_the_least_memory_is_said(
    make_bench: MakeBench, choice: Choice
) -> None:
    bench = make_bench(lean_but_slow, QUIET, budget_s=30.0, limit=MemoryLimit.of("0.3x"))
    decision = decided(bench, choice)
    assert (decision.verdict, decision.arm) == ("infeasible", UNCHANGED)
    assert "the least is 0.50x of its peak memory, by one " in decision.why


@pytest.fixture
def returning(toy_space: Space) -> Choice:
    """Two allocators that are known to return memory without a delay."""
    at_once = Preset("at-once", "it returns memory", {"delay": 0}, returns=True)
    spaces = replace(toy_space, presets=(*toy_space.presets, at_once))
    return Choice(tuple(replace(spaces, allocator=name) for name in ("one", "two")))


def lean_at_once(arm: Arm) -> Truth:
    is_lean = arm.allocator == "two" and arm.config.get("delay") == 0
    return Truth(-0.2 * is_lean, rss_kb=20_000 if is_lean else 100_000)


def test_where_the_default_breaks_a_limit_what_returns_memory_is_tried_first(
    make_bench: MakeBench, returning: Choice
) -> None:
    bench = make_bench(lean_at_once, QUIET, budget_s=8.0, limit=MemoryLimit.of("0.7x"))
    decision = decided(bench, returning)
    assert [arm.text for arm in measured(bench)[:2]] == ["one delay=0", "two delay=0"]
    assert (decision.verdict, decision.arm) == ("within_limit", Arm.of("two", {"delay": 0}))


def test_where_speed_is_sought_what_returns_memory_waits_for_its_turn(
    make_bench: MakeBench, returning: Choice
) -> None:
    bench = make_bench(lean_at_once, QUIET, limit=MemoryLimit.of("1.1x"))
    searched(bench, returning, 0.1)
    assert measured(bench)[:2] == [Arm("one"), Arm("two")]


@pytest.mark.parametrize("limit", [None, MemoryLimit.of("0.5x")])
def test_a_study_that_tried_no_parameter_says_that_it_did_not_search(
    make_bench: MakeBench, choice: Choice, limit: MemoryLimit | None
) -> None:
    bench = make_bench(landscape(), QUIET, limit=limit)
    decision = Winner(bench, choice, seed=1, max_trials=2).run()
    assert decision.verdict == "not_enough_data"
    assert decision.why.startswith("not searched: --trials allowed 2 configurations")
    assert ("the least is 1.00x of its peak memory" in decision.why) == (limit is not None)


def test_a_gain_that_costs_memory_is_told_with_its_price(
    make_bench: MakeBench, choice: Choice
) -> None:
    def truth(arm: Arm) -> Truth:
        is_two = arm.allocator == "two"
        return Truth(0.3 * is_two, rss_kb=157_000 if is_two else 100_000)

    assert decided(make_bench(truth, QUIET), choice).why.endswith(", at 1.57 times the peak memory")


# ---- which allocators ----------------------------------------------------------------------------


def test_any_is_every_installed_allocator_but_the_unchanged_program() -> None:
    found = candidates(["any"], "", TuneTarget(2))
    names = [each.name for each in found.installed]
    assert names[:5] == ["glibc", "jemalloc", "mimalloc", "tcmalloc", "hz"]
    assert found.space.control == UNCHANGED
    assert Arm("glibc") not in found.space.starts
    assert not {missing.split()[0] for missing in found.missing} & set(names)


def test_glibc_with_its_defaults_is_a_candidate_where_the_user_has_set_something() -> None:
    found = candidates(["glibc", "hz"], "", TuneTarget(2, settings={"MALLOC_ARENA_MAX": "2"}))
    assert Arm("glibc") in found.space.starts


def test_the_unchanged_program_in_another_word_is_neither_searched_nor_proved(
    make_bench: MakeBench, choice: Choice
) -> None:
    bench = make_bench(landscape(one=0.05), QUIET)
    decision = decided(bench, replace(choice, unchanged="one"))
    arms = {o.arm for block in bench.ledger.blocks for o in block.outcomes}
    assert Arm("one") not in arms
    assert {arm.allocator for arm in arms} == {"none", "one", "two", "fixed"}
    assert decision.arm != Arm("one")


def test_a_list_restricts_the_allocators_and_a_single_name_is_compared_with_itself() -> None:
    assert candidates(["jemalloc", "hz"], "", TuneTarget(2)).label.split()[::2] == [
        "jemalloc",
        "hz",
    ]
    assert candidates(["jemalloc"], "", TuneTarget(2)).space.control == Arm("jemalloc")


@pytest.mark.parametrize(
    ("wanted", "space", "said"),
    [
        ("jemaloc,hz", "", "did you mean jemalloc"),
        ("any", "hz", "--space is for one allocator"),
        ("none", "", "no parameters"),
        ("rpmalloc,hz", "", "rpmalloc is not installed"),
    ],
)
def test_what_cannot_be_chosen_is_refused(wanted: str, space: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        candidates(wanted.split(","), space, TuneTarget(2))
