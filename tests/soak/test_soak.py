"""The soak finds what it runs, keeps what failed, and its page knows every stage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.soak.__main__ import keep, settings_of, soak
from tests.soak.stages import STAGES, by_pytest


@pytest.fixture
def page(root: Path) -> list[str]:
    """The lines of its README."""
    return (root / "tests" / "soak" / "README.md").read_text().splitlines()


@pytest.mark.slow
def test_every_stage_finds_what_it_runs(core_tests: Path, root: Path) -> None:
    for stage in STAGES.values():
        if stage.is_pytest:
            assert all((root / word).exists() for word in stage.words if word.startswith("tests/"))
        else:
            words = [word.replace("{build}", str(core_tests)) for word in stage.words]
            assert all((core_tests / word).exists() for word in words), stage


def test_every_stage_is_named_at_its_goals(page: list[str]) -> None:
    rows = {line.split("|")[1].strip(): line for line in page if line.startswith("| ")}
    for name, stage in STAGES.items():
        for goal in stage.goals.split():
            assert f"`{name}`" in rows[goal], (goal, name)


def test_what_failed_is_kept_with_its_output_and_what_held_is_not(tmp_path: Path) -> None:
    bad = soak("bad", by_pytest("A1", "--no-such-option", is_same=True), tmp_path, 0)
    good = soak("good", by_pytest("A1", "--version", is_same=True), tmp_path, 0)
    for result in (bad, good):
        keep(result, tmp_path / "RESULTS.jsonl")
    kept = [json.loads(line) for line in (tmp_path / "RESULTS.jsonl").read_text().splitlines()]
    assert [(each["stage"], each["runs"], len(each["failed"])) for each in kept] == [
        ("bad", 1, 1),
        ("good", 1, 0),
    ]
    assert "--no-such-option" in Path(kept[0]["failed"][0]["log"]).read_text()
    assert [path.name for path in tmp_path.glob("*.log")] == ["bad-0.log"]


def test_each_run_has_another_seed_and_all_configurations_take_turns() -> None:
    for stage in STAGES.values():
        chosen = [settings_of(stage, number) for number in range(8)]
        assert len({each["TEST_SEED"] for each in chosen}) == 8
        for wanted in stage.configurations:
            assert any(wanted.items() <= each.items() for each in chosen)
