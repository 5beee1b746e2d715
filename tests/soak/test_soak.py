"""The soak finds what it runs, keeps what failed, and its page knows every stage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.soak.__main__ import STAGES, Stage, keep, settings_of, soak


@pytest.mark.slow
def test_every_stage_finds_what_it_runs(root, monkeypatch):
    monkeypatch.chdir(root)
    found = {name: pytest.main(["--collect-only", *stage.words]) for name, stage in STAGES.items()}
    assert {name: status for name, status in found.items() if status != 0} == {}


def test_every_stage_is_named_at_its_goals(root):
    page = (root / "tests" / "soak" / "README.md").read_text().splitlines()
    rows = {line.split("|")[1].strip(): line for line in page if line.startswith("| ")}
    for name, stage in STAGES.items():
        assert [goal for goal in stage.goals if f"`{name}`" not in rows[goal]] == [], name


def test_what_failed_is_kept_with_its_output_and_what_held_is_not(tmp_path):
    for option in ("--no-such-option", "--version"):
        stage = Stage(["A1"], [option], {}, is_same=True)
        keep(soak(option[2:], stage, tmp_path, 0), tmp_path / "RESULTS.jsonl")
    kept = [json.loads(line) for line in (tmp_path / "RESULTS.jsonl").read_text().splitlines()]
    assert [(each["runs"], len(each["failed"])) for each in kept] == [(1, 1), (1, 0)]
    assert "--no-such-option" in Path(kept[0]["failed"][0]["log"]).read_text()
    assert [path.name for path in tmp_path.glob("*.log")] == ["no-such-option-0.log"]


def test_each_run_has_another_seed():
    seeds = {settings_of(stage, n)["TEST_SEED"] for stage in STAGES.values() for n in range(8)}
    assert len(seeds) == 8
