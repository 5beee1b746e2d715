"""The panel: harm on strange workloads is found, left out or told; what is kept, and where."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
from lab.replay import ModelNoise, ReplayExecutor, Truth

from hztune import export, profile, report
from hztune.blocks import Arm, spent_s
from hztune.errors import HztuneError
from hztune.measure import WorkloadSink
from hztune.measure.whole import RunExecutor
from hztune.progress import Reporter
from hztune.result import Decision, ending, read
from hztune.result.summary import summary_json, summary_lines
from hztune.stats.intervals import Interval
from hztune.store.log import LocalStudy, recording
from hztune.study.ledger import Ledger
from hztune.study.panel import LOOKS, Panel, PanelExecutor, make, panel_interval
from hztune.study.proof import Step
from hztune.tuning import session
from hztune.tuning.request import TuneRequest, understand
from hztune.tuning.story import Winner
from hztune.workload import WorkloadSpec

from .conftest import MACHINE, QUIET, USUAL, Kept, Stopped, bench_of, flat

CONTROL = Arm("hz")


def chain(**gains):
    """A proved chain: what each parameter adds, log units."""
    values = {"delay": 0, "lock": "spin", "pages": "on", "cap": 8}
    arms = [CONTROL, *(Arm.of("hz", {n: values[n] for n in [*gains][: count + 1]})
                       for count in range(len(gains)))]  # fmt: skip
    each = [Interval(gain, 0.5 * gain, 1.5 * gain, 10) for gain in gains.values()]
    totals = [Interval(gain, 0.5 * gain, 1.5 * gain, 10) for gain in accumulate(gains.values())]
    return tuple(
        Step(arm, before, "proved", added, total)
        for arm, before, added, total in zip(arms[1:], arms, each, totals, strict=False)
    )


WORTHY, WEAK = chain(lock=0.2, pages=0.1, delay=0.08), chain(lock=0.2, pages=0.04, delay=0.02)


def slow(log_ratio, **config):
    """A landscape in which all these parameters together cost speed."""
    return lambda arm: Truth(log_ratio if config.items() <= arm.config.items() else 0.0)


def greedy(unit_kb):
    """A landscape in which large pages take two fifths more memory."""
    return lambda arm: Truth(rss_kb=unit_kb * (7 if arm.config.get("pages") == "on" else 5))


def crashes(arm):
    return Truth(status="crash" if arm.config.get("pages") == "on" else "ok")


def panel(bench, landscapes, noise=QUIET, seed=1):
    """A panel of simulated workloads, on the clock of the bench."""
    clock, executors = bench.budget.clock, []
    for index, (name, landscape) in enumerate(landscapes.items(), start=100 * seed):
        drawn = ReplayExecutor(landscape, noise, seed=index, clock=clock, rss_scatter=0.02)
        executors.append(PanelExecutor(drawn, name, f"programs like {name}"))
    return executors


def examined(landscapes, steps=WEAK, seconds=30.0, stops=None, **options):
    """What a panel finds; the first workload cannot be measured after so many blocks."""
    bench = bench_of(flat)
    found = panel(bench, landscapes, **options)
    if stops is not None:
        gone = HztuneError("hz-turns is gone")
        found[0].inner = Stopped(found[0].inner, stops, gone)
    return Panel(bench, CONTROL, steps, found, seconds).examine(), bench


def texts(cautions):
    return [getattr(each, "text", "") for each in cautions]


# ---- what goes, what stays -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("landscape", "steps", "left", "gone", "told"),
    [
        (slow(-3.5, delay=0), WEAK, 2, "33 times slower (delay=0)", ""),
        (slow(-3.5, pages="on"), WEAK, 1, "33 times slower (pages=on)", ""),
        (slow(-3.5, delay=0, pages="on"), WEAK, 2, "33 times slower (delay=0)", ""),
        (greedy(20_000), WEAK, 1, "1.4 times the memory (pages=on)", ""),
        (crashes, WORTHY, 1, "a process failed (pages=on)", ""),
        # worth its place, or the first of the chain: it stays, with a line
        (slow(-3.5, delay=0), WORTHY, 3, "", "33 times slower (delay=0)"),
        (slow(-3.5, lock="spin"), WEAK, 3, "", "33 times slower (lock=spin)"),
        (slow(-1.0, delay=0), chain(delay=0.02), 1, "", "3 times slower (delay=0)"),
        # no harm: within the margin, or a few pages
        (slow(-0.01, delay=0), WEAK, 3, "", ""),
        (greedy(500), WEAK, 3, "", ""),
    ],
)
def test_the_chain_ends_before_the_step_that_harms_unless_it_is_worth_its_place(
    landscape, steps, left, gone, told
):
    found, _ = examined({"large": landscape, "mstress": flat}, steps)
    assert (found.winner, found.steps) == (steps[-1].arm, steps[:left])
    assert texts(found.left_out) == [f"on programs like large: {gone}"] * bool(gone)
    assert texts(found.cautions) == [f"on programs like large: {told}"] * bool(told)
    assert [seen.state for seen in found.seen] == ["harmed" if told else "safe", "safe"]


def test_what_only_may_not_be_removed_is_told():
    bench = bench_of(flat)
    found = panel(bench, {"large": slow(-3.5, delay=0)})
    seen = Panel(bench, CONTROL, WEAK, found, 30.0, may_remove=False).examine()
    assert (seen.steps, texts(seen.cautions)) == (
        WEAK, ["on programs like large: 33 times slower (delay=0)"],
    )  # fmt: skip
    blocks = len(bench.ledger.panel)
    assert Panel(bench, CONTROL, WEAK, found, 0.0, may_remove=False).examine() == seen
    assert len(bench.ledger.panel) == blocks


def test_the_step_is_found_in_the_panels_time_where_harm_is_only_suspected():
    """On `large`, pairs of a ruined winner scatter by 0.3: three of them show nothing yet."""
    noise = ModelNoise(within=0.6, between=0.2, common=0.2)
    landscapes = {"large": slow(-2.0, delay=0), "bursts": flat, "mstress": flat}
    found = 0
    for seed in range(10):
        seen, _ = examined(landscapes, noise=noise, seed=seed, seconds=14.4)
        found += seen.steps == WEAK[:2]
    assert found >= 8


# ---- what cannot be measured ---------------------------------------------------------------------


def test_a_workload_that_cannot_be_measured_costs_no_verdict_and_says_why():
    landscapes = {
        "large": flat,
        "bursts": lambda arm: Truth(status="oom"),
        "mstress": slow(-3.5, delay=0),
    }
    seen, _ = examined(landscapes, stops=0)
    assert seen.steps == WEAK[:2]
    assert [(each.state, each.missing) for each in seen.seen] == [
        ("open", "the default failed on it (failed: hz-turns is gone)"),
        ("open", "the default failed on it (oom: the landscape says oom)"),
        ("safe", ""),
    ]


def test_a_process_that_fails_as_often_with_the_default_is_no_harm():
    """By turns default and winner fail once, then neither."""
    arms = iter([CONTROL, WEAK[-1].arm])
    failing = next(arms)

    def flaky(arm):
        nonlocal failing
        if arm == failing:
            failing = next(arms, Arm("none"))
            return Truth(status="crash")
        return Truth()

    found, _ = examined({"large": flaky})
    assert (found.cautions, found.left_out) == ((), ())
    assert [seen.state for seen in found.seen] == ["safe"]


def test_the_panel_keeps_its_time_and_says_what_it_had_none_for():
    found, _ = examined({"large": slow(-3.5, delay=0)}, seconds=1.0)
    assert (found.steps, [each.missing for each in found.seen]) == (
        WEAK,
        ["no time was left for it"],
    )
    landscapes = {"large": slow(-0.06, delay=0), "bursts": slow(-0.06, pages="on"), "mstress": flat}
    _, bench = examined(landscapes, noise=USUAL, seconds=14.4)
    assert bench.budget.elapsed() <= 14.4


def test_a_winner_that_hangs_costs_seconds(core_build, monkeypatch):
    """The first run of a block has no usual time yet."""
    monkeypatch.setenv("HZTUNE_CORE", str(core_build))
    found = make(None, seed=1, machine=MACHINE, threads=2, tuned=("larson",))
    (bursts,) = (each.inner for each in found if each.workload == "burst-idle")
    assert isinstance(bursts, RunExecutor)
    assert bursts.limit_s() <= 5.0


# ---- noise ---------------------------------------------------------------------------------------


def test_noise_alone_warns_in_few_panels():
    """Of 1000 panels of three workloads 46 warned, as ERROR allows: 9 of 60 would be told."""
    equal = {"large": flat, "bursts": flat, "mstress": flat}
    found = [examined(equal, noise=USUAL, seed=n, seconds=14.4)[0] for n in range(60)]
    assert sum(bool(each.cautions or each.left_out) for each in found) <= 8


def test_the_interval_of_a_panel_covers_at_all_its_looks_together():
    rng = np.random.default_rng(5)
    missed = 0
    for _ in range(1000):
        values = rng.normal(0.0, 1.0, LOOKS[-1]).tolist()
        seen = [panel_interval(values[:look]) for look in LOOKS]
        missed += any(each is not None and not each.has_zero for each in seen)
    assert missed <= 0.06 * 1000


# ---- whole studies -------------------------------------------------------------------------------


LARSON = WorkloadSpec("larson", "", (), 2)
CAUTION = "on strange programs 0: 7 times slower (pages=on)"


def weighing(spin=0.0, pages=0.0):
    """What spin locks add, and what large pages add."""
    return lambda arm: Truth(
        spin * (arm.config.get("lock") == "spin") + pages * (arm.config.get("pages") == "on")
    )


USERS = weighing(0.2, 0.04)
RUINED = weighing(pages=-2.0)


@dataclass(frozen=True)
class Told:
    """What a study with a panel of two strange workloads came to in one session."""

    folder: Path
    study: Winner
    decision: Decision
    panels: list[Stopped]


def told(folder, space, own=USERS, stop_after=1000):
    """Begins a study or goes on with it, up to so many blocks of its panel."""
    with LocalStudy(folder, {}, MACHINE, resume=True) as store:
        blocks = store.replay()
        bench = bench_of(own, QUIET, budget_s=276.0, ledger=Ledger.of(blocks))
        clock = bench.budget.clock
        bench.executor, bench.note = Kept(bench.executor, store), store.note
        bench.budget = replace(bench.budget, spent_s=spent_s(blocks), reserved_s=24.0)
        panels = []
        for seed, landscape in enumerate((RUINED, flat)):
            drawn = ReplayExecutor(landscape, QUIET, seed=seed, clock=clock)
            panels.append(Stopped(Kept(drawn, WorkloadSink(store, f"strange{seed}"))))
        bench.stop = lambda: sum(len(each.seen) for each in panels) >= stop_after
        executors = [
            PanelExecutor(each, f"strange{seed}", f"strange programs {seed}")
            for seed, each in enumerate(panels)
        ]
        study = Winner(bench, space, 1, panel=executors)
        return Told(folder, study, study.run(), panels)


@pytest.fixture(scope="module")
def ended(toy_space, tmp_path_factory):
    """A study of which large pages gain a little, and ruin a strange workload."""
    return told(tmp_path_factory.mktemp("ended"), toy_space)


# ---- the study -----------------------------------------------------------------------------------


def test_what_harms_a_strange_workload_leaves_the_winner(ended):
    assert ended.decision.verdict == "improved"
    assert ended.decision.arm.config == {"lock": "spin"}
    (gone,) = ended.decision.examined.left_out
    assert (gone.text, ended.decision.examined.cautions) == (CAUTION, ())
    budget = ended.study.bench.budget
    assert (budget.total_s, budget.reserved_s) == (300.0, 0.0)
    assert budget.elapsed() <= 1.02 * budget.total_s


def test_a_stop_in_the_panel_loses_nothing_and_the_study_goes_on_with_the_next_block(
    toy_space, tmp_path
):
    blocks = 9
    first = told(tmp_path, toy_space, stop_after=blocks)
    assert first.decision.verdict == "interrupted"
    assert first.decision.arm.config.get("lock") == "spin"
    kept = [block for block in recording(tmp_path).blocks if block.role == "panel"]
    assert len(kept) == blocks
    again = told(tmp_path, toy_space)
    assert again.decision.arm.config == {"lock": "spin"}
    assert again.study.bench.ledger.panel[:blocks] == kept


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        ({}, 14.4),
        ({"panel": False}, 0.0),
        ({"pareto": "throughput,rss"}, 0.0),
        ({"budget_s": 60.0}, 0.0),
        ({"workload": None}, 0.0),
        ({"workload": None, "panel": True}, 14.4),
    ],
)
def test_a_panel_needs_time_or_is_asked_for(changes, seconds):
    assert replace(TuneRequest(LARSON), **changes).budget().reserved_s == pytest.approx(seconds)


# ---- the whole way -------------------------------------------------------------------------------

SPACE = """
schema = 1
allocator = "hz"
[parameters.depot_lock]
values = ["mutex", "spin"]
[parameters.max_dirty_bytes]
values = [0, "auto"]
[[risk]]
rule = "max_dirty_bytes == 0"
why = "pages are faulted in again"
"""


def keeping_nothing(gain, spin=0.0):
    """What it adds to return all memory at once, and what spin locks add."""
    return lambda arm: Truth(
        gain * (arm.config.get("max_dirty_bytes") == 0)
        + spin * (arm.config.get("depot_lock") == "spin")
    )


@pytest.fixture
def carried_out(core_build, tmp_path, monkeypatch, simulate):
    """Carries out a whole request: on a landscape, with a strange workload that needs its pages."""
    monkeypatch.setenv("HZTUNE_CORE", str(core_build))
    (tmp_path / "two.toml").write_text(SPACE)

    def carry_out(landscape, **changes):
        clock = simulate(landscape, QUIET, rss_scatter=0.01)

        def panel_of(request, machine, sink):
            drawn = ReplayExecutor(keeping_nothing(-2.3), QUIET, seed=1, clock=clock)
            inner = Kept(drawn, WorkloadSink(sink, "large"))
            large = PanelExecutor(inner, "large", "programs with large blocks")
            return (large,) if request.budget().reserved_s else ()

        monkeypatch.setattr(session, "panel_of", panel_of)
        space, out = str(tmp_path / "two.toml"), tmp_path / "out"
        request = TuneRequest(LARSON, space=space, budget_s=180.0, out=out)
        return session.tune(understand(replace(request, **changes)), Reporter())

    return carry_out


def test_what_stays_in_spite_of_harm_is_told(carried_out):
    result = carried_out(keeping_nothing(0.2))
    line = "on programs with large blocks: 10 times slower (max_dirty_bytes=0)"
    assert result.profile.params == {"max_dirty_bytes": 0}
    assert f"  warning: {line}" in summary_lines(result)
    assert "  on other programs: harm on large" in summary_lines(result)
    assert summary_json(result)["warnings"] == [line]
    for form in ("env", "sh", "header", "systemd"):
        assert f"warning: {line}" in export.render(result.profile, form)
    assert profile.load(result.folder / "profile.json") == result.profile
    page = report.render(result.folder)
    assert line in page and "On other programs" in page and "harmed" in page


def test_what_was_left_out_is_told_when_read_back(carried_out):
    result = carried_out(keeping_nothing(0.04, spin=0.2))
    line = "left out: on programs with large blocks: 10 times slower (max_dirty_bytes=0)"
    assert (result.profile.params, result.profile.cautions) == ({"depot_lock": "spin"}, ())
    assert f"  {line}" in summary_lines(result)
    assert [each.state for each in result.account.elsewhere] == ["safe"]
    assert read(json.loads(json.dumps(ending(result))), result.folder) == result
    assert line in report.render(result.folder)


def test_without_a_panel_the_known_risk_is_told(carried_out):
    result = carried_out(keeping_nothing(0.2), panel=False)
    assert "  on other programs: nothing was measured" in summary_lines(result)
    assert [each.text for each in result.profile.cautions] == [
        "known risk of max_dirty_bytes=0: pages are faulted in again"
    ]
