"""Studies with a panel: what is kept of it, what a stop costs, and where its lines appear."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from lab.replay import Landscape, ModelNoise, ReplayExecutor, Truth, VirtualClock

from hztune import export, profile, report
from hztune.blocks import Arm, Block, Role
from hztune.export import provenance
from hztune.machine import Machine
from hztune.measure import Around, WorkloadSink
from hztune.profile import Caution, Profile
from hztune.progress import Quiet
from hztune.result import Decision, Result, ending, read
from hztune.result.summary import summary_json, summary_lines
from hztune.space import Space, load
from hztune.store import Sink
from hztune.store.log import LocalStudy, recording
from hztune.study.bench import Workbench
from hztune.study.ledger import Ledger
from hztune.study.panel import Panel, PanelExecutor
from hztune.tune.request import TuneRequest, understand
from hztune.tune.session import tune
from hztune.tune.story import Story, Winner
from hztune.workload import WorkloadSpec

from .conftest import Kept

MakeBench = Callable[..., Workbench]
QUIET = ModelNoise(within=0.03, between=0.01, common=0.1)
MACHINE = Machine("CPU 3000", 2, None, "6.1", "glibc 2.36", 4096, "madvise", "", "", 24, None)
LARSON = WorkloadSpec("larson", "", (), 2)


def tuned(arm: Arm) -> Truth:
    """The user's workload: spin locks add much, large pages a little."""
    config = arm.config
    return Truth(0.2 * (config.get("lock") == "spin") + 0.04 * (config.get("pages") == "on"))


def ruined(arm: Arm) -> Truth:
    """A strange one, which large pages ruin."""
    return Truth(-2.0 if arm.config.get("pages") == "on" else 0.0)


@dataclass
class Noted(Around):
    """An executor that notes which configurations it measured."""

    seen: list[Arm] = field(default_factory=list)

    def measure(self, arms: Sequence[Arm], *, role: Role, rounds: int, number: int) -> Block:
        assert role == "panel"
        self.seen.append(arms[1])
        return self.inner.measure(arms, role=role, rounds=rounds, number=number)


@dataclass
class Study:
    """A simulated study in a directory, with a panel of two workloads."""

    story: Story
    noted: list[Noted]

    @classmethod
    def of(
        cls,
        make_bench: MakeBench,
        space: Space,
        store: LocalStudy,
        strange: Landscape = ruined,
        spent_s: float = 0.0,
        own: Landscape = tuned,
    ) -> Study:
        bench = make_bench(own, QUIET, budget_s=276.0, ledger=Ledger.of(store.replay()))
        clock = bench.executor.clock  # type: ignore[attr-defined]
        bench.executor, bench.note = Kept(bench.executor, store), store.note
        bench.budget = replace(bench.budget, spent_s=spent_s, reserved_s=24.0)
        noted = []
        for seed, landscape in enumerate((strange, lambda arm: Truth())):
            drawn = ReplayExecutor(landscape, QUIET, seed=seed, clock=clock)
            noted.append(Noted(Kept(drawn, WorkloadSink(store, f"strange{seed}"))))
        executors = [
            PanelExecutor(each, f"strange{seed}", f"strange programs {seed}")
            for seed, each in enumerate(noted)
        ]
        return cls(Winner(bench, space, 1, panel=Panel(executors)), noted)

    @property
    def bench(self) -> Workbench:
        return self.story.bench

    @property
    def measured(self) -> int:
        """Blocks that the panel measured in this session."""
        return sum(len(each.seen) for each in self.noted)

    def run(self, stop_after: int | None = None) -> Decision:
        """Runs it; stopped by the user after so many blocks of the panel."""
        if stop_after is not None:
            self.bench.stop = lambda: self.measured >= stop_after
        return self.story.run()


@pytest.fixture
def store(tmp_path: Path) -> Callable[[], LocalStudy]:
    """Opens the study of a directory, as a command and its --resume do."""
    return lambda: LocalStudy(tmp_path, {}, MACHINE, resume=True)


Open = Callable[[], LocalStudy]


# ---- the study -----------------------------------------------------------------------------------


