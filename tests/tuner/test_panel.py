"""Beside what is searched: the panel's strange workloads, and the program that proves a trace."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from dataclasses import replace
from itertools import accumulate
from types import SimpleNamespace

import numpy as np
import pytest
from lab.replay import ModelNoise, ReplayExecutor, Truth
from tests.bench import traces

from hztune import api, export, profile, report
from hztune.blocks import Arm, Block
from hztune.errors import HztuneError, StoppedByUser
from hztune.measure import WorkloadSink
from hztune.measure.program import described
from hztune.measure.whole import RunExecutor
from hztune.result import ending, read
from hztune.result.summary import summary_json, summary_lines
from hztune.stats.intervals import Interval
from hztune.store.log import recording
from hztune.study.ledger import Ledger
from hztune.study.panel import LOOKS, Panel, PanelExecutor, make, panel_interval
from hztune.study.proof import Step
from hztune.tuning import session
from hztune.tuning.request import understand
from hztune.tuning.story import Winner

from .conftest import MACHINE, ONE_KNOB, QUIET, USUAL, Kept, Stopped, bench_of, flat, spin_wins

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


CHAINS = [
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
]


@pytest.mark.parametrize(("landscape", "steps", "left", "gone", "told"), CHAINS)
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
    killed = lambda arm: Truth(status="oom")  # noqa: E731
    seen, _ = examined({"large": flat, "bursts": killed, "mstress": slow(-3.5, delay=0)}, stops=0)
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
    assert found.steps == WEAK
    assert [each.missing for each in found.seen] == ["no time was left for it"]
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


def of_the_user(arm):
    """Spin locks add a fifth, and large pages a little."""
    return Truth(0.2 * (("lock", "spin") in arm.params) + 0.04 * (("pages", "on") in arm.params))


def test_what_harms_a_strange_workload_leaves_the_winner(toy_space):
    """Large pages gain a little, and ruin a strange workload."""
    bench = bench_of(of_the_user, QUIET, budget_s=276.0)
    bench.budget.reserved_s = 24.0
    strange = panel(bench, {"large": slow(-2.0, pages="on"), "mstress": flat})
    decision = Winner(bench, toy_space, 1, panel=strange).run()
    assert decision.verdict == "improved"
    assert decision.arm.config == {"lock": "spin"}
    line = "on programs like large: 7 times slower (pages=on)"
    assert (texts(decision.examined.left_out), decision.examined.cautions) == ([line], ())
    assert (bench.budget.total_s, bench.budget.reserved_s) == (300.0, 0.0)
    assert bench.budget.elapsed() <= 1.02 * bench.budget.total_s


RESERVED = [
    ({}, 14.4),
    ({"panel": False}, 0.0),
    ({"pareto": "throughput,rss"}, 0.0),
    ({"budget_s": 60.0}, 0.0),
    ({"workload": None}, 0.0),
    ({"workload": None, "panel": True}, 14.4),
]


@pytest.mark.parametrize(("changes", "seconds"), RESERVED)
def test_a_panel_needs_time_or_is_asked_for(changes, seconds):
    asked = replace(api.request("larson", threads=2), **changes)
    assert asked.budget().reserved_s == pytest.approx(seconds)


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
def tuned(core_build, monkeypatch, simulate, carry_out):
    """Carries out a whole request: on a landscape, with a strange workload that needs its pages.

    The user stops it after so many blocks of its panel.
    """
    monkeypatch.setenv("HZTUNE_CORE", str(core_build))

    def tune(landscape, *, stop_after=1000, **more):
        clock, seen = simulate(landscape, QUIET, rss_scatter=0.01), list[Block]()

        def panel_of(request, machine, sink):
            drawn = ReplayExecutor(keeping_nothing(-2.3), QUIET, seed=1, clock=clock)
            inner = Stopped(Kept(drawn, WorkloadSink(sink, "large")), seen=seen)
            large = PanelExecutor(inner, "large", "programs with large blocks")
            return (large,) if request.budget().reserved_s else ()

        asked = SimpleNamespace(is_set=lambda: len(seen) >= stop_after)
        monkeypatch.setattr(session, "interruptible", lambda: nullcontext(asked))
        monkeypatch.setattr(session, "panel_of", panel_of)
        return carry_out(SPACE, "larson", threads=2, budget="3m", **more)

    return tune


def test_what_stays_in_spite_of_harm_is_told(tuned):
    result = tuned(keeping_nothing(0.2))
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


def test_what_was_left_out_is_told_when_read_back(tuned):
    result = tuned(keeping_nothing(0.04, spin=0.2))
    line = "left out: on programs with large blocks: 10 times slower (max_dirty_bytes=0)"
    assert (result.profile.params, result.profile.cautions) == ({"depot_lock": "spin"}, ())
    assert f"  {line}" in summary_lines(result)
    assert [each.state for each in result.account.elsewhere] == ["safe"]
    assert read(json.loads(json.dumps(ending(result))), result.folder) == result
    assert line in report.render(result.folder)


def test_a_stop_in_the_panel_loses_nothing_and_the_study_goes_on_with_the_next_block(tuned):
    """The panel has shown the harm then, and seeks the step that does it."""
    landscape, blocks = keeping_nothing(0.04, spin=0.2), 4
    result = tuned(landscape, stop_after=blocks)
    assert result.profile.claim.verdict == "interrupted"
    assert result.profile.params == {"depot_lock": "spin", "max_dirty_bytes": 0}
    kept = Ledger.of(recording(result.folder).blocks).panel
    assert len(kept) == blocks
    result = tuned(landscape, resume=True)
    assert result.profile.params == {"depot_lock": "spin"}
    assert Ledger.of(recording(result.folder).blocks).panel[:blocks] == kept


def test_without_a_panel_the_known_risk_is_told(tuned):
    result = tuned(keeping_nothing(0.2), panel=False)
    assert "  on other programs: nothing was measured" in summary_lines(result)
    known = "known risk of max_dirty_bytes=0: pages are faulted in again"
    assert [each.text for each in result.profile.cautions] == [known]


# ---- a trace, and the program that it is of: `--prove-on` ----------------------------------------

PROGRAM = described((sys.executable, "-c", "pass"))


@pytest.fixture
def trace(tmp_path):
    return f"trace:{traces.write(tmp_path / 'app.hzt', [traces.churn(400)])}"


@pytest.fixture
def proved_on(core_build, monkeypatch, trace, simulate, carry_out):
    """Carries out a study of a trace, whose program has a landscape of its own."""
    monkeypatch.setenv("HZTUNE_CORE", str(core_build))

    def tune(on_program, *, stop_after=1000, **more):
        clock = simulate(spin_wins(0.4, "depot_lock"), QUIET, rss_scatter=0.01)
        own = spin_wins(on_program, "depot_lock")
        drawn = ReplayExecutor(own, QUIET, seed=2, clock=clock, rss_scatter=0.01)
        program = Stopped(drawn, stop_after, StoppedByUser("stopped by the user"))
        monkeypatch.setattr(session, "executor_for", lambda program_, to, **_: Kept(program, to))
        asked = {"budget": "3m", "panel": False, "prove_on": PROGRAM, **more}
        return carry_out(ONE_KNOB, trace, **asked)

    return tune


def test_a_confirmed_gain_is_claimed_of_the_program(proved_on, tmp_path):
    result = proved_on(0.1)
    made = result.profile
    assert made.claim.verdict == "improved" and made.claim.metric == "wall_s"
    assert made.claim.ratio is not None and 1.05 < made.claim.ratio < 1.16
    assert (made.workload.kind, made.threads) == ("program", 0)
    assert made.workload.words_sha256 == profile.hash_of_words(PROGRAM.argv)
    assert made.found_on is not None and made.found_on.name == "trace:app.hzt"
    assert made.cautions == (), "what is proved on the program needs no check of the trace"
    assert "fresh pairs of" in result.account.why and "; on its trace, +" in result.account.why
    assert profile.load(tmp_path / "out" / "profile.json") == made
    assert any("found on trace:app.hzt" in line for line in export.provenance(made, undo=""))
    page = report.render(tmp_path / "out")
    assert "The search, whose figures follow, was on trace:app.hzt" in page
    assert read(json.loads(json.dumps(ending(result))), result.folder) == result

    blocks = recording(tmp_path / "out").blocks
    ledger = Ledger.of(blocks)
    assert {block.role for block in ledger.on_program} == {"aa", "confirm"}
    assert [block.number for block in blocks] == list(range(len(blocks)))
    on_trace = ledger.fresh(Arm.of("hz", {"depot_lock": "spin"})).log_ratios
    assert sum(on_trace) / len(on_trace) > 0.3, "no block of the program is among them"


def test_a_gain_of_the_trace_alone_is_none(proved_on):
    result = proved_on(0.0)
    assert result.profile.claim.verdict == "no_gain" and result.profile.params == {}
    assert "itself does not confirm it" in result.account.why
    assert result.profile.workload.kind == "program"


def test_a_study_stopped_on_the_program_goes_on(proved_on, tmp_path):
    assert proved_on(0.1, stop_after=5).profile.claim.verdict == "interrupted"
    before = Ledger.of(recording(tmp_path / "out").blocks).on_program
    assert len(before) == 5
    result = proved_on(0.1, resume=True)
    assert result.profile.claim.verdict == "improved" and result.profile.found_on is not None
    assert Ledger.of(recording(tmp_path / "out").blocks).on_program[:5] == before


# ---- the request ---------------------------------------------------------------------------------


def test_another_program_makes_another_study(trace):
    plain, proved = api.request(trace), api.request(trace, prove_on=PROGRAM)
    assert "proved on" not in understand(plain).identity
    other = replace(proved, prove_on=replace(PROGRAM, argv=(sys.executable, "-c", "1")))
    told = [understand(each).identity["proved on"] for each in (proved, other)]
    assert told[0] != told[1]


# ---- a trace alone -------------------------------------------------------------------------------


def test_what_a_trace_proved_says_so(proved_on):
    result = proved_on(0.1, prove_on=None)
    line = "trace:app.hzt: proved on a trace only, not on its program"
    assert [each.text for each in result.profile.cautions] == [line]
