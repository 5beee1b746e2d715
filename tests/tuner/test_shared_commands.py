"""The commands of a shared study: what they refuse, and that a password is never shown."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hztune import cli, machine
from hztune.errors import UsageError
from hztune.store import database as databases
from hztune.store.database import Storage
from hztune.store.owners import ProcessId
from hztune.store.study import StoredStudy
from hztune.store.worker import Worker
from hztune.tune import shared_session as together_
from hztune.tune.request import TuneRequest, understand
from hztune.tune.stored_request import read_back, written
from hztune.workload import WorkloadSpec, workloads_named

SECRET = "hunter2"
REFUSED = {
    "no URL": ("here", 2, "is no URL of a database"),
    "a port that is none": (f"postgresql://me:{SECRET}@h:p/db", 2, "is no URL of a database"),
    "another database": (f"mysql://me:{SECRET}@h/db", 2, "--storage is for 'mysql'"),
    "a storage in memory": ("sqlite://", 2, "names no file"),
    "no such directory": ("sqlite:////no/such/study.db", 2, "there is no directory '/no/such'"),
    "no server": (
        f"postgresql://me:{SECRET}@127.0.0.1:1/db",
        1,
        "postgresql+psycopg://me:***@127.0.0.1:1/db cannot be used: connection failed",
    ),
    "a password in the query": (
        f"postgresql://127.0.0.1:1/db?password={SECRET}",
        1,
        "password=hidden",
    ),
    "no such study": ("sqlite:///FILE", 2, "there is no study 'mine' in sqlite:///"),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_a_storage_that_cannot_be_used_is_one_sentence_without_the_password(
    mistake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, status, said = REFUSED[mistake]
    url = url.replace("FILE", str(tmp_path / "study.db"))
    assert cli.status_of(["worker", "--storage", url, "--study", "mine"]) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert len(err.splitlines()) == 1
    assert SECRET not in err


def test_a_missing_driver_is_named_with_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(databases, "find_spec", lambda name: None)
    words = ["worker", "--storage", "postgresql://me@h/db", "--study", "mine"]
    assert cli.status_of(words) == 2
    assert "pip install 'hztune[distributed]'" in capsys.readouterr().err


NOT_TOGETHER = {
    "a storage without a name": (["--storage", "sqlite:///x"], "give both"),
    "a name without a storage": (["--workload", "larson", "--study", "x"], "give both"),
    "a directory to resume": (
        ["--workload", "larson", "--storage", "sqlite:///x", "--study", "x", "--resume"],
        "goes on by its name",
    ),
    "a change of a study that exists": (
        ["--storage", "sqlite:///x", "--study", "x", "--max-rss", "1G"],
        "--max-rss needs --workload",
    ),
    "a program": (
        ["--storage", "sqlite:///x", "--study", "x", "--allocator", "glibc", "--", "true"],
        "--storage is for built-in workloads",
    ),
    "a name that is none": (
        ["--workload", "larson", "--storage", "sqlite:///x", "--study", "../x"],
        "--study '../x' is no name",
    ),
}


@pytest.mark.parametrize("mistake", NOT_TOGETHER)
def test_what_does_not_go_with_a_storage_is_one_sentence(
    mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    words, said = NOT_TOGETHER[mistake]
    monkeypatch.chdir(tmp_path)
    assert cli.status_of(["tune", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert len(err.splitlines()) == 1


# ---- a study that exists -------------------------------------------------------------------------


@pytest.fixture
def larson(tmp_path: Path) -> tuple[str, TuneRequest]:
    """The URL of a storage, and a request that can be carried out here."""
    spec = WorkloadSpec.from_text("larson", threads=1)
    return f"sqlite:///{tmp_path / 'study.db'}", TuneRequest(workload=spec, budget_s=20.0)


def begin_study(url: str, request: TuneRequest, **changes: str) -> list[str]:
    """Begins a study; returns the words that join it."""
    storage = Storage(url)
    identity = {**understand(request).identity, **changes}
    StoredStudy.begin(storage, "mine", identity, written(request))
    storage.close()
    return ["worker", "--storage", url, "--study", "mine"]


def test_a_worker_whose_time_is_over_leaves_the_study_to_the_others(
    larson: tuple[str, TuneRequest], capsys: pytest.CaptureFixture[str]
) -> None:
    words = begin_study(*larson)
    assert cli.status_of([*words, "--budget", "0s", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == ("", "left the study mine after 0s; it has not ended\n")
    storage = Storage(larson[0])
    study = StoredStudy.find(storage, "mine")
    assert study is not None
    assert (study.hosts(), study.ending()) == ([], None)
    storage.close()


def test_a_worker_with_another_library_is_refused_with_what_differs(
    larson: tuple[str, TuneRequest], capsys: pytest.CaptureFixture[str]
) -> None:
    words = begin_study(*larson, library="another")
    assert cli.status_of(words) == 2
    assert "is another one (library: another there, " in capsys.readouterr().err


def test_forgetting_a_host_that_holds_nothing_names_those_that_do(
    larson: tuple[str, TuneRequest], capsys: pytest.CaptureFixture[str]
) -> None:
    words = begin_study(*larson)
    assert cli.status_of([*words, "--forget", "far"]) == 2
    assert "no worker of 'far' holds anything in 'mine' (no host)" in capsys.readouterr().err


def test_hosts_of_one_name_are_forgotten_by_their_whole_names(
    larson: tuple[str, TuneRequest],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = begin_study(*larson)
    storage = Storage(larson[0])
    study = StoredStudy.find(storage, "mine")
    assert study is not None
    for host in ("vm/0a", "vm/0b", "far/0c"):
        process = replace(ProcessId.here(), host=host)
        monkeypatch.setattr(ProcessId, "here", lambda process=process: process)
        Worker(study, "machine")
    assert cli.status_of([*words, "--forget", "vm"]) == 2
    assert "'vm' is the name of several hosts: --forget vm/0a or vm/0b" in capsys.readouterr().err
    assert cli.status_of([*words, "--forget", "vm/0b"]) == 0
    assert cli.status_of([*words, "--forget", "far"]) == 0
    assert study.hosts() == ["vm/0a"]
    storage.close()


def test_machines_with_equal_records_take_part_as_two(
    larson: tuple[str, TuneRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    machines = []

    def joined(study: StoredStudy, machine: str) -> Worker:
        machines.append(machine)
        return Worker(study, machine)

    words = begin_study(*larson)
    monkeypatch.setattr(together_, "Worker", joined)
    for name in ("one", "one", "two"):
        monkeypatch.setattr(machine.socket, "gethostname", lambda name=name: name)
        assert cli.status_of([*words, "--budget", "0s", "--quiet"]) == 0
    assert machines[0] == machines[1] != machines[2]


def test_a_request_is_read_back_as_it_was(tmp_path: Path) -> None:
    searched = tmp_path / "own.toml"
    searched.write_text('schema = 1\nallocator = "hz"\n')
    first, second = (
        spec.by("p99") for spec in workloads_named("larson,remote@main", ["remote=50"], 2)
    )
    request = TuneRequest(
        first, beside=(second,), space=str(searched), trials=7, max_rss="1.1x", out=tmp_path,
        pareto="p99,rss",
    )  # fmt: skip
    stored = json.loads(json.dumps(written(request)))
    searched.unlink()
    with read_back(stored) as back:
        assert replace(back, space=request.space, out=request.out) == request
        assert Path(back.space).read_text() == 'schema = 1\nallocator = "hz"\n'


def test_a_request_of_another_version_is_refused(larson: tuple[str, TuneRequest]) -> None:
    stored = {**written(larson[1]), "novelty": 1}
    with pytest.raises(UsageError, match="they differ in: novelty"), read_back(stored):
        pass
