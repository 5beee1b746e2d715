"""Allocators and their parameters as one space: what is proposed, raced, proved and said."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from lab.replay import Landscape, Truth

from hztune import allocator
from hztune.blocks import Arm
from hztune.space import Choice, Preset, Space
from hztune.study.limits import MemoryLimit
from hztune.study.search import SLOTS, Search
from hztune.tuning.candidates import TuneTarget, candidates
from hztune.tuning.story import Winner

from .conftest import QUIET, bench_of, flat

UNCHANGED = Arm("none")


@pytest.fixture(scope="module")
def choice(toy_space):
    """Two allocators with the same parameters, and one without any."""
    fixed = Space("fixed", (), (), (), ())
    return Choice((*(replace(toy_space, allocator=name) for name in ("one", "two")), fixed))


def landscape(**speeds):
    """Each allocator's log speed; the spin lock of `two` adds 0.3 to that."""

    def truth(arm):
        bonus = 0.3 if arm.allocator == "two" and arm.config.get("lock") == "spin" else 0.0
        return Truth(speeds.get(arm.allocator, 0.0) + bonus)

    return truth


def measured(bench):
    """The arms of the search in the order of their first measurement."""
    return [record.arm for record in bench.ledger.searched.values()]


def searched(bench, space, share):
    """A search that has ended, of a study that can see one per cent."""
    bench.calibrated(0.01)
    search = Search(bench, space, seed=1)
    search.run(share)
    return search


def decided(bench, space):
    return Winner(bench, space, seed=1).run()


# ---- the search ----------------------------------------------------------------------------------


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
    Search(bench, choice, seed=1).run(0.5)
    assert {arm.allocator for arm in measured(bench)[len(before) :]} == {"one"}


def test_what_is_known_of_one_allocator_does_not_end_another_one(toy_space):
    both = Choice(tuple(replace(toy_space, allocator=name) for name in ("one", "two")))
    rng, bench = Random(1), bench_of(flat, QUIET, budget_s=1e6)
    arms = [replace(toy_space.arm(toy_space.sample(rng)), allocator="one") for _ in range(300)]
    arms[20:40] = [replace(arm, allocator="two") for arm in arms[20:40]]
    for at in range(0, len(arms), 20):
        bench.measure([both.control, *arms[at : at + 20]], "search", 20)
    search = Search(bench, both, seed=1)
    bench.calibrated(5.0)  # nothing promises so much
    assert not search._promises("one", SLOTS)
    assert search._promises("two", SLOTS)


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


# ---- the verdict ---------------------------------------------------------------------------------


def lean_but_slow(arm):
    """`one` needs half of the memory with four shards, and is a tenth slower then."""
    lean = arm.allocator == "one" and arm.config.get("shards") == 4
    return Truth(-0.1 if lean else 0.2, rss_kb=50_000 if lean else 100_000)


def two_takes(rss_kb):
    return lambda arm: Truth(0.3, rss_kb=rss_kb) if arm.allocator == "two" else Truth()


SLOWER = landscape(one=-0.2, two=-0.6, fixed=-0.1)
VERDICTS: dict[str, tuple[Landscape, dict[str, Any], str, Arm | str, str]] = {
    "with the one parameter that matters": (
        landscape(one=-0.1), {"budget_s": 300.0}, "improved", Arm.of("two", {"lock": "spin"}), "",
    ),
    "as it comes": (landscape(fixed=0.5), {"budget_s": 200.0}, "improved", Arm("fixed"), ""),
    "the unchanged program": (SLOWER, {"seed": 3}, "no_gain", UNCHANGED, ""),
    "some speed for a limit that the default breaks": (
        lean_but_slow, {"limit": "0.7x"}, "within_limit", "one", "stays within 0.7x of peak memory",
    ),
    "faster within the limit": (
        two_takes(50_000), {"limit": "0.7x", "budget_s": 40.0}, "improved", "two", "",
    ),
    "an impossible limit": (
        lean_but_slow, {"limit": "0.3x", "budget_s": 30.0}, "infeasible", UNCHANGED,
        "the least is 0.50x of its peak memory, by one ",
    ),
    "a gain that costs memory": (
        two_takes(157_000), {}, "improved", "two", ", at 1.57 times the peak memory",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", VERDICTS)
def test_what_wins_is_an_allocator_and_what_it_needs(choice, name):
    truth, options, verdict, winner, why = VERDICTS[name]
    limit = MemoryLimit.of(options["limit"]) if "limit" in options else None
    decision = decided(bench_of(truth, QUIET, **{**options, "limit": limit}), choice)
    assert decision.verdict == verdict
    assert winner in (decision.arm, decision.arm.allocator)
    assert why in decision.why


@pytest.mark.parametrize(
    ("limit", "first", "verdict"),
    [
        ("0.7x", ["one delay=0", "two delay=0"], "within_limit"),
        ("1.1x", ["one with its defaults", "two with its defaults"], None),
    ],
)
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


# ---- which allocators ----------------------------------------------------------------------------


def test_any_is_every_installed_allocator_but_the_unchanged_program():
    found = candidates(["any"], "", TuneTarget(2))
    names = [each.name for each in found.installed]
    assert names[:5] == ["glibc", "jemalloc", "mimalloc", "tcmalloc", "hz"]
    assert not {missing.split()[0] for missing in found.missing} & set(names)


@pytest.mark.parametrize(
    ("variables", "brought", "same"),
    [
        ({"GLIBC_TUNABLES": "glibc.malloc.tcache_count=7:glibc.malloc.mxfast=0x80"}, "", "glibc"),
        ({"MALLOC_ARENA_MAX": "2"}, "", ""),
        ({"MALLOC_CONF": "dirty_decay_ms:10000"}, "inside:jemalloc", "glibc inside:jemalloc"),
        ({"MALLOC_CONF": "stats_print:true"}, "inside:jemalloc", ""),
        ({"mimalloc_purge_delay": "1"}, "inside:mimalloc", ""),
        ({"LD_PRELOAD": "libjemalloc.so.2:a_link"}, "", "jemalloc"),
        ({"LD_PRELOAD": "a_link:/lib/libother.so"}, "", ""),
        ({"LD_PRELOAD": "a_link", "MALLOC_CONF": "narenas:2"}, "", ""),
        ({}, "a_link", "glibc jemalloc"),
    ],
)
def test_what_the_unchanged_program_is_already_is_not_searched(variables, brought, same, tmp_path):
    library = allocator.get("jemalloc").installed()
    (tmp_path / "a_link").symlink_to(library.path)
    given = {name: text.replace("a_link", f"{tmp_path}/a_link") for name, text in variables.items()}
    inside = (replace(library, name=brought, preload=""),) if ":" in brought else ()
    target = TuneTarget(2, inside, variables=given, linked={tmp_path / brought})
    found = candidates(["glibc", "jemalloc", *(part.name for part in inside)], "", target)
    assert found.space.unchanged == set(same.split())
