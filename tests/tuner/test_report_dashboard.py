"""The dashboard's view of a study: an Optuna storage of its search, also while it is running."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest
from lab.replay import ReplayExecutor, VirtualClock
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from hztune import cli, report
from hztune.blocks import Arm
from hztune.cli import profile as cli_profile
from hztune.progress import Quiet
from hztune.store.log import LocalStudy, recording
from hztune.study.bench import Budget, Workbench
from hztune.study.ledger import Ledger
from hztune.study.search import Search

from .report_studies import MACHINE, QUIET, Recorded, space_of_hz, spin_wins


@pytest.fixture
def searched(tmp_path: Path) -> Path:
    """The results directory of a study that has searched one block and was stopped."""
    arms = [Arm("hz"), Arm.of("hz", {"depot_lock": "spin"}), Arm.of("hz", {"depot_slots": 8})]
    folder = tmp_path / "study"
    folder.mkdir()
    with LocalStudy(folder, {"workload": "x"}, MACHINE) as store:
        inner = ReplayExecutor(spin_wins, QUIET, seed=1)
        Recorded(inner, store).measure(arms, role="search", rounds=2, number=0)
    return folder


def test_the_storage_for_the_dashboard_holds_every_configuration(searched: Path) -> None:
    path = report.write_storage(searched)
    assert path == searched / "study.journal"
    told = path.read_text()
    assert told.count('"op_code":4') + told.count('"op_code": 4') == 2
    assert report.write_storage(searched).read_text().count("\n") == told.count("\n")


def test_a_study_that_is_running_is_shown_as_far_as_it_is_and_not_disturbed(
    tmp_path: Path,
) -> None:
    hz_space = space_of_hz(tmp_path)
    identity = {"workload": "remote", "space": hz_space.fingerprint(), "limit": "max_rss 1.1x"}
    with LocalStudy(tmp_path, identity, MACHINE) as store:
        report.write_storage(tmp_path)  # nothing is measured yet
        clock = VirtualClock()
        executor = Recorded(ReplayExecutor(spin_wins, QUIET, seed=1, clock=clock), store)
        bench = Workbench(executor, Ledger(), Budget(clock, 60.0), Quiet())
        search = Search(bench, hz_space, seed=1, max_trials=12)
        search.run(share=0.8)
        before = recording(tmp_path).lines
        shown = trials_in(report.write_storage(tmp_path))
        assert recording(tmp_path).lines == before
        search.max_trials = 18
        search.run(share=1.0)  # the writer goes on, and a later look shows more
        assert recording(tmp_path).lines[: len(before)] == before
        later = trials_in(report.write_storage(tmp_path))
    assert (len(shown), len(later)) == (12, 18)
    best = max((one for one in later if one.constraints["ran"] < 0), key=lambda one: one.value)
    assert best.params["depot_lock"] == "spin"
    assert "default" in {one.params["depot_lock"] for one in later}


def test_of_several_allocators_each_parameter_is_named_with_its_own(tmp_path: Path) -> None:
    arms = [Arm("none"), Arm.of("hz", {"depot_lock": "spin"}), Arm("hz"), Arm("glibc")]
    with LocalStudy(tmp_path, {"workload": "x"}, MACHINE) as store:
        inner = ReplayExecutor(spin_wins, QUIET, seed=1)
        Recorded(inner, store).measure(arms, role="search", rounds=2, number=0)
    shown = trials_in(report.write_storage(tmp_path))
    assert [one.params for one in shown] == [
        {"allocator": "hz", "hz.depot_lock": "spin"},
        {"allocator": "hz", "hz.depot_lock": "default"},
        {"allocator": "glibc", "hz.depot_lock": "-"},
    ]


def trials_in(path: Path) -> list[optuna.trial.FrozenTrial]:
    """What optuna-dashboard sees in a storage."""
    storage = JournalStorage(JournalFileBackend(str(path)))
    (name,) = optuna.get_all_study_names(storage)
    return optuna.load_study(study_name=name, storage=storage).trials


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the dashboard was started with; it is not started."""
    words: list[str] = []
    monkeypatch.setattr(cli_profile.shutil, "which", lambda name, path: "dashboard")
    monkeypatch.setattr(cli_profile.os, "execv", lambda program, argv: words.extend(argv))
    return words


def test_the_dashboard_is_started_with_the_storage(searched: Path, served: list[str]) -> None:
    assert cli.status_of(["report", str(searched), "--dashboard"]) == 0
    assert served == ["dashboard", str(searched / "study.journal")]


NOT_SHOWN = {
    "nothing": ([], "Missing argument"),
    "a page and the dashboard": (["x", "--out", "y", "--dashboard"], "exclude each other"),
}


@pytest.mark.parametrize("mistake", NOT_SHOWN)
def test_what_cannot_be_reported_is_one_sentence(
    mistake: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words, said = NOT_SHOWN[mistake]
    assert cli.status_of(["report", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert len(err.splitlines()) == 1


def test_the_dashboard_that_is_not_installed_is_named(
    searched: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli_profile, "_DASHBOARD", "no-such-dashboard")
    assert cli.status_of(["report", str(searched), "--dashboard"]) == 2
    assert "pip install 'hztune[dashboard]'" in capsys.readouterr().err
