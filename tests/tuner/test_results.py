"""A real study leaves a directory whose files agree with each other and with the running hz."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hztune import params, profile

pytestmark = pytest.mark.slow

Run = Callable[..., "subprocess.CompletedProcess[str]"]
BUDGET_S = 20


def test_a_real_study_leaves_files_that_agree_with_each_other_and_with_the_running_hz(
    hztune: Run, core_build: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "results"
    done = hztune("--workload", "remote@main", "--threads", "2", "--budget", f"{BUDGET_S}s",
                  "--seed", "3", "--out", folder, "--json", "--quiet")  # fmt: skip
    assert done.returncode == 0, done.stderr
    found, told = profile.load(folder / "profile.json"), json.loads(done.stdout)
    assert (told["verdict"], told["params"]) == (found.claim.verdict, found.params)
    assert (found.workload.name, found.workload.setting, found.threads) == ("remote", "main", 2)
    assert (found.search.seed, found.search.budget_s) == (3, BUDGET_S)
    wanted = params.complete(found.params)
    if found.claim.verdict == "improved":
        assert found.claim.ci_low is not None and found.claim.ci_low > 1 and found.params
    else:
        assert found.claim.verdict == "no_gain" and wanted == params.defaults()

    lines = (folder / "profile.env").read_text().splitlines()
    variables = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    library = {"LD_PRELOAD": str(core_build / "libhz.so")}
    environment = {"HZ_CONFIRM": "1", "HZ_STRICT": "1", **variables, **library}
    ran = subprocess.run(["/bin/true"], env=environment, capture_output=True, text=True, check=True)
    said = json.loads(ran.stderr.removeprefix("HZ_CONFIRM "))["config"]
    assert [n for n, value in wanted.items() if value != "auto" and said[n] != value] == []

    samples = (folder / "samples.jsonl").read_text()
    assert hztune("export", folder, "--format", "samples").stdout == samples
    numbers = [json.loads(line)["seq"] for line in samples.splitlines()]
    assert numbers == list(range(len(numbers)))
    assert hztune("show", folder / "profile.json").returncode == 0
    exported = hztune("export", folder / "profile.json", "--format", "header").stdout
    assert exported == (folder / "hz_config.h").read_text()
