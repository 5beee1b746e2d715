"""Studies on real processes: a known gain is proved, mischief is typed, nothing is lost."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.conftest import until

from hztune.errors import UsageError
from hztune.store.log import recording

from .conftest import processes_in

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
DEADLINE_S = 300
SPACE = """
schema = 1
allocator = "hz"
[parameters.trial_mode]
values = ["plain", "crash", "faster"]
[parameters.trial_idle]
"""


@dataclass(frozen=True)
class Tuner:
    """hztune on a core with a parameter whose worth is known."""

    core: Path
    folder: Path

    def start(self, *more):
        """A study in a process of its own, whose results are in `out`."""
        space = self.folder / "space.toml"
        space.write_text(SPACE)
        return subprocess.Popen(
            [sys.executable, "-m", "hztune", "--workload", "worth", "--threads", "1",
             "--seed", "2", "--space", str(space), "--budget", "20s", "--out", str(self.out),
             "--json", *more],
            env={**os.environ, "HZTUNE_CORE": str(self.core), "NO_COLOR": "1"},
            cwd=self.folder, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    @property
    def out(self):
        return self.folder / "out"

    def rows(self):
        """Every sample."""
        return [json.loads(line) for line in recording(self.out).lines]

    def verdict(self):
        """What the profile says."""
        return json.loads((self.out / "profile.json").read_text())["result"]["verdict"]

    def wait_for_blocks(self, count, process):
        """Waits until the study has finished that many blocks."""

        def is_there():
            with contextlib.suppress(UsageError):  # there is no study yet
                return sum(row["kind"] == "block" for row in self.rows()) > count

        until(lambda: process.poll() is not None or is_there(), DEADLINE_S)
        assert process.poll() is None, process.stderr.read()


@pytest.fixture(scope="module")
def tuner(build_tuner, tmp_path_factory):
    core = build_tuner(
        targets=["_core", "hz_shared", "hz_deepbind", "hz-bench", "hz-turns", "hz-launch"],
        CMAKE_BUILD_TYPE="Quick",
        CMAKE_C_FLAGS="-O1",
        HZ_EXTRA_PARAMS=str(HERE / "tune_worth.def"),
        HZ_EXTRA_WORKLOAD=str(HERE / "tune_worth.c"),
    )
    return Tuner(core, tmp_path_factory.mktemp("tuner"))


@pytest.fixture(scope="module")
def study(tuner):
    """What the samples and the verdict were when a study was killed, by Ctrl-C, and at its end."""
    with tuner.start() as process:
        tuner.wait_for_blocks(3, process)
        process.kill()
        process.wait(timeout=DEADLINE_S)
    killed = tuner.rows()
    with tuner.start("--resume") as process:
        tuner.wait_for_blocks(sum(row["kind"] == "block" for row in killed) + 2, process)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130, stderr
    assert json.loads(stdout)["verdict"] == tuner.verdict() == "interrupted"
    interrupted = tuner.rows()
    with tuner.start("--resume") as process:
        stdout, stderr = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, stderr
    return killed, interrupted, json.loads(stdout)


def test_a_killed_and_an_interrupted_study_lose_no_sample_and_repeat_none(tuner, study):
    killed, interrupted, _ = study
    assert interrupted[: len(killed)] == killed
    after = tuner.rows()
    assert after[: len(interrupted)] == interrupted and len(after) > len(interrupted)
    assert [row["seq"] for row in after] == list(range(len(after)))
    complete = [row["block"] for row in after if row["kind"] == "outcome"]
    assert complete == sorted(complete)


def test_a_parameter_worth_a_half_is_found_beside_crashes(tuner, study):
    *_, summary = study
    assert summary["verdict"] == tuner.verdict() == "improved"
    assert summary["params"]["trial_mode"] == "faster"
    assert summary["ci_low"] > 1.0
    assert summary["ratio"] == pytest.approx(2.0, rel=0.1)
    assert set(summary["failures"]) == {"crash"}
    assert processes_in(tuner.folder) == []
    header = (tuner.out / "hz_config.h").read_text()
    assert "#define HZ_CONFIG_TRIAL_MODE HZ_TRIAL_MODE_FASTER" in header
    lines = (tuner.out / "profile.env").read_text().splitlines()
    variables = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    variables |= {"HZ_CONFIRM": "1", "LD_PRELOAD": str(tuner.core / "core" / "libhz.so")}
    ran = subprocess.run(["/bin/true"], env=variables, stderr=subprocess.PIPE, check=True)
    config = json.loads(ran.stderr.removeprefix(b"HZ_CONFIRM "))["config"]
    assert summary["params"].items() <= config.items()
