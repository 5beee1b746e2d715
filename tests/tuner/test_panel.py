"""The panel: harm on strange workloads is found, named, left out or told; noise is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lab.replay import Landscape, ModelNoise, ReplayExecutor, Truth

from hztune.blocks import Arm
from hztune.errors import HztuneError
from hztune.measure.whole import RunExecutor
from hztune.stats.intervals import Interval
from hztune.study.bench import Workbench
from hztune.study.panel import LOOKS, Examination, Panel, PanelExecutor, make, panel_interval
from hztune.study.proof import Step

from .conftest import MACHINE, QUIET, USUAL, Stopped, bench_of, flat

Steps = tuple[Step, ...]

CONTROL = Arm("hz")


def chain(**gains: float) -> Steps:
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


def slow(log_ratio: float, **config: object) -> Landscape:
    """A landscape in which all these parameters together cost speed."""
    return lambda arm: Truth(log_ratio if config.items() <= arm.config.items() else 0.0)


def greedy(unit_kb: int) -> Landscape:
    """A landscape in which large pages take two fifths more memory."""
    return lambda arm: Truth(rss_kb=unit_kb * (7 if arm.config.get("pages") == "on" else 5))


def crashes(arm: Arm) -> Truth:
    return Truth(status="crash" if arm.config.get("pages") == "on" else "ok")


def panel(
    bench: Workbench, landscapes: Mapping[str, Landscape], noise: ModelNoise = QUIET, seed: int = 1
) -> Panel:
    """A panel of simulated workloads, on the clock of the bench."""
    clock, executors = bench.budget.clock, []
    for index, (name, landscape) in enumerate(landscapes.items(), start=100 * seed):
        drawn = ReplayExecutor(landscape, noise, seed=index, clock=clock, rss_scatter=0.02)
        executors.append(PanelExecutor(drawn, name, f"programs like {name}"))
    return Panel(executors)


def examined(
    landscapes: Mapping[str, Landscape],
    steps: Steps = WEAK,
    seconds: float = 30.0,
    stops: int | None = None,
    **options: Any,
) -> tuple[Examination, Workbench]:
    """What a panel finds; the first workload cannot be measured after so many blocks."""
    bench = bench_of(flat)
    found = panel(bench, landscapes, **options)
    if stops is not None:
        gone = HztuneError("hz-turns is gone")
        found.executors[0].inner = Stopped(found.executors[0].inner, stops, gone)
    return found.examine(bench, CONTROL, steps, until_s=seconds), bench


def texts(cautions: Sequence[object]) -> list[str]:
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
    landscape: Landscape, steps: Steps, left: int, gone: str, told: str
) -> None:
    found, _ = examined({"large": landscape, "mstress": flat}, steps)
    assert (found.winner, found.steps) == (steps[-1].arm, steps[:left])
    assert texts([harm.caution for harm in found.left_out]) == [
        f"on programs like large: {gone}"
    ] * bool(gone)
    assert texts(found.cautions) == [f"on programs like large: {told}"] * bool(told)
    assert [seen.state for seen in found.seen] == ["harmed" if told else "safe", "safe"]


def test_what_only_may_not_be_removed_is_told() -> None:
    bench = bench_of(flat)
    found = panel(bench, {"large": slow(-3.5, delay=0)})
    seen = found.examine(bench, CONTROL, WEAK, until_s=30.0, may_remove=False)
    assert (seen.steps, texts(seen.cautions)) == (
        WEAK, ["on programs like large: 33 times slower (delay=0)"],
    )  # fmt: skip
    blocks = len(bench.ledger.panel)
    assert found.examine(bench, CONTROL, WEAK, until_s=0.0, may_remove=False) == seen
    assert len(bench.ledger.panel) == blocks


def test_the_step_is_found_in_the_panels_time_where_harm_is_only_suspected() -> None:
    """On `large`, pairs of a ruined winner scatter by 0.3: three of them show nothing yet."""
    noise = ModelNoise(within=0.6, between=0.2, common=0.2)
    landscapes = {"large": slow(-2.0, delay=0), "bursts": flat, "mstress": flat}
    found = 0
    for seed in range(10):
        seen, _ = examined(landscapes, noise=noise, seed=seed, seconds=14.4)
        found += seen.steps == WEAK[:2]
    assert found >= 8


def test_two_steps_that_harm_different_programs_both_go() -> None:
    landscapes = {"large": slow(-2.0, delay=0), "mstress": slow(-2.0, pages="on")}
    found, _ = examined(landscapes, seconds=60.0)
    assert found.steps == WEAK[:1]
    assert len(found.left_out) in (1, 2)  # the shorter one may be found first


# ---- what cannot be measured ---------------------------------------------------------------------


def test_a_workload_that_cannot_be_measured_costs_no_verdict_and_says_why() -> None:
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


def test_a_workload_whose_default_begins_to_fail_ends_the_search_for_the_cause() -> None:
    seen, bench = examined({"large": slow(-3.5, delay=0)}, stops=3)
    assert texts(seen.cautions) == ["on programs like large: 33 times slower"]
    assert len(bench.ledger.panel) == 5


def test_a_process_that_fails_as_often_with_the_default_is_no_harm() -> None:
    """By turns default and winner fail once, then neither."""
    arms = iter([CONTROL, WEAK[-1].arm])
    failing = next(arms)

    def flaky(arm: Arm) -> Truth:
        nonlocal failing
        if arm == failing:
            failing = next(arms, Arm("none"))
            return Truth(status="crash")
        return Truth()

    found, _ = examined({"large": flaky})
    assert (found.cautions, found.left_out) == ((), ())
    assert [seen.state for seen in found.seen] == ["safe"]


def test_the_panel_keeps_its_time_and_says_what_it_had_none_for() -> None:
    found, _ = examined({"large": slow(-3.5, delay=0)}, seconds=1.0)
    assert (found.steps, [each.missing for each in found.seen]) == (
        WEAK,
        ["no time was left for it"],
    )
    landscapes = {"large": slow(-0.06, delay=0), "bursts": slow(-0.06, pages="on"), "mstress": flat}
    _, bench = examined(landscapes, noise=USUAL, seconds=14.4)
    assert bench.budget.elapsed() <= 14.4


def test_a_winner_that_hangs_costs_the_panel_seconds(
    core_build: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run of a block has no usual time yet."""
    monkeypatch.setenv("HZTUNE_CORE", str(core_build))
    found = make(None, seed=1, machine=MACHINE, threads=2, tuned=("larson",))
    (bursts,) = (each.inner for each in found if each.workload == "burst-idle")
    assert isinstance(bursts, RunExecutor)
    assert bursts.limit_s() <= 5.0


# ---- noise ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_noise_alone_warns_in_few_panels() -> None:
    """At most 3 % of panels of three workloads: 4 or more of 100 would be told."""
    warned = 0
    equal = {"large": flat, "bursts": flat, "mstress": flat}
    for seed in range(60):
        found, _ = examined(equal, noise=USUAL, seed=seed, seconds=14.4)
        warned += bool(found.cautions or found.left_out)
    assert warned <= 2


def test_the_interval_of_a_panel_covers_at_all_its_looks_together() -> None:
    rng = np.random.default_rng(5)
    missed = 0
    for _ in range(1000):
        values = rng.normal(0.0, 1.0, LOOKS[-1]).tolist()
        seen = [panel_interval(values[:look]) for look in LOOKS]
        missed += any(each is not None and not each.has_zero for each in seen)
    assert missed <= 0.06 * 1000
