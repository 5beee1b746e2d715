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
from typing import Any, NamedTuple

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


@dataclass(frozen=True)
class Tuner:
    """hztune on a core with a parameter whose worth is known."""

    core: Path
    folder: Path

    def start(
        self,
        out: Path,
        *more: str,
        modes: Sequence[str] = ("plain", "faster"),
        budget: str = "20s",
    ) -> subprocess.Popen[str]:
        """A study in a process of its own; trial_mode may have these values."""
        space = self.folder / f"{'-'.join(modes)}.toml"
        space.write_text(SPACE.format(modes=json.dumps(modes)))
        return subprocess.Popen(
            [sys.executable, "-m", "hztune", "--workload", "worth", "--threads", "1",
             "--space", str(space), "--budget", budget, "--out", str(out), "--json", *more],
            env={**os.environ, "HZTUNE_CORE": str(self.core), "NO_COLOR": "1"},
            cwd=self.folder, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, out: Path, *more: str, **how: Any) -> tuple[int, str, str]:
        """Exit status, stdout and stderr of a study."""
        with self.start(out, *more, **how) as process:
            stdout, stderr = process.communicate(timeout=DEADLINE_S)
        return process.returncode, stdout, stderr


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


def verdict(out: Path) -> str:
    """What the profile says."""
    found: str = json.loads((out / "profile.json").read_text())["result"]["verdict"]
    return found


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


def test_a_parameter_worth_a_half_is_found_beside_crashes(tuner: Tuner, tmp_path: Path) -> None:
    out = tmp_path / "out"
    modes = ("plain", "crash", "hang", "greedy", "faster")
    status, stdout, stderr = tuner.run(out, "--seed", "2", modes=modes, budget="30s")
    assert status == 0, stderr
    summary = json.loads(stdout)
    assert summary["verdict"] == "improved"
    assert summary["params"]["trial_mode"] == "faster"
    assert summary["ci_low"] > 1.0
    assert summary["ratio"] == pytest.approx(2.0, rel=0.1)
    assert set(summary["failures"]) == {"crash", "hang", "oom"}
    assert processes_in(tuner.folder) == []
    assert verdict(out) == "improved"
    header = (out / "hz_config.h").read_text()
    assert "#define HZ_CONFIG_TRIAL_MODE HZ_TRIAL_MODE_FASTER" in header
    assert "HZ_TRIAL_MODE=faster" in (out / "profile.env").read_text()


# ---- interruption --------------------------------------------------------------------------------


class Stopped(NamedTuple):
    """A study that was killed, then ended by Ctrl-C, and went on to its verdict."""

    out: Path
    killed: list[dict[str, Any]]  # the samples that were there when it had been killed
    interrupted: list[dict[str, Any]]  # and after Ctrl-C
    status: int  # what it ended with then
    verdicts: tuple[str, str]  # what it said then, in its summary and in its profile


@pytest.fixture(scope="module")
def stopped(tuner: Tuner) -> Stopped:
    out = tuner.folder / "finished"
    with tuner.start(out) as process:
        wait_for_blocks(out, 3, process)
        process.kill()
        process.wait(timeout=DEADLINE_S)
    killed = rows(out)
    with tuner.start(out, "--resume") as process:
        wait_for_blocks(out, sum(row["kind"] == "block" for row in killed) + 2, process)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=DEADLINE_S)
    assert stdout, stderr
    verdicts = (json.loads(stdout)["verdict"], verdict(out))
    interrupted = rows(out)
    status, _, stderr = tuner.run(out, "--resume")
    assert status == 0, stderr
    return Stopped(out, killed, interrupted, process.returncode, verdicts)


def test_ctrl_c_saves_the_best_so_far_and_resume_goes_on_from_there(stopped: Stopped) -> None:
    assert stopped.status == 130
    assert stopped.verdicts == ("interrupted", "interrupted")
    after = rows(stopped.out)
    assert after[: len(stopped.interrupted)] == stopped.interrupted
    assert len(after) > len(stopped.interrupted)
    assert verdict(stopped.out) != "interrupted"


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
def test_a_mistake_is_a_sentence_and_changes_no_file(
    tuner: Tuner, stopped: Stopped, mistake: str
) -> None:
    more, said = REFUSED[mistake]
    before = {path: path.read_bytes() for path in stopped.out.iterdir()}
    status, stdout, stderr = tuner.run(stopped.out, *more)
    assert (status, stdout) == (2, "")
    assert said in stderr and len(stderr.splitlines()) == 1
    assert {path: path.read_bytes() for path in stopped.out.iterdir()} == before


def test_a_finished_study_says_the_same_without_measuring(tuner: Tuner, stopped: Stopped) -> None:
    finished = stopped.out
    before = (finished / "samples.jsonl").read_bytes()
    profile = (finished / "profile.json").read_bytes()
    (finished / "hz_config.h").unlink()
    status, stdout, stderr = tuner.run(finished, "--resume", budget="60s")
    assert status == 0, stderr
    assert json.loads(stdout)["verdict"] == verdict(finished)
    assert (finished / "samples.jsonl").read_bytes() == before
    assert (finished / "profile.json").read_bytes() == profile
    assert (finished / "hz_config.h").is_file()
