"""The members of a front are shortened before their proof; memory has each machine's own noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest
from lab.replay import Landscape, ModelNoise, ReplayExecutor, Truth

from hztune.blocks import Arm, Block, Role
from hztune.confirm import shorten_members
from hztune.measure import Around, Executor
from hztune.params import Value
from hztune.search import Search, members
from hztune.search.pareto_search import savings
from hztune.space import Space
from hztune.trial import Ledger, Workbench, calibrate
from hztune.tune import pareto_aim

from .test_pareto import CONTROL, USUAL, bench_of, decided, flat, some_arms, three_ways

EXACT = ModelNoise(within=0.003, between=0.001, common=0.1)

# ---- the ablation --------------------------------------------------------------------------------

IDLE = {"cap": 512, "batch": 64, "shards": 2, "ring": 128}
"""Parameters that do nothing where `three_ways` is true."""


def shortened(
    landscape: Landscape, configs: Sequence[Mapping[str, Value]], space: Space, **how: object
) -> tuple[list[Arm], Workbench]:
    """What is left of some members, in a tenth of the budget, and where that was measured."""
    bench = bench_of(landscape, **{"budget_s": 600.0, **how})  # type: ignore[arg-type]
    calibrate(bench, CONTROL, 0.08)
    bench.calibrated(0.01)
    now = bench.budget.elapsed() / bench.budget.total_s
    members = [Arm.of("hz", config) for config in configs]
    return [arm for _, arm in shorten_members(bench, space, members, now + 0.1)], bench


def test_every_member_is_left_what_its_speed_or_its_memory_needs(toy_space: Space) -> None:
    fast, small = {"lock": "spin"}, {"delay": 10}
    wholes = [{**fast, **IDLE}, {**fast, **small, **IDLE}, {**small, **IDLE}]
    left, bench = shortened(three_ways, wholes, toy_space)
    assert [arm.config for arm in left] == [fast, {**fast, **small}, small]
    assert {block.role for block in bench.ledger.blocks} == {"aa", "ablate"}
    assert bench.ledger.fresh_by_arm == {}  # no fresh pair has chosen one


@pytest.mark.parametrize("truth", [Truth(0.03), Truth(rss_kb=97_000)], ids=["speed", "memory"])
def test_a_parameter_that_either_objective_needs_stays(truth: Truth, toy_space: Space) -> None:
    def landscape(arm: Arm) -> Truth:
        return truth if arm.config.get("pages") == "on" else Truth()

    left, _ = shortened(landscape, [{"pages": "on", **IDLE}], toy_space, rss_scatter=0.003)
    assert left[0].config == {"pages": "on"}


def test_losses_that_are_small_only_one_by_one_move_no_member(toy_space: Space) -> None:
    whole = {"lock": "spin", "delay": 10, "pages": "on", "cap": 512}

    def landscape(arm: Arm) -> Truth:
        return Truth(0.008 * len(arm.params))

    left, bench = shortened(landscape, [whole], toy_space, noise=EXACT)
    assert left[0].config == whole
    last = bench.ledger.blocks[-1]
    assert last.control.arm.config == whole and len(last.outcomes) == 2  # the last comparison


def test_a_member_whose_shorter_form_fails_stays_whole(toy_space: Space) -> None:
    def landscape(arm: Arm) -> Truth:
        return Truth(0.2) if len(arm.params) == 2 else Truth(status="crash" if arm.params else "ok")

    left, bench = shortened(landscape, [{"lock": "spin", "pages": "on"}], toy_space)
    assert left[0].config == {"lock": "spin", "pages": "on"}
    assert sum(block.role == "ablate" for block in bench.ledger.blocks) == 1


def test_no_member_is_shortened_to_the_default(toy_space: Space) -> None:
    left, _ = shortened(flat, [{"cap": 512}, IDLE], toy_space)
    assert left[0].config == {"cap": 512}
    assert left[1].params


@pytest.mark.parametrize("budget_s", [30.0, 120.0, 600.0])
def test_members_share_the_time_and_leave_that_of_the_proofs(
    budget_s: float, toy_space: Space
) -> None:
    wholes = [{"lock": "spin", "delay": delay, **IDLE} for delay in (0, 1, 2, 3, 5)]
    left, bench = shortened(three_ways, wholes, toy_space, noise=USUAL, budget_s=budget_s)
    ablated = [block for block in bench.ledger.blocks if block.role == "ablate"]
    took_s = sum(
        bench.executor.cost(len(block.outcomes), block.control.rounds) for block in ablated
    )
    assert took_s <= 0.1 * budget_s
    assert any(len(arm.params) < 6 for arm in left)


@dataclass
class Calmed(Around):
    """An executor on which all but the calibration is exact: chance moves no later decision.

    Attributes:
        exact: Measures what is not calibration.
    """

    exact: Executor

    def measure(self, arms: Sequence[Arm], *, role: Role, rounds: int, number: int) -> Block:
        executor = self.inner if role == "aa" else self.exact
        return executor.measure(arms, role=role, rounds=rounds, number=number)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_members_hold_only_what_matters_and_are_proved_as_they_are(
    toy_space: Space, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crowded(search: Search, most: int) -> list[Arm]:
        return [Arm.of("hz", {**IDLE, **arm.config}) for arm in members(search, most)]

    monkeypatch.setattr(pareto_aim, "members", crowded)
    bench = bench_of(three_ways, budget_s=300, seed=seed)
    clock = bench.executor.clock  # type: ignore[attr-defined]
    exact = ReplayExecutor(three_ways, EXACT, seed=seed, clock=clock)
    bench.executor = Calmed(bench.executor, exact)
    decision = decided(bench, toy_space, seed)
    assert len(decision.front) > 1
    for member in decision.front:
        assert set(member.arm.config) <= {"lock", "delay"}
        fresh = [block for block in bench.ledger.blocks if block.role == "confirm"
                 and block.outcomes[1].arm == member.arm]  # fmt: skip
        assert member.interval is not None and member.interval.pairs <= len(fresh)


# ---- the noise of memory -------------------------------------------------------------------------


def on_two_hosts() -> dict[str, Workbench]:
    """A host on which equal processes take equal memory, and one on which they do not."""
    scatters = {"quiet": 0.002, "noisy": 0.1}
    benches = {}
    for seed, (name, scatter) in enumerate(scatters.items()):
        ledger = Ledger(machine=name)
        benches[name] = bench_of(flat, seed=seed, ledger=ledger, rss_scatter=scatter)
        calibrate(benches[name], CONTROL, 0.08)
    return benches


def test_how_exactly_memory_is_known_is_each_machines_own() -> None:
    benches = on_two_hosts()
    alone = {name: bench.ledger.memory_noise() for name, bench in benches.items()}
    assert alone["noisy"].between > 100.0 * alone["quiet"].between
    blocks = [block for bench in benches.values() for block in bench.ledger.blocks]
    for name in benches:
        assert Ledger.of(blocks, machine=name).memory_noise() == alone[name]
    newcomer = Ledger.of(blocks, machine="newcomer")
    assert newcomer.memory_noise() == newcomer.memory_noises().pooled


def test_a_host_on_which_memory_scatters_does_not_blur_what_a_quiet_one_saw() -> None:
    """All weighing the same, the savings would be wrong by 0.04 in usual."""
    benches = on_two_hosts()
    for bench in benches.values():
        for arm in some_arms(24):
            for _ in range(3):
                bench.measure([CONTROL, arm], "search", 10)
    blocks = [block for bench in benches.values() for block in bench.ledger.blocks]
    found = savings(Ledger.of(blocks, machine="quiet")).values()
    assert len(found) == 24
    assert math.sqrt(sum(one.raw**2 for one in found) / 24) < 0.02
