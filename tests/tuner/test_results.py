"""A study leaves a directory whose files agree with each other and with the running hz."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hztune import params, profile
from hztune.params import Value
from hztune.profile import Profile

pytestmark = pytest.mark.slow

Build = Callable[..., Path]
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


@pytest.fixture(scope="module")
def found(results: Path) -> Profile:
    """The profile that it left."""
    return profile.load(results / "profile.json")


def confirmed(library: Path, variables: dict[str, str]) -> dict[str, Value]:
    """What a process under `library` says it runs with."""
    done = subprocess.run(
        ["/bin/true"],
        env={"HZ_CONFIRM": "1", "HZ_STRICT": "1", **variables, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        check=True,
    )
    config: dict[str, Value] = json.loads(done.stderr.removeprefix("HZ_CONFIRM "))["config"]
    return config


def agrees(said: dict[str, Value], wanted: dict[str, Value]) -> bool:
    """Whether a library runs with what was wanted; `auto` has become a number."""
    return all(said[name] == value for name, value in wanted.items() if value != "auto")


def test_the_directory_holds_the_profile_its_forms_and_the_samples(results: Path) -> None:
    assert {"profile.json", "profile.env", "hz_config.h", "samples.jsonl"} <= set(
        os.listdir(results)
    )


def test_the_summary_on_stdout_tells_the_verdict_of_the_profile(
    results: Path, found: Profile
) -> None:
    summary = json.loads((results.parent / "stdout").read_text())
    assert summary["verdict"] == found.claim.verdict
    assert summary["params"] == found.params


@pytest.mark.perf
def test_a_study_keeps_to_its_budget_within_a_tenth(results: Path) -> None:
    summary = json.loads((results.parent / "stdout").read_text())
    assert summary["wall_s"] <= 1.1 * BUDGET_S


def test_a_verdict_is_backed_by_its_interval(found: Profile) -> None:
    claim = found.claim
    if claim.verdict == "improved":
        assert claim.ci_low is not None and claim.ci_low > 1 and found.params
    else:
        assert claim.verdict == "no_gain"
        assert params.complete(found.params) == params.defaults()


def test_the_profile_says_what_was_asked(found: Profile) -> None:
    assert (found.workload.name, found.workload.setting, found.threads) == ("remote", "main", 2)
    assert (found.search.seed, found.search.budget_s) == (3, BUDGET_S)


def test_the_header_frozen_gives_the_configuration_of_the_profile(
    results: Path, found: Profile, build_core: Build, tmp_path: Path
) -> None:
    built = build_core(
        targets=["hz_shared"], HZ_CONFIG_HEADER=str(results / "hz_config.h"), HZ_FROZEN="ON"
    )
    assert agrees(confirmed(built / "libhz.so", {}), params.complete(found.params))


def test_the_env_file_gives_the_tuning_build_the_same(
    results: Path, found: Profile, core_build: Path
) -> None:
    lines = (results / "profile.env").read_text().splitlines()
    variables = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    said = confirmed(core_build / "libhz.so", variables)
    assert agrees(said, params.complete(found.params))


def test_every_sample_is_a_whole_line_with_the_next_number(results: Path, hztune: Run) -> None:
    text = (results / "samples.jsonl").read_text()
    assert hztune("export", results, "--format", "samples").stdout == text
    lines = text.splitlines()
    assert [json.loads(line)["seq"] for line in lines] == list(range(len(lines)))


def test_show_and_export_take_the_profile(results: Path, hztune: Run) -> None:
    assert hztune("show", results / "profile.json").returncode == 0
    exported = hztune("export", results / "profile.json", "--format", "header").stdout
    assert exported == (results / "hz_config.h").read_text()
