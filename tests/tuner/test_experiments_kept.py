"""The experiments of this repository: their results hold, and no question of theirs is missing."""

from __future__ import annotations

import importlib
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from lab import chart, definition
from lab.definition import Experiment
from lab.findings import examine

from hztune import params
from hztune.compare import comparison
from hztune.errors import StoppedByUser

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
STATS = Path(__file__).parents[2] / "core" / "include" / "hz" / "stats.def"


def committed() -> list[Experiment]:
    return [definition.load(path) for path in definition.find(["all"])]


def test_the_committed_results_are_what_their_samples_give() -> None:
    assert {each.name: examine(each).problems for each in committed()} == {
        each.name: () for each in committed()
    }


def test_the_committed_picture_is_what_the_samples_give() -> None:
    peers = examine(definition.load(EXPERIMENTS / "peers"))
    again = "python experiments/report.py peers --plot experiments/peers/peers.svg"
    assert chart.draw(peers.standings) == (EXPERIMENTS / "peers" / "peers.svg").read_text(), again


def test_experiments_ask_for_counters_that_exist_and_legal_configurations() -> None:
    counted = {*re.findall(r"HZ_STAT\((\w+)", STATS.read_text())}
    assert len(counted) > 30
    for each in committed():
        asked = {name for value in each.file.value for name in (value.count, value.per or "ops")}
        assert asked <= counted | {"ops", "minor_faults", "rss_idle_kb"}, each.name
        for side in each.sides:
            if side.build or side.arm.allocator == "hz":
                params.check(side.arm.config)


def test_every_claim_of_the_founding_documents_is_asked_again() -> None:
    assert {each.name for each in committed()} >= {
        "remote-ring", "depot-lock", "background-refill", "deferred-free", "larson-scaling",
        "frozen", "magazine", "shards", "span-size", "large-cache", "counter-tax",
        "single-benchmark", "defaults",
    }  # fmt: skip


def test_the_question_about_peers_has_every_row_of_the_goal() -> None:
    (peers,) = [each for each in committed() if each.name == "peers"]
    rows = peers.rows
    larson = {(r.setting, r.threads) for r in rows if r.name == "larson"}
    assert larson == {(s, t) for s in ("", "mimalloc-bench") for t in (1, 2, 4, 16, 32)}
    remote = {(r.setting, r.threads, dict(r.params)["remote"]) for r in rows if r.name == "remote"}
    assert remote == {
        (setting, threads, share)
        for setting in ("guard", "main")
        for threads in (1, 2, 8, 16, 32)
        for share in ((0,) if threads == 1 else (0, 50, 90))
    }
    assert {each.name for each in rows} >= {
        "lifo", "fifo", "random", "mixed", "app", "xmalloc", "sh6", "mstress", "cache-scratch",
        "cache-thrash", "kv", "large",
    }  # fmt: skip


def test_the_programs_of_an_experiment_stand_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXPERIMENTS / "programs")
    cases = importlib.import_module("cases")
    known = {case.name: case for case in (*cases.CASES, *cases.COMPARED)}
    found = {each.name: each.programs for each in committed() if each.programs}
    assert set(found) == {"real-programs", "huge-pages"} and len(found["real-programs"]) >= 16
    assert all(known[name].is_program for names in found.values() for name in names)


Measured = Callable[..., int]


@pytest.fixture
def run_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Measured:
    """Runs real-programs/run.py over one case, of which a measurement leaves what is given."""
    monkeypatch.syspath_prepend(EXPERIMENTS / "programs")
    monkeypatch.chdir(tmp_path)  # the run changes to a folder of its own
    main = runpy.run_path(str(EXPERIMENTS / "real-programs" / "run.py"))["main"]

    def over(name: str, ran: object, obstacle: str | None = None) -> int:
        monkeypatch.setitem(main.__globals__, "missing", lambda case: [])
        monkeypatch.setitem(main.__globals__, "build", lambda *words: None)
        monkeypatch.setitem(main.__globals__, "measure", lambda *words, anew: ran)
        monkeypatch.setitem(main.__globals__, "glibc_obstacle", lambda program: obstacle)
        return int(main(["--only", name]))

    return over


def test_an_interrupted_run_over_programs_says_where_its_rows_are(run_programs: Measured) -> None:
    stopped = SimpleNamespace(record=SimpleNamespace(rows=[1]), rows=23, path="x", stopped=True)
    with pytest.raises(StoppedByUser, match="1 of 23 rows are in x, and the next call goes on"):
        run_programs("jq", stopped)


def test_a_row_in_which_an_allocator_always_failed_says_so_and_is_no_success(
    run_programs: Measured, capsys: pytest.CaptureFixture[str]
) -> None:
    record, _ = comparison.load(EXPERIMENTS / "real-programs" / "results.json")
    ran = SimpleNamespace(record=record, rows=len(record.rows), path="x", stopped=False)
    assert run_programs("lua", ran) == 0, "another row's failures are not its own"
    assert run_programs("redis", ran, "its malloc is another one") == 0
    assert capsys.readouterr().err == ""
    assert run_programs("redis", ran) == 1
    said = capsys.readouterr().err
    assert re.match(r"redis: glibc failed in each of \d+ pairs \(wrong_allocator", said)


def test_the_curves_of_servers_are_drawn_from_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = EXPERIMENTS / "production"
    monkeypatch.syspath_prepend(folder)
    drawn = importlib.import_module("curves").picture
    kept = sorted(folder.glob("*.json"))
    assert {each.stem for each in kept} >= {"redis", "web"}
    again = "python experiments/production/curves.py"
    for each in kept:
        assert drawn(each) + "\n" == each.with_suffix(".svg").read_text(), again
