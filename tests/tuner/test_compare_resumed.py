"""A comparison that was stopped goes on: what was measured counts, nothing is measured twice."""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from lab.replay import ReplayExecutor, Truth

from hztune.blocks import Arm, Block, Role
from hztune.cli.compare import compare_command
from hztune.compare import comparison
from hztune.compare.contenders import Contender
from hztune.compare.match import row
from hztune.errors import UsageError
from hztune.measure import Remembered
from hztune.store.log import recording

from .conftest import processes_naming

Run = Callable[..., "subprocess.CompletedProcess[str]"]

SIDES = tuple(Contender(name, Arm(name)) for name in ("a", "b"))
ARMS = [each.arm for each in SIDES]


class Counting(ReplayExecutor):
    """An executor that notes which blocks are measured."""

    def __init__(self) -> None:
        super().__init__(lambda arm: Truth(math.log(0.9)) if arm == ARMS[1] else Truth(), seed=1)
        self.measured: list[int] = []

    def measure(self, arms: Sequence[Arm], *, role: Role, rounds: int, number: int) -> Block:
        """Notes the block."""
        self.measured.append(number)
        return super().measure(arms, role=role, rounds=rounds, number=number)


def test_only_the_blocks_that_are_not_there_are_measured() -> None:
    whole = row(Counting(), SIDES, 6, 60.0)
    rest = Counting()
    assert row(Remembered(rest, whole[:4]), SIDES, 6, 60.0)[:4] == whole[:4]
    assert rest.measured == [4, 5]


def test_the_time_of_the_blocks_that_are_there_is_spent() -> None:
    whole = row(Counting(), SIDES, 6, 60.0)
    rest = Counting()
    resumed = Remembered(rest, whole)
    row(resumed, SIDES, 6, 60.0)
    assert rest.measured == []
    measured_s = sum(turn.counted_ns for b in whole for o in b.outcomes for turn in o.turns) * 1e-9
    assert resumed.accounting.measured_s == pytest.approx(measured_s)
    assert resumed.accounting.wall_s > measured_s


@pytest.mark.parametrize("arms", [[ARMS[0], ARMS[0]], [ARMS[1], ARMS[0]]])
def test_a_block_of_other_arms_is_measured_anew(arms: list[Arm]) -> None:
    rest = Counting()
    block = ReplayExecutor(lambda arm: Truth(), seed=1).measure(
        ARMS, role="explore", rounds=4, number=0
    )
    Remembered(rest, [block]).measure(arms, role="explore", rounds=4, number=0)
    assert rest.measured == [0]


# ---- from the command line -----------------------------------------------------------------------

KILL = {
    "before the first run": "true",
    "in the second row": "test $(grep -c second rows) -eq 5",
}
NEVER = "false"


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """A comparison of two rows; its program prints in which run it is."""
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\necho $1 >> rows\necho "speed=$(wc -l < runs)"\n')
    program.chmod(0o755)
    (tmp_path / "rows").touch()
    rows = [f"--command={name}={program} {name}" for name in ("first", "second")]
    few = ["--warmup", "0", "--budget", "1s", "--pairs", "4", "--by", "runs"]
    metric = ["--metric-regex", r"speed=([0-9.]+)"]
    hook = ["--prepare", "echo >> runs; . ./hook"]
    return ["compare", "none", "none", *rows, *few, *metric, *hook, "--out", "kept"]


def kill_once(folder: Path, when: str) -> None:
    """Lets the command before a run kill hztune, once."""
    kill = f"test -e killed || {{ {when} && touch killed && kill -9 $PPID; }}; true\n"
    (folder / "hook").write_text(kill)


def blocks_of(folder: Path) -> list[Block]:
    return [*recording(folder / "kept").blocks]


GATE = ["--no-worse", "50%"]
STOPPED = [(when, []) for when in KILL] + [("in the second row", GATE)]


@pytest.mark.parametrize(("moment", "gate"), STOPPED, ids=lambda each: each or "ratios")
def test_a_comparison_that_was_killed_goes_on_and_loses_no_pair(
    hztune: Run, words: list[str], tmp_path: Path, moment: str, gate: list[str]
) -> None:
    kill_once(tmp_path, KILL[moment])
    first = hztune(*words, *gate)
    assert first.returncode == -9, first.stderr
    before = blocks_of(tmp_path)
    assert bool(before) == (moment != "before the first run")
    done = hztune(*words, *gate, "--resume", "--json")
    assert done.returncode in (0, 4, 6), done.stderr
    assert ("pairs of the earlier session that count" in done.stderr) == bool(before)
    after = blocks_of(tmp_path)
    assert after[: len(before)] == before
    found, wrong = comparison.load(tmp_path / "kept" / "comparison.json")
    assert wrong == []
    assert [each.spec.label for each in found.rows] == ["first", "second"]
    measured = [outcome.turns[0].ops for block in after for outcome in block.outcomes]
    told = [o.turns[0].ops for r in found.rows for block in r.blocks for o in block.outcomes]
    assert told == measured if not gate else set(told) <= set(measured)
    assert processes_naming(str(tmp_path / "program")) == []


def test_a_comparison_that_is_complete_is_shown_again(
    hztune: Run, words: list[str], tmp_path: Path
) -> None:
    kill_once(tmp_path, NEVER)
    done = hztune(*words, "--json")
    assert done.returncode == 0, done.stderr
    runs = (tmp_path / "runs").read_text()
    again = hztune(*words, "--json", "--resume")
    assert (again.returncode, again.stdout) == (0, done.stdout)
    assert (tmp_path / "runs").read_text() == runs


CHANGED = {
    "seed: 1 there, 2 here": ["--seed", "2"],
    "no_worse: nothing there, 2% here": ["--no-worse", "2%"],
    "budget_s: 1 there, 3 here": ["--budget", "3s"],
    "rows: first, second there, first, second, third here": ["--command", "third=true"],
    "sum of the rows": ["--cleanup", "true"],
}


def test_another_comparison_is_not_gone_on_with(
    hztune: Run, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_once(tmp_path, "true")
    assert hztune(*words).returncode == -9
    before = blocks_of(tmp_path)
    monkeypatch.chdir(tmp_path)
    for said, changed in CHANGED.items():
        with pytest.raises(UsageError, match=re.escape(said)):
            compare_command.main([*words[1:], *changed, "--resume"], standalone_mode=False)
    assert blocks_of(tmp_path) == before
