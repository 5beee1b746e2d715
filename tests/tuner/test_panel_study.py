"""Studies with a panel: what is kept of it, what a stop costs, and where its lines appear."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from lab.replay import Landscape, ReplayExecutor, Truth

from hztune import export, profile, report
from hztune.blocks import Block, spent_s
from hztune.export import provenance
from hztune.machine import Machine
from hztune.measure import WorkloadSink
from hztune.params import Param
from hztune.profile import Caution
from hztune.progress import Quiet
from hztune.result import Decision, Result, ending, read
from hztune.result.summary import summary_json, summary_lines
from hztune.space import Space, load
from hztune.store import Sink
from hztune.store.log import LocalStudy, recording
from hztune.study.ledger import Ledger
from hztune.study.panel import Panel, PanelExecutor
from hztune.tune import session
from hztune.tune.request import TuneRequest, understand
from hztune.tune.story import Winner
from hztune.workload import WorkloadSpec

from .conftest import MACHINE, QUIET, Kept, MakeProfile, Simulate, Stopped, bench_of, flat

LARSON = WorkloadSpec("larson", "", (), 2)
CAUTION = "on strange programs 0: 7 times slower (pages=on)"


def weighing(spin: float = 0.0, pages: float = 0.0) -> Landscape:
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

    @property
    def panel_blocks(self) -> list[Block]:
        """Those of this session."""
        return [block for each in self.panels for block in each.seen]


def told(folder: Path, space: Space, own: Landscape = USERS, stop_after: int = 1000) -> Told:
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
        study = Winner(bench, space, 1, panel=Panel(executors))
        return Told(folder, study, study.run(), panels)


@pytest.fixture(scope="module")
def ended(toy_space: Space, tmp_path_factory: pytest.TempPathFactory) -> Told:
    """A study of which large pages gain a little, and ruin a strange workload."""
    return told(tmp_path_factory.mktemp("ended"), toy_space)


# ---- the study -----------------------------------------------------------------------------------


def test_what_harms_a_strange_workload_leaves_the_winner_and_the_rest_is_proved(
    ended: Told,
) -> None:
    assert ended.decision.verdict == "improved"
    assert ended.decision.arm.config == {"lock": "spin"}
    assert ended.decision.examined is not None
    (gone,) = ended.decision.examined.left_out
    assert (gone.caution.text, ended.decision.examined.cautions) == (CAUTION, ())
    budget = ended.study.bench.budget
    assert (budget.total_s, budget.reserved_s) == (300.0, 0.0)
    assert budget.elapsed() <= 1.02 * budget.total_s


def test_a_harmful_step_that_the_chain_begins_with_stays_and_is_told(
    toy_space: Space, tmp_path: Path
) -> None:
    """Large pages gain most, so that the chain begins with them, and spin locks add to them."""
    decision = told(tmp_path, toy_space, weighing(0.03, 0.04)).decision
    assert decision.proofs[0].first.config == {"pages": "on"}
    assert (decision.verdict, decision.arm.config) == ("improved", {"lock": "spin", "pages": "on"})
    assert decision.examined is not None
    assert [caution.text for caution in decision.examined.cautions] == [CAUTION]


def test_blocks_of_the_panel_are_kept_with_their_role_and_workload(ended: Told) -> None:
    ledger, found = ended.study.bench.ledger, recording(ended.folder)
    numbers = [block.number for block in found.blocks]
    assert numbers == list(range(len(ledger.blocks) + len(ledger.panel)))
    kept = [block for block in found.blocks if block.role == "panel"]
    assert [block.number for block in kept] == [block.number for block in ledger.panel]
    rows = [json.loads(line) for line in found.lines]
    named = {row.get("workload") for row in rows if row.get("role") == "panel" and "arms" in row}
    assert {block.workload for block in kept} == named == {"strange0", "strange1"}


def test_a_resumed_study_does_not_measure_the_panel_again(ended: Told, toy_space: Space) -> None:
    again = told(ended.folder, toy_space)
    assert ended.panel_blocks and not again.panel_blocks
    assert again.decision.arm == ended.decision.arm
    assert again.decision.examined == ended.decision.examined


@pytest.mark.parametrize("blocks", [1, 9])
def test_a_stop_in_the_panel_loses_nothing_and_the_study_goes_on_with_the_next_block(
    toy_space: Space, tmp_path: Path, blocks: int
) -> None:
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
def test_a_workload_has_a_panel_where_there_is_time_and_a_program_where_it_is_asked_for(
    changes: dict[str, Any], seconds: float
) -> None:
    request = replace(TuneRequest(LARSON), **changes)
    assert request.division.panel_s == pytest.approx(seconds)


# ---- where the lines appear ----------------------------------------------------------------------

RISKY = """
schema = 1
allocator = "hz"
[parameters.delay]
[parameters.lock]
[[risk]]
rule = "delay <= 10 and lock == 'spin'"
why = "pages are faulted in again"
"""


def test_a_known_risk_is_told_of_a_configuration_that_has_it(
    toy_params: tuple[Param, ...], tmp_path: Path
) -> None:
    path = tmp_path / "risky.toml"
    path.write_text(RISKY)
    space = load(path, toy_params, check=lambda config: None)
    risk = ({"delay": 0, "lock": "spin"}, "pages are faulted in again")
    assert space.known_risks({"delay": 0, "lock": "spin", "pages": "on"}) == [risk]
    assert space.known_risks({"delay": 0}) == []


def test_a_warning_is_a_line_of_every_export_with_comments(make_profile: MakeProfile) -> None:
    slow = Caution("speed", "programs with large blocks", "large", {"magazine_cap": 512},
                   0.03, 0.02, 0.04)  # fmt: skip
    known = Caution("known", "threads wait for one lock", params={"depot_lock": "spin"})
    for form in ("env", "sh", "header", "systemd"):
        text = export.render(make_profile(cautions=(slow, known)), form)
        for line in (
            "on programs with large blocks: 33 times slower (magazine_cap=512)",
            "known risk of depot_lock=spin: threads wait for one lock",
        ):
            assert f"warning: {line}" in text


# ---- the whole way -------------------------------------------------------------------------------

SPACE = """
schema = 1
allocator = "hz"
[parameters.depot_lock]
values = ["mutex", "spin"]
[parameters.max_dirty_bytes]
values = [0, 268435456]
[[risk]]
rule = "max_dirty_bytes == 0"
why = "pages are faulted in again"
"""


def keeping_nothing(gain: float, spin: float = 0.0) -> Landscape:
    """What it adds to return all memory at once, and what spin locks add."""
    return lambda arm: Truth(
        gain * (arm.config.get("max_dirty_bytes") == 0)
        + spin * (arm.config.get("depot_lock") == "spin")
    )


@pytest.fixture
def carried_out(
    core_build: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, simulate: Simulate
) -> Callable[..., Result]:
    """Carries out a whole request: on a landscape, with a strange workload that needs its pages."""
    monkeypatch.setenv("HZTUNE_CORE", str(core_build))
    (tmp_path / "two.toml").write_text(SPACE)

    def carry_out(landscape: Landscape, **changes: Any) -> Result:
        clock = simulate(landscape, QUIET, rss_scatter=0.01)

        def panel_of(request: TuneRequest, machine: Machine, sink: Sink) -> Panel | None:
            drawn = ReplayExecutor(keeping_nothing(-2.3), QUIET, seed=1, clock=clock)
            inner = Kept(drawn, WorkloadSink(sink, "large"))
            large = PanelExecutor(inner, "large", "programs with large blocks")
            return Panel([large]) if request.division.panel_s else None

        monkeypatch.setattr(session, "panel_of", panel_of)
        space, out = str(tmp_path / "two.toml"), tmp_path / "out"
        request = TuneRequest(LARSON, space=space, budget_s=180.0, out=out)
        return session.tune(understand(replace(request, **changes)), Quiet())

    return carry_out


def test_what_stays_in_spite_of_harm_is_told_wherever_the_profile_is(
    carried_out: Callable[..., Result],
) -> None:
    result = carried_out(keeping_nothing(0.2))
    line = "on programs with large blocks: 10 times slower (max_dirty_bytes=0)"
    assert result.profile.params == {"max_dirty_bytes": 0}
    assert f"  warning: {line}" in summary_lines(result)
    assert "  on other programs: harm on large" in summary_lines(result)
    assert summary_json(result)["warnings"] == [line]
    assert f"warning: {line}" in provenance(result.profile, undo="")
    assert result.folder is not None
    assert profile.load(result.folder / "profile.json") == result.profile
    page = report.render(result.folder)
    assert line in page and "On other programs" in page and "harmed" in page


def test_what_was_left_out_is_told_by_summary_and_report_of_a_study_that_is_read_back(
    carried_out: Callable[..., Result],
) -> None:
    result = carried_out(keeping_nothing(0.04, spin=0.2))
    line = "left out: on programs with large blocks: 10 times slower (max_dirty_bytes=0)"
    assert (result.profile.params, result.profile.cautions) == ({"depot_lock": "spin"}, ())
    assert f"  {line}" in summary_lines(result)
    assert [each.state for each in result.account.elsewhere] == ["safe"]
    assert read(json.loads(json.dumps(ending(result))), result.folder) == result
    assert result.folder is not None
    assert line in report.render(result.folder)


def test_without_a_panel_the_known_risk_is_told(carried_out: Callable[..., Result]) -> None:
    result = carried_out(keeping_nothing(0.2), panel=False)
    assert "  on other programs: nothing was measured" in summary_lines(result)
    assert [each.text for each in result.profile.cautions] == [
        "known risk of max_dirty_bytes=0: pages are faulted in again"
    ]