def test_what_harms_a_strange_workload_leaves_the_winner_and_the_rest_is_proved(
    make_bench: MakeBench, toy_space: Space, store: Open
) -> None:
    with store() as opened:
        study = Study.of(make_bench, toy_space, opened)
        decision = study.run()
    assert decision.verdict == "improved"
    assert decision.arm.config == {"lock": "spin"}
    assert decision.examined is not None
    (gone,) = decision.examined.left_out
    assert gone.caution.text == "on strange programs 0: 7 times slower (pages=on)"
    assert decision.examined.cautions == ()
    budget = study.bench.budget
    assert (budget.total_s, budget.reserved_s) == (300.0, 0.0)
    assert budget.elapsed() <= 1.02 * budget.total_s


def test_a_harmful_step_that_the_chain_begins_with_stays_and_is_told(
    make_bench: MakeBench, toy_space: Space, store: Open
) -> None:
    """Large pages gain most, so that the chain begins with them, and spin locks add to them."""

    def own(arm: Arm) -> Truth:
        config = arm.config
        return Truth(0.03 * (config.get("lock") == "spin") + 0.04 * (config.get("pages") == "on"))

    with store() as opened:
        decision = Study.of(make_bench, toy_space, opened, own=own).run()
    assert decision.proofs[0].first.config == {"pages": "on"}
    assert (decision.verdict, decision.arm.config) == ("improved", {"lock": "spin", "pages": "on"})
    assert decision.examined is not None
    (caution,) = decision.examined.cautions
    assert caution.text == "on strange programs 0: 7 times slower (pages=on)"


def test_blocks_of_the_panel_are_kept_with_their_role_and_workload(
    make_bench: MakeBench, toy_space: Space, store: Open, tmp_path: Path
) -> None:
    with store() as opened:
        study = Study.of(make_bench, toy_space, opened)
        study.run()
        ledger = study.bench.ledger
        numbers = [block.number for block in opened.replay()]
        assert numbers == list(range(len(ledger.blocks) + len(ledger.panel)))
        kept = [block for block in opened.replay() if block.role == "panel"]
    assert {block.workload for block in kept} == {"strange0", "strange1"}
    assert [block.number for block in kept] == [block.number for block in ledger.panel]
    rows = [json.loads(line) for line in recording(tmp_path).lines]
    named = {row.get("workload") for row in rows if row.get("role") == "panel" and "arms" in row}
    assert named == {"strange0", "strange1"}


def test_a_resumed_study_does_not_measure_the_panel_again(
    make_bench: MakeBench, toy_space: Space, store: Open
) -> None:
    with store() as opened:
        first = Study.of(make_bench, toy_space, opened)
        before = first.run()
    with store() as opened:
        again = Study.of(make_bench, toy_space, opened, spent_s=first.bench.budget.elapsed())
        after = again.run()
    assert first.measured > 0
    assert again.measured == 0
    assert (after.arm, after.examined) == (before.arm, before.examined)


@pytest.mark.parametrize("blocks", [1, 9])
def test_a_stop_in_the_panel_loses_nothing_and_the_study_goes_on_with_the_next_block(
    make_bench: MakeBench, toy_space: Space, store: Open, blocks: int
) -> None:
    with store() as opened:
        first = Study.of(make_bench, toy_space, opened)
        decision = first.run(stop_after=blocks)
        assert decision.verdict == "interrupted"
        assert decision.arm.config.get("lock") == "spin"
    with store() as opened:
        kept = [block for block in opened.replay() if block.role == "panel"]
        assert len(kept) == blocks
        again = Study.of(make_bench, toy_space, opened, spent_s=first.bench.budget.elapsed())
        decision = again.run()
    assert decision.arm.config == {"lock": "spin"}
    assert again.bench.ledger.panel[:blocks] == kept


# ---- the request ---------------------------------------------------------------------------------


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
    changes: dict[str, object], seconds: float
) -> None:
    request = replace(TuneRequest(LARSON), **changes)  # type: ignore[arg-type]
    assert request.division.panel_s == pytest.approx(seconds)


# ---- the known risks -----------------------------------------------------------------------------


RISKY = """
schema = 1
allocator = "hz"
[parameters.delay]
[parameters.lock]
[[risk]]
rule = "delay <= 10 and lock == 'spin'"
why = "{why}"
"""


