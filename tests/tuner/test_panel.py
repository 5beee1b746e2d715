"""The panel: harm on strange workloads is found, named, left out or told; noise is not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from lab.replay import Landscape, ModelNoise, ReplayExecutor, Truth

from hztune.blocks import Arm, Block, Role
from hztune.errors import HztuneError
from hztune.machine import Machine
from hztune.measure import Around
from hztune.measure.runs import RunExecutor
from hztune.panel import Examination, Panel, PanelExecutor, make
from hztune.panel.judging import LOOKS, panel_interval
from hztune.space import Space
from hztune.trial import Workbench

MakeBench = Callable[..., Workbench]

QUIET = ModelNoise(within=0.03, between=0.01, common=0.1)
USUAL = ModelNoise(within=0.12, between=0.05, common=0.1, drift=0.02, tail=4, outlier_share=0.01)
CONTROL = Arm("hz")
WINNER = Arm.of("hz", {"delay": 0, "lock": "spin", "pages": "on"})
GAINS = {"lock": 0.2, "pages": 0.1, "delay": 0.02}


def flat(arm: Arm) -> Truth:
    return Truth()


def slow(log_ratio: float, **config: object) -> Landscape:
    """A landscape in which all these parameters together cost speed."""
    return lambda arm: Truth(log_ratio if config.items() <= arm.config.items() else 0.0)


def panel(
    bench: Workbench, landscapes: Mapping[str, Landscape], noise: ModelNoise = QUIET, seed: int = 1
) -> Panel:
    """A panel of simulated workloads, on the clock of the bench."""
    clock = bench.executor.clock  # type: ignore[attr-defined]
    return Panel(
        [
            PanelExecutor(
                ReplayExecutor(landscape, noise, seed=100 * seed + index, clock=clock,
                               rss_scatter=0.02),
                name, f"programs like {name}",
            )
            for index, (name, landscape) in enumerate(landscapes.items())
        ]
    )  # fmt: skip


def examined(
    make_bench: MakeBench,
    space: Space,
    landscapes: Mapping[str, Landscape],
    *,
    winner: Arm = WINNER,
    gains: Mapping[str, float] = GAINS,
    seconds: float = 30.0,
    **options: object,
) -> Examination:
    bench = make_bench(flat)
    found = panel(bench, landscapes, **options)  # type: ignore[arg-type]
    return found.examine(bench, space, CONTROL, winner, gains=gains, seconds=seconds)


# ---- what goes, what stays -----------------------------------------------------------------------


def test_a_harmful_parameter_that_adds_little_goes_and_what_is_left_is_measured_again(
    make_bench: MakeBench, toy_space: Space
) -> None:
    found = examined(make_bench, toy_space, {"large": slow(-3.5, delay=0), "mstress": flat})
    assert found.arm.config == {"lock": "spin", "pages": "on"}
    assert [one.caution.text for one in found.left_out] == [
        "on programs like large: 33 times slower (delay=0)"
    ]
    assert found.harms == ()
    assert {seen.workload: seen.state for seen in found.seen} == {
        "large": "safe",
        "mstress": "safe",
    }
    assert found.cautions(found.arm) == ()


def test_a_harmful_parameter_that_is_worth_its_place_stays_with_a_line(
    make_bench: MakeBench, toy_space: Space
) -> None:
    found = examined(make_bench, toy_space, {"large": slow(-3.5, lock="spin"), "mstress": flat})
    assert found.arm == WINNER
    (caution,) = found.cautions(WINNER)
    assert caution.text == "on programs like large: 33 times slower (lock=spin)"
    assert (caution.what, caution.workload, caution.params) == (
        "speed", "large", (("lock", "spin"),),
    )  # fmt: skip


def test_a_parameter_whose_gain_is_not_known_is_not_worth_harm(
    make_bench: MakeBench, toy_space: Space
) -> None:
    found = examined(make_bench, toy_space, {"large": slow(-3.5, lock="spin")}, gains={})
    assert found.arm.config == {"delay": 0, "pages": "on"}


def test_the_only_parameter_of_a_winner_stays_with_its_line(
    make_bench: MakeBench, toy_space: Space
) -> None:
    only = Arm.of("hz", {"delay": 0})
    found = examined(make_bench, toy_space, {"large": slow(-1.0, delay=0)}, winner=only)
    assert found.arm == only
    assert [each.text for each in found.cautions(only)] == [
        "on programs like large: 3 times slower (delay=0)"
    ]


def test_the_cause_is_sought_as_soon_as_harm_is_suspected_and_found_in_the_panels_time(
    make_bench: MakeBench, toy_space: Space
) -> None:
    """On `large`, pairs of a ruined winner scatter by 0.3: three of them show nothing yet."""
    noise = ModelNoise(within=0.6, between=0.2, common=0.2)
    landscapes = {"large": slow(-2.0, delay=0), "bursts": flat, "mstress": flat}
    found = 0
    for seed in range(20):
        left = examined(make_bench, toy_space, landscapes, noise=noise, seed=seed, seconds=14.4).arm
        found += left.config == {"lock": "spin", "pages": "on"}
    assert found >= 16


def test_two_parameters_that_do_the_same_harm_are_both_found(
    make_bench: MakeBench, toy_space: Space
) -> None:
    def either(arm: Arm) -> Truth:
        harmed = arm.config.get("delay") == 0 or arm.config.get("pages") == "on"
        return Truth(-2.0 if harmed else 0.0)

    gains = {"lock": 0.2, "pages": 0.01, "delay": 0.02}
    found = examined(make_bench, toy_space, {"large": either}, gains=gains, seconds=90.0)
    assert found.arm.config == {"lock": "spin"}
    assert len(found.left_out) == 2


def test_harm_that_only_two_parameters_do_together_is_found(
    make_bench: MakeBench, toy_space: Space
) -> None:
    landscape = slow(-2.0, delay=0, pages="on")
    found = examined(make_bench, toy_space, {"large": landscape}, gains={"lock": 0.2, "pages": 0.1})
    assert found.arm.config == {"lock": "spin", "pages": "on"}


def test_memory_beyond_the_margin_is_harm_and_a_few_pages_are_not(
    make_bench: MakeBench, toy_space: Space
) -> None:
    def greedy(unit_kb: int) -> Landscape:
        return lambda arm: Truth(rss_kb=unit_kb * (7 if arm.config.get("pages") == "on" else 5))

    found = examined(make_bench, toy_space, {"bursts": greedy(20_000), "tiny": greedy(500)})
    assert [each.text for each in found.cautions(WINNER)] == [
        "on programs like bursts: 1.4 times the memory (pages=on)"
    ]


def test_a_process_that_fails_under_the_winner_is_harm_that_no_gain_is_worth(
    make_bench: MakeBench, toy_space: Space
) -> None:
    def breaks(arm: Arm) -> Truth:
        return Truth(status="crash" if arm.config.get("lock") == "spin" else "ok")

    found = examined(make_bench, toy_space, {"large": breaks})
    assert found.arm.config == {"delay": 0, "pages": "on"}
    assert [one.caution.text for one in found.left_out] == [
        "on programs like large: a process failed (lock=spin)"
    ]


def test_a_loss_within_the_margin_is_no_harm(make_bench: MakeBench, toy_space: Space) -> None:
    found = examined(make_bench, toy_space, {"large": slow(-0.03, delay=0)})
    assert (found.arm, found.harms, found.left_out) == (WINNER, (), ())


def test_a_workload_on_which_the_default_fails_says_why_nothing_is_shown(
    make_bench: MakeBench, toy_space: Space
) -> None:
    landscapes = {"large": lambda arm: Truth(status="oom"), "mstress": flat}
    found = examined(make_bench, toy_space, landscapes)
    assert (found.arm, found.harms) == (WINNER, ())
    assert [(seen.workload, seen.state, seen.missing) for seen in found.seen] == [
        ("large", "open", "the default failed on it (oom: the landscape says oom)"),
        ("mstress", "safe", ""),
    ]


def test_a_workload_that_cannot_be_measured_costs_no_verdict_and_says_why(
    make_bench: MakeBench, toy_space: Space
) -> None:
    bench = make_bench(flat)
    found = panel(bench, {"large": slow(-3.5, delay=0), "mstress": slow(-3.5, delay=0)})
    found.executors[0].inner = Broken(found.executors[0].inner)
    seen = found.examine(bench, toy_space, CONTROL, WINNER, gains=GAINS, seconds=30.0)
    assert [one.caution.workload for one in seen.left_out] == ["mstress"]
    assert seen.seen[0].missing == "the default failed on it (failed: hz-turns is gone)"


def test_a_workload_whose_default_begins_to_fail_ends_the_search_for_the_cause(
    make_bench: MakeBench, toy_space: Space
) -> None:
    bench = make_bench(flat)
    found = panel(bench, {"large": slow(-3.5, delay=0)})
    found.executors[0].inner = Broken(found.executors[0].inner, after=3)
    seen = found.examine(bench, toy_space, CONTROL, WINNER, gains=GAINS, seconds=30.0)
    assert [each.text for each in seen.cautions(WINNER)] == [
        "on programs like large: 33 times slower"
    ]
    assert len(bench.ledger.panel) == 5


@dataclass
class Broken(Around):
    """What cannot measure any more after so many blocks."""

    after: int = 0

    def measure(self, arms: Sequence[Arm], *, role: Role, rounds: int, number: int) -> Block:
        self.after -= 1
        if self.after < 0:
            raise HztuneError("hz-turns is gone")
        return self.inner.measure(arms, role=role, rounds=rounds, number=number)


def test_a_process_that_fails_as_often_with_the_default_is_no_harm(
    make_bench: MakeBench, toy_space: Space
) -> None:
    """By turns default and winner fail once, then neither."""
    arms = iter([CONTROL, WINNER])
    failing = next(arms)

    def flaky(arm: Arm) -> Truth:
        nonlocal failing
        if arm == failing:
            failing = next(arms, Arm("none"))
            return Truth(status="crash")
        return Truth()

    found = examined(make_bench, toy_space, {"large": flaky})
    assert (found.harms, found.left_out) == ((), ())
    assert [seen.state for seen in found.seen] == ["safe"]


def test_what_was_shown_is_known_without_measuring_again(
    make_bench: MakeBench, toy_space: Space
) -> None:
    bench = make_bench(flat)
    found = panel(bench, {"large": slow(-3.5, delay=0), "mstress": flat})
    found.examine(bench, toy_space, CONTROL, WINNER, gains=GAINS, seconds=30.0)
    blocks = len(bench.ledger.panel)
    known = found.known(bench, toy_space, CONTROL, WINNER)
    assert [each.text for each in known.cautions(WINNER)] == [
        "on programs like large: 33 times slower (delay=0)"
    ]
    assert len(bench.ledger.panel) == blocks


def test_without_time_for_three_pairs_nothing_is_measured_and_that_is_said(
    make_bench: MakeBench, toy_space: Space
) -> None:
    found = examined(make_bench, toy_space, {"large": slow(-3.5, delay=0)}, seconds=1.0)
    assert found.arm == WINNER
    assert [seen.missing for seen in found.seen] == ["no time was left for it"]


def test_the_panel_keeps_its_time(make_bench: MakeBench, toy_space: Space) -> None:
    bench = make_bench(flat)
    landscapes = {"large": slow(-0.06, delay=0), "bursts": slow(-0.06, pages="on"), "mstress": flat}
    panel(bench, landscapes, USUAL).examine(
        bench, toy_space, CONTROL, WINNER, gains=GAINS, seconds=14.4
    )
    assert bench.budget.elapsed() <= 14.4


def test_a_winner_that_hangs_costs_the_panel_seconds(
    core_build: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run of a block has no usual time yet."""
    monkeypatch.setenv("HZTUNE_CORE", str(core_build))
    machine = Machine("CPU 3000", 2, None, "6.1", "glibc 2.36", 4096, "madvise", "", "", 24, None)
    found = make(None, seed=1, machine=machine, threads=2, tuned=("larson",))
    (bursts,) = (each.inner for each in found if each.workload == "burst-idle")
    assert isinstance(bursts, RunExecutor)
    assert bursts._limits().run_s <= 5.0


# ---- noise ---------------------------------------------------------------------------------------

PANELS = 100


@pytest.mark.parametrize("noise", [QUIET, USUAL], ids=["quiet", "usual"])
def test_noise_alone_warns_in_few_panels(
    make_bench: MakeBench, toy_space: Space, noise: ModelNoise
) -> None:
    """At most 3 % of panels of three workloads: 4 or more of 100 would be told."""
    warned = 0
    equal = {"large": flat, "bursts": flat, "mstress": flat}
    for seed in range(PANELS):
        found = examined(make_bench, toy_space, equal, noise=noise, seed=seed, seconds=14.4)
        warned += bool(found.harms or found.left_out)
    print(f"{warned} of {PANELS} panels of equals warn")
    assert warned <= 0.03 * PANELS


def test_the_interval_of_a_panel_covers_at_all_its_looks_together() -> None:
    import numpy as np

    rng = np.random.default_rng(5)
    missed = 0
    for _ in range(2000):
        values = rng.normal(0.0, 1.0, LOOKS[-1]).tolist()
        seen = [panel_interval(values[:look]) for look in LOOKS]
        missed += any(each is not None and not each.has_zero for each in seen)
    assert missed <= 0.06 * 2000
