"""Studies on real processes: a known gain is proved, mischief is typed, nothing is lost."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hztune.errors import UsageError
from hztune.store.log import recording

from .conftest import processes_in

Build = Callable[..., Path]

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
DEADLINE_S = 300
SPACE = """
schema = 1
allocator = "hz"
[parameters.trial_mode]
values = {modes}
[parameters.trial_idle]
"""


class Tuner:
    """hztune on a core with a parameter whose worth is known."""

    def __init__(self, core: Path, folder: Path) -> None:
        self.folder = folder
        self.core = core
        self._environment = {**os.environ, "HZTUNE_CORE": str(core), "NO_COLOR": "1"}

    def space(self, *modes: str) -> Path:
        """A space in which trial_mode may have these values."""
        path = self.folder / f"{'-'.join(modes)}.toml"
        path.write_text(SPACE.format(modes=json.dumps(modes)))
        return path

    def words(self, space: Path, out: Path, budget: str, *more: str) -> list[str]:
        """The command of a study."""
        return [sys.executable, "-m", "hztune", "--workload", "worth", "--threads", "1",
                "--space", str(space), "--budget", budget, "--out", str(out), "--json",
                *more]  # fmt: skip

    def start(self, words: Sequence[str]) -> subprocess.Popen[str]:
        """A study in a process of its own."""
        return subprocess.Popen(
            words, env=self._environment, cwd=self.folder, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, words: Sequence[str]) -> tuple[int, str, str]:
        """Exit status, stdout and stderr of a study."""
        with self.start(words) as process:
            out, err = process.communicate(timeout=DEADLINE_S)
        return process.returncode, out, err

    def study(self, space: Path, out: Path, budget: str, *more: str) -> dict[str, Any]:
        """The summary of a study that must come to a verdict."""
        status, stdout, stderr = self.run(self.words(space, out, budget, *more))
        assert status == 0, stderr
        summary: dict[str, Any] = json.loads(stdout)
        return summary


@pytest.fixture(scope="module")
def tuner(build_tuner: Build, tmp_path_factory: pytest.TempPathFactory) -> Tuner:
    core = build_tuner(
        targets=["_core", "hz_shared", "hz_deepbind", "hz-bench", "hz-turns", "hz-launch"],
        HZ_EXTRA_PARAMS=str(HERE / "tune_worth.def"),
        HZ_EXTRA_WORKLOAD=str(HERE / "tune_worth.c"),
    )
    return Tuner(core, tmp_path_factory.mktemp("tuner"))


def rows(out: Path) -> list[dict[str, Any]]:
    """Every sample of a results directory."""
    return [json.loads(line) for line in recording(out).lines]


def wait_for_blocks(out: Path, count: int, process: subprocess.Popen[str]) -> None:
    """Waits until a study has finished that many blocks."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(UsageError):  # there is no study yet
            begun = [row for row in rows(out) if row["kind"] == "block"]
            if len(begun) > count:
                return
        time.sleep(0.05)
    assert process.stderr is not None
    raise AssertionError(f"ended before {count} blocks: {process.poll()} {process.stderr.read()}")


# ---- verdicts ------------------------------------------------------------------------------------


