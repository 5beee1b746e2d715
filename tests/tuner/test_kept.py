"""Memory at rest on simulated noise: judged by pairs as speed is, with its limits and its slope."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from lab.replay import ReplayExecutor, Truth

from hztune import api, profile, report
from hztune.blocks import Arm, Block, Outcome
from hztune.comparing import comparison
from hztune.comparing import table as comparison_table
from hztune.comparing.contenders import Contender, ProgramSpec
from hztune.comparing.match import Measured
from hztune.measure import Around
from hztune.measure.program import described
from hztune.rests import Rested, RestPlan, RestRound
from hztune.result.kept import kept_memory
from hztune.result.summary import summary_json, summary_lines
from hztune.study.ledger import Ledger
from hztune.study.limits import LossLimit, MemoryLimit, limits_of
from hztune.tuning.request import understand

from .conftest import SIMULATED, TWO_KNOBS, flat, row

CONTROL = Arm("hz")


def rested(kept_kb, *, leak_kb=0.0, speed=1e6, rounds=4):
    """A process that keeps so much, and each round more."""
    seen = tuple(
        RestRound(100 * n, 100 * n + 50, 100 * n + 100, round(kept_kb + n * leak_kb), 64)
        for n in range(rounds)
    )
    return Rested(speed, ((10, 900, 0), (60, 1000, 64)), seen)


def outcome(kept_kb, peak_kb=200_000, arm=CONTROL, **more):
    return Outcome(
        arm, "ok", "", 1.0 / kept_kb, rss_peak_kb=peak_kb, rested=rested(kept_kb, **more)
    )


@dataclass
class AtRest(Around):
    """An executor whose processes also rest.

    Attributes:
        kept: Log ratio of what each arm keeps to what the control keeps.
        loss: Log of the load's speed, likewise.
        seeks_kept: Whether that is what is made less; else speed is what the inner one says.
        leak_kb: What a round more keeps.
    """

    kept: Callable[[Arm], float]
    loss: Callable[[Arm], float] = lambda arm: 0.0
    seeks_kept: bool = True
    leak_kb: Callable[[Arm], float] = lambda arm: 0.0

    def measure(self, arms, *, role, rounds, number):
        block = self.inner.measure(arms, role=role, rounds=rounds, number=number)
        rng = np.random.default_rng([7, number])
        outcomes = tuple(self._resting(each, rng) for each in block.outcomes)
        return replace(block, outcomes=outcomes)

    def _resting(self, one, rng):
        kept_kb = 1e5 * math.exp(self.kept(one.arm) + 0.03 * rng.standard_normal())
        speed = 1e6 * math.exp(self.loss(one.arm) + 0.01 * rng.standard_normal())
        leak_kb = self.leak_kb(one.arm) + 30.0 * rng.standard_normal()
        seen = replace(one, rested=rested(kept_kb, leak_kb=leak_kb, speed=speed))
        if not self.seeks_kept:
            return seen
        turn = replace(one.turns[0], ops=one.turns[0].counted_ns * 1e-9 / kept_kb)
        return replace(seen, turns=(turn,), ops_per_s=1.0 / kept_kb)


def by_knobs(spin=0.0, at_once=0.0):
    """What the spin lock adds to a log ratio, and what to purge at once adds."""

    def value(arm):
        is_spin = arm.config.get("depot_lock") == "spin"
        return spin * is_spin + at_once * (arm.config.get("decay_ms") == 0)

    return value


SAME = by_knobs()
SPIN_SAVES = by_knobs(-0.22, -0.7)
"""The spin lock keeps a fifth less; to purge at once keeps half, and costs speed."""

PURGING_COSTS = by_knobs(at_once=-0.2)


# ---- what is kept --------------------------------------------------------------------------------


def test_what_is_kept_is_that_of_the_last_rest_and_a_slope_leaves_out_the_first_of_three():
    assert rested(1000, leak_kb=100, rounds=4).kept_kb == 1300
    filled = (RestRound(0, 1, 2, 1, 0), *rested(500, leak_kb=100).rounds)
    assert replace(rested(1000), rounds=filled).slope_kb == pytest.approx(100)
    assert rested(1000, rounds=2).slope_kb is None


# ---- limits --------------------------------------------------------------------------------------


LIMITS = [
    ({"max_kept": "0.7x"}, math.log(0.8 / 0.7)),
    ({"max_rss": "1.10x"}, math.log(1.0 / 1.1)),
    ({"max_rss": "1.10x", "max_kept": "0.7x"}, math.log(0.8 / 0.7)),
    ({"max_kept": "100M"}, math.log(80_000 / (100 * 1024))),
]


@pytest.mark.parametrize(("texts", "excess"), LIMITS)
def test_of_several_limits_the_one_kept_worst_counts(texts, excess):
    limit, _ = limits_of(texts)
    assert limit.excess_of(outcome(100_000), outcome(80_000)) == pytest.approx(excess)


def test_a_record_holds_the_memory_and_the_speed_that_the_study_weighs():
    limit = MemoryLimit.of("0.7x", "kept")
    assert limit.excess_of(outcome(100_000), replace(outcome(80_000), rested=None)) is None
    ledger = Ledger(memory="kept")
    block = Block(0, "search", (outcome(100_000), outcome(50_000, 400_000, Arm.of("hz", {"x": 1}))))
    ledger.add(block)
    (record,) = ledger.searched.values()
    assert record.memory == [pytest.approx(math.log(0.5))]
    ratios = record.ratio_of("rss"), record.ratio_of("kept")
    assert ratios == (pytest.approx(2.0), pytest.approx(0.5))
    ledger = Ledger(max_loss=LossLimit.of("5%", of_load=True))
    (pair,) = ledger.speeds(outcome(1e5, speed=1000.0), outcome(5e4, speed=900.0))
    assert pair.log_ratio == pytest.approx(math.log(0.9))


# ---- whole studies -------------------------------------------------------------------------------


@pytest.fixture
def tuned(simulate, carry_out):
    """Carries out a whole request on a landscape of what is kept."""

    def tune(kept, loss=SAME, leak_kb=SAME, **asked):
        def at_rest(inner, request):
            return AtRest(inner, kept, loss, request.seeks_kept, leak_kb)

        simulate(lambda arm: Truth(loss(arm)), rss_scatter=0.01, around=at_rest)
        usual = {"objective": "kept", "rounds": 4, "budget": "120s", "panel": False}
        return carry_out(TWO_KNOBS, "larson", threads=2, **usual | asked)

    return tune


def test_the_least_kept_memory_wins_and_all_of_it_is_told(tuned):
    """The winner leaks, too."""
    asked = (SPIN_SAVES, PURGING_COSTS, lambda arm: 100.0 * (arm.config == {"depot_lock": "spin"}))
    found = tuned(*asked)
    claim = found.profile.claim
    assert (claim.verdict, claim.metric) == ("improved", "kept_kb")
    assert found.profile.params == {"depot_lock": "spin"}
    assert claim.ci_low < math.exp(0.22) < claim.ci_high
    assert found.profile.objective.limits == {"max_load_loss": "5%"}
    assert found.profile.objective.rest == RestPlan(2.0, 4)
    peak, memory = found.profile.memory
    assert (peak.of, memory.of) == ("rss", "kept")
    assert peak.ci_low < 1.0 < peak.ci_high < 1.05
    assert memory.ci_low < math.exp(-0.22) < memory.ci_high

    kept = found.account.kept
    assert kept.tuned.grows and not kept.default.grows
    assert kept.slope_change_kb[1] < 100.0 < kept.slope_change_kb[2]
    text = "\n".join(summary_lines(found))
    assert "kept memory (after 4 rounds, each with 2 s of rest): the default" in text
    assert "returned lazily" in text and "it grows" in text
    held = json.loads(json.dumps(summary_json(found)))
    assert held["kept"]["ratio"][1] < math.exp(-0.22) < held["kept"]["ratio"][2]

    assert profile.load(found.folder / "profile.json") == found.profile
    assert "Memory over time" in report.render(found.folder)
    again = tuned(*asked, resume=True)
    assert (again.account.kept, summary_lines(again)) == (kept, summary_lines(found))


THROUGHPUT = {"objective": "throughput"}
STUDIES = {
    "what may cost too much speed is told with what it saves": (
        (by_knobs(at_once=-0.7), by_knobs(at_once=-0.05)), {}, "no_gain", None,
        r"decay_ms=0 has -50\..* kept memory, but it may lose more than 5% on the speed of its "
        r"load.*, which is 0\.95",
    ),
    "a limit bounds what is fast": (
        (by_knobs(spin=0.5), by_knobs(0.3, 0.15)), {**THROUGHPUT, "max_kept": "1.10x"},
        "improved", 0, "",
    ),
    "a default that breaks the limit is told so": (
        (SPIN_SAVES,), {**THROUGHPUT, "max_kept": "0.7x"}, "within_limit|improved", 0,
        r"0\.7x of kept memory",
    ),
    "what breaks a limit by little does not hide what keeps it": (
        (by_knobs(math.log(0.755), math.log(0.43)), by_knobs(at_once=-0.16)),
        {**THROUGHPUT, "max_kept": "0.75x", "budget": "60s"}, "within_limit", 0, "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STUDIES)
def test_speed_and_kept_memory_are_weighed(tuned, name):
    landscape, asked, verdict, decay_ms, why = STUDIES[name]
    found = tuned(*landscape, **asked)
    assert found.profile.claim.verdict in verdict.split("|")
    assert found.profile.params.get("decay_ms") == decay_ms
    assert re.search(why, found.account.why)
    if "max_kept" in asked:
        assert dict(found.profile.objective.limits) == {"max_kept": asked["max_kept"]}


def test_a_comparison_tells_what_each_contender_keeps(tmp_path):
    """The second one leaks."""
    sides = (Contender("default", CONTROL), Contender("spin", Arm.of("hz", {"depot_lock": "spin"})))
    leaks = by_knobs(spin=1024.0)
    executor = AtRest(ReplayExecutor(flat, seed=1), SPIN_SAVES, seeks_kept=False, leak_kb=leaks)
    spec = ProgramSpec("server", "seconds", "", "", "")
    made = Measured(spec, row(executor, sides, 6), "2026-01-31T12:00:00Z")
    compared = comparison.Comparison(sides, {"cpu": "Test CPU"}, {"hztune": "0.1.0"}, (made,))
    spin = r"    spin     0.8\d \[0.\d\d, 0.\d\d\] .*growth per round \+1,0.*it grows, a leak"
    assert re.search(spin, comparison_table.text(compared.standings))
    (_, spin) = csv.DictReader(io.StringIO(comparison_table.csv_text(compared)))
    assert float(spin["kept_ratio"]) == pytest.approx(0.83, abs=0.05)
    assert float(spin["round_more_kib"]) == pytest.approx(1024, abs=60)
    path, text = tmp_path / "record.json", comparison.dumps(compared)
    path.write_text(text)
    assert comparison.dumps(comparison.load(path)) == text


def test_equals_are_told_apart_by_no_study_of_forty():
    claims = 0
    for seed in range(40):
        executor = AtRest(ReplayExecutor(flat, SIMULATED, seed=seed), SAME)
        blocks = [
            executor.measure([CONTROL, CONTROL], role="confirm", rounds=1, number=100 * seed + n)
            for n in range(6)
        ]
        kept = kept_memory([block.outcomes[:2] for block in blocks], ())
        claims += kept.default.grows + kept.tuned.grows
    assert claims == 0


# ---- what is asked -------------------------------------------------------------------------------


def test_a_server_rests_two_seconds_unless_it_is_told_longer():
    server = api.request(program=described(server="x {port}", load="y {port}"), objective="kept")
    assert (server.rest, server.seeks_kept) == (RestPlan(2.0, 1), True)
    shown = described(server="x {port}", load="y {port}", idle_s=5.0)
    assert shown.rest == RestPlan(5.0, 1), "a comparison with --idle-s looks at it, too"


# ---- where to search -----------------------------------------------------------------------------


def test_hzs_worker_is_searched_only_where_memory_at_rest_is_judged():
    for asked, is_searched in (
        ({"objective": "kept"}, True),
        ({"max_kept": "0.5x"}, True),
        ({"pareto": "throughput,kept"}, True),
        ({"idle_s": 1.0, "rounds": 2}, False),  # it is only shown
    ):
        parts = understand(api.request("burst-idle", threads=2, **asked)).space.parts
        searched = {each.name for part in parts for each in part.dimensions}
        assert ("background_period_us" in searched) == is_searched, asked
