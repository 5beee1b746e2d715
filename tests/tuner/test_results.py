"""A real study leaves a directory whose files agree with each other and with the running hz."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hztune import params, profile

pytestmark = pytest.mark.slow

Run = Callable[..., "subprocess.CompletedProcess[str]"]
BUDGET_S = 20


@pytest.fixture(scope="module")
def results(hztune_once: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results directory of a short study."""
    folder = tmp_path_factory.mktemp("study") / "results"
    done = hztune_once("--workload", "remote@main", "--threads", "2", "--budget", f"{BUDGET_S}s",
                       "--seed", "3", "--out", folder, "--json", "--quiet")  # fmt: skip
    assert done.returncode == 0, done.stderr
    (folder.parent / "stdout").write_text(done.stdout)
    return folder


def test_the_profile_says_what_was_asked_and_what_the_summary_says(results: Path) -> None:
    found, summary = profile.load(results / "profile.json"), (results.parent / "stdout").read_text()
    told = json.loads(summary)
    assert (told["verdict"], told["params"]) == (found.claim.verdict, found.params)
    assert (found.workload.name, found.workload.setting, found.threads) == ("remote", "main", 2)
    assert (found.search.seed, found.search.budget_s) == (3, BUDGET_S)
    if found.claim.verdict == "improved":
        assert found.claim.ci_low is not None and found.claim.ci_low > 1 and found.params
    else:
        assert found.claim.verdict == "no_gain"
        assert params.complete(found.params) == params.defaults()


def test_the_env_file_gives_the_library_the_configuration_of_the_profile(
    results: Path, core_build: Path
) -> None:
    lines = (results / "profile.env").read_text().splitlines()
    variables = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    done = subprocess.run(
        ["/bin/true"],
        env={"HZ_CONFIRM": "1", "HZ_STRICT": "1", **variables,
             "LD_PRELOAD": str(core_build / "libhz.so")},
        capture_output=True,
        text=True,
        check=True,
    )  # fmt: skip
    said = json.loads(done.stderr.removeprefix("HZ_CONFIRM "))["config"]
    wanted = params.complete(profile.load(results / "profile.json").params)
    assert {name: said[name] for name, value in wanted.items() if value != "auto"} == {
        name: value for name, value in wanted.items() if value != "auto"
    }


def test_the_directory_holds_what_show_and_export_say_of_it(results: Path, hztune: Run) -> None:
    assert {"profile.json", "profile.env", "hz_config.h"} <= set(os.listdir(results))
    samples = (results / "samples.jsonl").read_text()
    assert hztune("export", results, "--format", "samples").stdout == samples
    numbers = [json.loads(line)["seq"] for line in samples.splitlines()]
    assert numbers == list(range(len(numbers)))
    assert hztune("show", results / "profile.json").returncode == 0
    exported = hztune("export", results / "profile.json", "--format", "header").stdout
    assert exported == (results / "hz_config.h").read_text()
