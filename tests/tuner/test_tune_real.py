"""Studies on real processes: a known gain is proved, mischief is typed, nothing is lost."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

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
values = {modes}
[parameters.trial_idle]
"""


@dataclass(frozen=True)
class Tuner:
    """hztune on a core with a parameter whose worth is known."""

    core: Path
    folder: Path

    def start(self, out, *more, modes=("plain", "faster")):
        """A study in a process of its own; trial_mode may have these values."""
        space = self.folder / f"{'-'.join(modes)}.toml"
        space.write_text(SPACE.format(modes=json.dumps(modes)))
        return subprocess.Popen(
            [sys.executable, "-m", "hztune", "--workload", "worth", "--threads", "1",
             "--space", str(space), "--budget", "20s", "--out", str(out), "--json", *more],
            env={**os.environ, "HZTUNE_CORE": str(self.core), "NO_COLOR": "1"},
            cwd=self.folder, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, out, *more, **how):
        """Exit status, stdout and stderr of a study."""
        with self.start(out, *more, **how) as process:
            stdout, stderr = process.communicate(timeout=DEADLINE_S)
        return process.returncode, stdout, stderr


@pytest.fixture(scope="module")
def tuner(build_tuner, tmp_path_factory):
    core = build_tuner(
        targets=["_core", "hz_shared", "hz_deepbind", "hz-bench", "hz-turns", "hz-launch"],
        HZ_EXTRA_PARAMS=str(HERE / "tune_worth.def"),
        HZ_EXTRA_WORKLOAD=str(HERE / "tune_worth.c"),
    )
    return Tuner(core, tmp_path_factory.mktemp("tuner"))


def rows(out):
    """Every sample of a results directory."""
    return [json.loads(line) for line in recording(out).lines]


def verdict(out):
    """What the profile says."""
    return json.loads((out / "profile.json").read_text())["result"]["verdict"]


def wait_for_blocks(out, count, process):
    """Waits until a study has finished that many blocks."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(UsageError):  # there is no study yet
            begun = [row for row in rows(out) if row["kind"] == "block"]
            if len(begun) > count:
                return
        time.sleep(0.05)
    raise AssertionError(f"ended before {count} blocks: {process.poll()} {process.stderr.read()}")


# ---- verdicts ------------------------------------------------------------------------------------


def test_a_parameter_worth_a_half_is_found_beside_crashes(tuner, tmp_path):
    out = tmp_path / "out"
    status, stdout, stderr = tuner.run(out, "--seed", "2", modes=("plain", "crash", "faster"))
    assert status == 0, stderr
    summary = json.loads(stdout)
    assert summary["verdict"] == "improved"
    assert summary["params"]["trial_mode"] == "faster"
    assert summary["ci_low"] > 1.0
    assert summary["ratio"] == pytest.approx(2.0, rel=0.1)
    assert set(summary["failures"]) == {"crash"}
    assert processes_in(tuner.folder) == []
    assert verdict(out) == "improved"
    header = (out / "hz_config.h").read_text()
    assert "#define HZ_CONFIG_TRIAL_MODE HZ_TRIAL_MODE_FASTER" in header
    lines = (out / "profile.env").read_text().splitlines()
    variables = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    variables |= {"HZ_CONFIRM": "1", "LD_PRELOAD": str(tuner.core / "core" / "libhz.so")}
    ran = subprocess.run(["/bin/true"], env=variables, stderr=subprocess.PIPE, check=True)
    config = json.loads(ran.stderr.removeprefix(b"HZ_CONFIRM "))["config"]
    assert summary["params"].items() <= config.items()


# ---- interruption --------------------------------------------------------------------------------


def test_a_killed_and_an_interrupted_study_lose_no_sample_and_repeat_none(tuner, tmp_path):
    """It is killed, then ended by Ctrl-C, and goes on to its verdict."""
    out = tmp_path / "out"
    with tuner.start(out) as process:
        wait_for_blocks(out, 3, process)
        process.kill()
        process.wait(timeout=DEADLINE_S)
    killed = rows(out)
    with tuner.start(out, "--resume") as process:
        wait_for_blocks(out, sum(row["kind"] == "block" for row in killed) + 2, process)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130, stderr
    assert json.loads(stdout)["verdict"] == verdict(out) == "interrupted"
    interrupted = rows(out)
    assert interrupted[: len(killed)] == killed
    status, _, stderr = tuner.run(out, "--resume")
    assert status == 0, stderr
    after = rows(out)
    assert after[: len(interrupted)] == interrupted and len(after) > len(interrupted)
    assert [row["seq"] for row in after] == list(range(len(after)))
    complete = [row["block"] for row in after if row["kind"] == "outcome"]
    assert complete == sorted(complete)
    assert verdict(out) != "interrupted"
