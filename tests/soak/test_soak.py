"""The soak finds what it runs, keeps what failed, and its page knows every stage."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.soak.__main__ import keep, settings_of, soak
from tests.soak.stages import STAGES, by_pytest
from tests.soak.suites import passes, programs


@pytest.fixture
def page(root: Path) -> list[str]:
    """The lines of its README."""
    return (root / "tests" / "soak" / "README.md").read_text().splitlines()


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


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


def test_a_program_of_a_suite_passes_by_its_status_or_where_it_must_crash_by_a_signal(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    ends = {"exit 0": (True, False), "exit 1": (False, False), "exit 77": (None, None)}
    ends["kill -SEGV $$"] = (False, True)
    for text, (plain, must_crash) in ends.items():
        assert passes(script(tmp_path / "plain" / "program", text), {}, log) is plain
        assert passes(script(tmp_path / "x-must-crash" / "program", text), {}, log) is must_crash


def test_suites_are_directories_of_programs(tmp_path: Path) -> None:
    made = script(tmp_path / "one" / "program", "exit 0")
    script(tmp_path / "one" / "helper.so", "exit 0")
    (tmp_path / "one" / "notes").write_text("no program")
    (tmp_path / "empty").mkdir()
    assert programs(tmp_path) == {"one": [made]}


def test_without_suites_it_says_what_it_needs_and_where_it_looks(
    root: Path, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.soak", "--suites", str(tmp_path / "none")],
        cwd=root,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert str(tmp_path / "none") in done.stderr and "must-crash" in done.stderr
