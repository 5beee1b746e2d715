"""The experiments of this repository: their results hold, and no question of theirs is missing."""

from __future__ import annotations

import importlib
import re
import runpy
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from lab import chart, definition
from lab.findings import examine

from hztune import params
from hztune.comparing import comparison

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
STATS = Path(__file__).parents[2] / "core" / "include" / "hz" / "stats.def"


def committed():
    return [definition.load(path) for path in definition.find(["all"])]


def test_the_committed_results_are_what_their_samples_give():
    assert {each.name: examine(each).problems for each in committed()} == {
        each.name: () for each in committed()
    }


def test_the_committed_picture_is_what_the_samples_give():
    peers = examine(definition.load(EXPERIMENTS / "peers"))
    again = "python experiments/report.py peers --plot experiments/peers/peers.svg"
    assert chart.draw(peers.standings) == (EXPERIMENTS / "peers" / "peers.svg").read_text(), again


def test_experiments_ask_for_counters_that_exist_and_legal_configurations():
    counted = {*re.findall(r"HZ_STAT\((\w+)", STATS.read_text())}
    assert len(counted) > 30
    for each in committed():
        asked = {name for value in each.file.value for name in (value.count, value.per or "ops")}
        assert asked <= counted | {"ops", "minor_faults", "rss_idle_kb"}, each.name
        for side in each.sides:
            if side.build or side.arm.allocator == "hz":
                params.check(side.arm.config)


def test_the_question_about_peers_has_every_row_of_the_goal():
    (peers,) = [each for each in committed() if each.name == "peers"]
    assert Counter(each.name for each in peers.rows) == {
        "larson": 2 * 5, "remote": 2 * (1 + 3 * 4), "lifo": 1, "fifo": 1, "random": 1, "mixed": 1,
        "app": 1, "kv": 1, "large": 1, "xmalloc": 1, "sh6": 1, "mstress": 1, "cache-scratch": 1,
        "cache-thrash": 1,
    }  # fmt: skip
    assert {each.threads for each in peers.rows if each.name == "remote"} == {1, 2, 8, 16, 32}


def test_the_programs_of_an_experiment_stand_in_the_table(monkeypatch):
    monkeypatch.syspath_prepend(EXPERIMENTS / "programs")
    cases = importlib.import_module("cases")
    known = {case.name: case for case in (*cases.CASES, *cases.COMPARED)}
    found = {each.name: each.programs for each in committed() if each.programs}
    assert set(found) == {"real-programs", "huge-pages"} and len(found["real-programs"]) >= 16
    assert all(known[name].is_program for names in found.values() for name in names)


@pytest.fixture
def run_programs(monkeypatch, tmp_path):
    """Runs real-programs/run.py over one case, of which a measurement leaves what is given."""
    monkeypatch.syspath_prepend(EXPERIMENTS / "programs")
    monkeypatch.chdir(tmp_path)  # the run changes to a folder of its own
    main = runpy.run_path(str(EXPERIMENTS / "real-programs" / "run.py"))["main"]

    def over(name, ran, obstacle=None):
        monkeypatch.setitem(main.__globals__, "missing", lambda case: [])
        monkeypatch.setitem(main.__globals__, "build", lambda *words: None)
        monkeypatch.setitem(main.__globals__, "measure", lambda *words, anew: ran)
        monkeypatch.setitem(main.__globals__, "glibc_obstacle", lambda program: obstacle)
        return int(main(["--only", name]))

    return over


def test_an_allocator_that_always_failed_is_no_success(run_programs, capsys):
    record = comparison.load(EXPERIMENTS / "real-programs" / "results.json")
    ran = SimpleNamespace(record=record, rows=len(record.rows), path="x", stopped=False)
    assert run_programs("lua", ran) == 0, "another row's failures are not its own"
    assert run_programs("redis", ran, "its malloc is another one") == 0
    assert capsys.readouterr().err == ""
    assert run_programs("redis", ran) == 1
    said = capsys.readouterr().err
    assert re.match(r"redis: glibc failed in each of \d+ pairs \(wrong_allocator", said)


def test_the_curves_of_servers_are_drawn_from_what_is_kept(monkeypatch):
    folder = EXPERIMENTS / "production"
    monkeypatch.syspath_prepend(folder)
    drawn = importlib.import_module("curves").picture
    kept = sorted(folder.glob("*.json"))
    assert {each.stem for each in kept} >= {"redis", "web"}
    again = "python experiments/production/curves.py"
    for each in kept:
        assert drawn(each) + "\n" == each.with_suffix(".svg").read_text(), again