def test_a_known_risk_is_told_of_a_configuration_that_has_it(
    toy_params: Sequence[object], tmp_path: Path
) -> None:
    path = tmp_path / "risky.toml"
    path.write_text(RISKY.format(why="pages are faulted in again"))
    space = load(path, toy_params, check=lambda config: None)  # type: ignore[arg-type]
    config = {"delay": 0, "lock": "spin", "pages": "on"}
    assert space.known_risks(config) == [
        ({"delay": 0, "lock": "spin"}, "pages are faulted in again")
    ]
    assert space.known_risks({"delay": 0}) == []


# ---- where the lines appear ----------------------------------------------------------------------

SLOW = Caution("speed", "programs with large blocks", "large", {"magazine_cap": 512},
               0.03, 0.02, 0.04)  # fmt: skip
KNOWN = Caution("known", "threads wait for one lock", params={"depot_lock": "spin"})
LINES = (
    "on programs with large blocks: 33 times slower (magazine_cap=512)",
    "known risk of depot_lock=spin: threads wait for one lock",
)


@pytest.fixture
def warned(make_profile: Callable[..., Profile]) -> Profile:
    """A profile with two cautions."""
    return make_profile(cautions=(SLOW, KNOWN))


@pytest.mark.parametrize("line", LINES)
def test_a_warning_is_a_line_of_every_export_with_comments(warned: Profile, line: str) -> None:
    for form in ("env", "sh", "header", "systemd"):
        assert f"warning: {line}" in export.render(warned, form)


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


def keeps_nothing(arm: Arm) -> bool:
    return arm.config.get("max_dirty_bytes") == 0


@pytest.fixture
def carried_out(
    core_build: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Result]:
    """Carries out a whole request: on a landscape, with a strange workload that needs its pages."""
    monkeypatch.setenv("HZTUNE_CORE", str(core_build))
    (tmp_path / "two.toml").write_text(SPACE)
    clock = VirtualClock()

    def simulated(landscape: Landscape) -> ReplayExecutor:
        return ReplayExecutor(landscape, QUIET, seed=1, clock=clock, rss_scatter=0.01)

    def panel_of(request: TuneRequest, machine: Machine, sink: Sink) -> Panel | None:
        inner = Kept(simulated(only_pages_ruin), WorkloadSink(sink, "large"))
        large = PanelExecutor(inner, "large", "programs with large blocks")
        return Panel([large]) if request.division.panel_s else None

    def carry_out(landscape: Landscape, **changes: object) -> Result:
        where = "hztune.tune.session"
        inner = simulated(landscape)
        monkeypatch.setattr(
            f"{where}.executor_of", lambda request, machine, to, *more: Kept(inner, to)
        )
        monkeypatch.setattr(f"{where}.panel_of", panel_of)
        monkeypatch.setattr(f"{where}.SystemClock", lambda: clock)
        space, out = str(tmp_path / "two.toml"), tmp_path / "out"
        request = TuneRequest(LARSON, space=space, budget_s=180.0, out=out)
        asked = replace(request, **changes)  # type: ignore[arg-type]
        return tune(understand(asked), Quiet())

    return carry_out


def only_pages(arm: Arm) -> Truth:
    return Truth(0.2 * keeps_nothing(arm))


def only_pages_ruin(arm: Arm) -> Truth:
    return Truth(-2.3 * keeps_nothing(arm))


def both(arm: Arm) -> Truth:
    return Truth(0.2 * (arm.config.get("depot_lock") == "spin") + 0.04 * keeps_nothing(arm))


def test_what_stays_in_spite_of_harm_is_told_wherever_the_profile_is(
    carried_out: Callable[..., Result],
) -> None:
    result = carried_out(only_pages)
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
    result = carried_out(both)
    line = "left out: on programs with large blocks: 10 times slower (max_dirty_bytes=0)"
    assert result.profile.params == {"depot_lock": "spin"}
    assert result.profile.cautions == ()
    assert f"  {line}" in summary_lines(result)
    assert [each.state for each in result.account.elsewhere] == ["safe"]
    assert read(json.loads(json.dumps(ending(result))), result.folder) == result
    assert result.folder is not None
    assert line in report.render(result.folder)


def test_without_a_panel_the_known_risk_is_told(carried_out: Callable[..., Result]) -> None:
    result = carried_out(only_pages, panel=False)
    assert "  on other programs: nothing was measured" in summary_lines(result)
    assert [each.text for each in result.profile.cautions] == [
        "known risk of max_dirty_bytes=0: pages are faulted in again"
    ]
