"""From one study to the next: what is kept, taken, stored and told; on a virtual clock."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from hztune import api, report
from hztune.api import program
from hztune.blocks import Arm
from hztune.lab.replay import Truth
from hztune.machine import Machine
from hztune.prior import Lesson, Prior, state
from hztune.result import Result
from hztune.result.summary import summary_json, summary_lines
from hztune.store.study import StudyAddress
from hztune.tune import shared_session
from hztune.tune.learned import prior_of, subject_of
from hztune.tune.request import TuneRequest, understand
from hztune.tune.session import tune
from hztune.workload import WorkloadSpec

from .conftest import Listener, Simulate

LARSON = WorkloadSpec.from_text("larson", (), 2)
SPACE = """
schema = 1
allocator = "hz"
[parameters.depot_lock]
[parameters.growth_rent]
[parameters.magazine_cap]
[parameters.thp]
values = ["off", "on"]
"""
TAKEN = "of 1 earlier study on this machine (all of this workload): depot_lock=spin mattered in 1"

Studied = Callable[..., Result]


def spin_is_faster(arm: Arm) -> Truth:
    return Truth(0.2 if arm.config.get("depot_lock") == "spin" else 0.0)


@pytest.fixture
def asked(simulate: Simulate, tmp_path: Path) -> TuneRequest:
    """A study of a simulated workload."""
    simulate(spin_is_faster)
    (tmp_path / "space.toml").write_text(SPACE)
    return TuneRequest(
        LARSON, space=str(tmp_path / "space.toml"), budget_s=40.0, out=tmp_path / "first"
    )


@pytest.fixture
def studied(asked: TuneRequest, simulate: Simulate, tmp_path: Path, listener: Listener) -> Studied:
    """Carries out the study, with changes: in a results directory, or as a shared one."""

    def carry_out(shared: str = "", **changes: Any) -> Result:
        simulate(spin_is_faster)
        task = understand(replace(asked, **changes))
        if not shared:
            return tune(task, listener)
        place = StudyAddress(f"sqlite:///{tmp_path / 'shared.db'}", shared)
        return shared_session.begin(place, task, task.request.out, listener)

    return carry_out


def kept() -> list[Lesson]:
    return state.read(datetime.now(timezone.utc))


def stored_prior(folder: Path) -> Prior:
    """With what the study of a results directory was begun."""
    with sqlite3.connect(folder / "study.db") as database:
        ((request,),) = database.execute("SELECT request FROM hztune_studies").fetchall()
    return Prior.stored(json.loads(request)["learned"])


def test_a_study_leaves_a_lesson_and_the_next_one_begins_with_it_and_says_so(
    studied: Studied, listener: Listener, tmp_path: Path
) -> None:
    first = studied()
    assert first.account.prior.startswith("no earlier study on this machine")
    ((learned,),) = [lesson.learned for lesson in kept()]
    assert [dict(gain.levels) for gain in learned.gains] == [{"depot_lock": "spin"}]
    second = studied(out=tmp_path / "second")
    assert second.account.prior.startswith(TAKEN)
    line = f"prior: {second.account.prior}"
    assert line in listener.lines and line in summary_lines(second)
    assert summary_json(second)["prior"] == second.account.prior
    assert TAKEN in report.render(tmp_path / "second")
    assert len(kept()) == 2


def test_a_dry_run_says_with_what_a_study_would_begin(studied: Studied, asked: TuneRequest) -> None:
    studied()
    assert any(line.startswith(f"prior: {TAKEN}") for line in api.plan(asked))
    assert not any(line.startswith("prior:") for line in api.plan(replace(asked, prior=False)))
    assert len(kept()) == 1


def test_without_a_prior_nothing_is_read_and_nothing_is_written(
    studied: Studied, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "folder", lambda: pytest.fail("it looks into the state directory"))
    found = studied(prior=False)
    assert found.account.prior == ""
    assert not any(line.startswith("prior:") for line in summary_lines(found))
    assert stored_prior(tmp_path / "first") == Prior()


def test_a_front_neither_takes_nor_leaves_a_lesson(studied: Studied, tmp_path: Path) -> None:
    studied()
    front = studied(out=tmp_path / "front", pareto="throughput,rss")
    assert front.account.prior == "" and len(kept()) == 1


def test_a_study_that_goes_on_decides_by_the_prior_that_it_began_with(
    studied: Studied, asked: TuneRequest, tmp_path: Path
) -> None:
    studied()
    studied(out=tmp_path / "whole")
    for lesson in kept():
        state.keep(lesson)  # the directory says something else by now
    with sqlite3.connect(tmp_path / "whole" / "study.db") as database:
        database.execute("UPDATE hztune_studies SET ending = NULL")
        database.execute("DELETE FROM hztune_blocks WHERE number > 6")
        database.execute("UPDATE hztune_studies SET entered = 6, begun = 6")
    before = stored_prior(tmp_path / "whole")
    again = studied(out=tmp_path / "whole", resume=True)
    assert stored_prior(tmp_path / "whole") == before
    now = prior_of(understand(asked), Machine.here())
    assert again.account.prior == before.text != now.text


def test_workers_of_a_shared_study_begin_with_what_its_first_one_stored(
    studied: Studied, tmp_path: Path, listener: Listener
) -> None:
    studied()
    first = studied("one", out=tmp_path / "a")
    assert first.account.prior.startswith(TAKEN)
    assert len(kept()) == 2
    later = studied("one", out=tmp_path / "b")
    assert later.account.prior == first.account.prior
    assert not any("as it was begun" in line for line in listener.lines)


def test_a_state_directory_that_refuses_costs_a_study_nothing_but_a_line(
    studied: Studied, state_home: Path, listener: Listener
) -> None:
    state_home.parent.mkdir(parents=True, exist_ok=True)
    state_home.write_text("in the way")
    assert studied().profile.claim.verdict == "improved"
    assert any("is not kept for later ones: cannot make" in line for line in listener.lines)


def test_programs_are_alike_by_their_path_and_metric(asked: TuneRequest) -> None:
    def subject(*words: str, **about: Any) -> str:
        request = TuneRequest(program=program(words, **about), allocator="hz", space=asked.space)
        return subject_of(request, Machine.here()).workload

    assert subject("/bin/true", "1") == subject("/bin/true", "2")
    assert subject("/bin/true") != subject("/bin/false")
    assert subject("/bin/true") != subject("/bin/true", metric_regex="([0-9]+)")


def test_workloads_are_alike_whatever_their_threads_and_seed(asked: TuneRequest) -> None:
    eight = replace(asked, workload=replace(LARSON, threads=8), seed=7)
    one, other = (subject_of(each, Machine.here()) for each in (asked, eight))
    assert one.workload == other.workload and one.threads != other.threads
    latency = replace(asked, workload=LARSON.by("p99"))
    assert subject_of(latency, Machine.here()).metric != one.metric


def test_what_a_space_has_for_presets_is_a_prior_of_its_own(asked: TuneRequest) -> None:
    prior = prior_of(understand(replace(asked, space="")), Machine.here())
    assert "thp" in prior.odds["hz"] and "shards" not in prior.odds["hz"]