def test_a_parameter_worth_a_half_is_found_proved_and_written_beside_crashes_hangs_and_greed(
    tuner: Tuner, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    space = tuner.space("plain", "crash", "hang", "greedy", "faster")
    summary = tuner.study(space, out, "30s", "--seed", "2")
    assert summary["verdict"] == "improved"
    assert summary["params"]["trial_mode"] == "faster"
    assert summary["ci_low"] > 1.0
    assert summary["ratio"] == pytest.approx(2.0, rel=0.1)
    assert set(summary["failures"]) == {"crash", "hang", "oom"}
    assert processes_in(tuner.folder) == []
    profile = json.loads((out / "profile.json").read_text())
    assert profile["result"]["verdict"] == "improved"
    header = (out / "hz_config.h").read_text()
    assert "#define HZ_CONFIG_TRIAL_MODE HZ_TRIAL_MODE_FASTER" in header
    assert "HZ_TRIAL_MODE=faster" in (out / "profile.env").read_text()


# ---- interruption --------------------------------------------------------------------------------

BUDGET = "20s"


@dataclass(frozen=True)
class Stopped:
    """A study that was killed, then ended by Ctrl-C, and went on to its verdict.

    Attributes:
        out: Its directory.
        killed: The samples that were there when it had been killed.
        interrupted: Those that were there after Ctrl-C.
        status: What it ended with then.
        verdicts: What it said then, in its summary and in its profile.
    """

    out: Path
    killed: list[dict[str, Any]]
    interrupted: list[dict[str, Any]]
    status: int
    verdicts: tuple[str, str]


@pytest.fixture(scope="module")
def stopped(tuner: Tuner) -> Stopped:
    out = tuner.folder / "finished"
    words = tuner.words(tuner.space("plain", "faster"), out, BUDGET)
    with tuner.start(words) as process:
        wait_for_blocks(out, 3, process)
        process.kill()
        process.wait(timeout=DEADLINE_S)
    killed = rows(out)
    with tuner.start([*words, "--resume"]) as process:
        wait_for_blocks(out, sum(row["kind"] == "block" for row in killed) + 2, process)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=DEADLINE_S)
    assert stdout, stderr
    profile = json.loads((out / "profile.json").read_text())
    verdicts = (json.loads(stdout)["verdict"], profile["result"]["verdict"])
    interrupted = rows(out)
    tuner.study(tuner.space("plain", "faster"), out, BUDGET, "--resume")
    return Stopped(out, killed, interrupted, process.returncode, verdicts)


def test_ctrl_c_saves_the_best_so_far_and_resume_goes_on_from_there(stopped: Stopped) -> None:
    assert stopped.status == 130
    assert stopped.verdicts == ("interrupted", "interrupted")
    after = rows(stopped.out)
    assert after[: len(stopped.interrupted)] == stopped.interrupted
    assert len(after) > len(stopped.interrupted)
    profile = json.loads((stopped.out / "profile.json").read_text())
    assert profile["result"]["verdict"] != "interrupted"


def test_a_killed_study_loses_no_sample_and_repeats_none(stopped: Stopped) -> None:
    assert stopped.interrupted[: len(stopped.killed)] == stopped.killed
    after = rows(stopped.out)
    assert [row["seq"] for row in after] == list(range(len(after)))
    complete = [row["pair"] for row in after if row["kind"] == "outcome"]
    assert complete == sorted(complete)


# ---- afterwards ----------------------------------------------------------------------------------

REFUSED = {
    "another study's directory": (["--seed", "9", "--resume"], "belongs to another study"),
    "a directory in use": ([], "holds a study already"),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_a_mistake_is_one_sentence_and_changes_no_file(
    tuner: Tuner, stopped: Stopped, mistake: str
) -> None:
    more, said = REFUSED[mistake]
    before = {path: path.read_bytes() for path in stopped.out.iterdir()}
    words = tuner.words(tuner.space("plain", "faster"), stopped.out, "20s", *more)
    status, stdout, stderr = tuner.run(words)
    assert (status, stdout) == (2, "")
    assert said in stderr and len(stderr.splitlines()) == 1
    assert {path: path.read_bytes() for path in stopped.out.iterdir()} == before


def test_a_finished_study_resumed_says_the_same_without_measuring(
    tuner: Tuner, stopped: Stopped
) -> None:
    finished = stopped.out
    before = (finished / "samples.jsonl").read_bytes()
    profile = (finished / "profile.json").read_bytes()
    (finished / "hz_config.h").unlink()
    words = tuner.words(tuner.space("plain", "faster"), finished, "60s")
    status, stdout, stderr = tuner.run([*words, "--resume"])
    assert status == 0, stderr
    assert json.loads(stdout)["verdict"] == json.loads(profile)["result"]["verdict"]
    assert (finished / "samples.jsonl").read_bytes() == before
    assert (finished / "profile.json").read_bytes() == profile
    assert (finished / "hz_config.h").is_file()
