"""The results directory: samples while they are made, then the profile and what is made from it."""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import version as version_of
from pathlib import Path

from hztune import export, files, profile, version
from hztune.errors import UsageError
from hztune.machine import Machine
from hztune.profile import (
    AllocatorId,
    MachineId,
    Objective,
    Profile,
    Result,
    WorkloadId,
)
from hztune.study import SAMPLER
from hztune.tune.flow import Decision
from hztune.tune.request import Task

PROFILE = "profile.json"
SAMPLES = "samples.jsonl"
METRIC = "ops_per_s"
_EXPORTS = {"env": "profile.env", "header": "hz_config.h"}


def directory(task: Task) -> Path:
    """Makes the results directory, or finds the one to go on with.

    Raises:
        UsageError: It is no directory, cannot be made, or holds no study to resume.
    """
    request = task.request
    path = request.out or Path("hztune-results") / _fresh_name(task)
    if request.resume and not (path / SAMPLES).is_file():
        raise UsageError(f"there is no study to resume in {str(path)!r} (it has no {SAMPLES})")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write results to {str(path)!r}: {error.strerror}") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise UsageError(f"cannot write results to {str(path)!r}: it is not writable")
    return path


def write(result: Profile, folder: Path) -> None:
    """Writes the profile and the forms that follow from it, each whole or not at all."""
    profile.save(result, folder / PROFILE)
    for form, name in _EXPORTS.items():
        if form != "header" or result.allocator.name == "hz":
            files.write_whole(folder / name, export.render(result, form))


def build_profile(task: Task, machine: Machine, decision: Decision, trials: int) -> Profile:
    """The profile of a finished study."""
    request = task.request
    return Profile(
        allocator=AllocatorId.of(task.installed),
        params=tuple(task.space.reduced(decision.arm.config).items()),
        workload=WorkloadId(
            kind="bench",
            name=request.workload.name,
            setting=request.workload.setting,
            params=request.workload.params,
        ),
        threads=request.workload.threads,
        machine=MachineId.of(machine),
        objective=Objective(METRIC, _limits(task)),
        result=_result(decision),
        search=profile.Search(
            sampler=SAMPLER,
            seed=request.seed,
            budget_s=request.budget_s,
            trials=trials,
            space_sha256=task.space.fingerprint(),
        ),
        versions=_versions(),
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )


def _result(decision: Decision) -> Result:
    interval = decision.interval
    if interval is None:
        return Result(METRIC, None, None, None, 0, decision.verdict)
    ratio, low, high = interval.ratio
    return Result(METRIC, ratio, low, high, interval.pairs, decision.verdict)


def _limits(task: Task) -> tuple[tuple[str, str], ...]:
    return (("max_rss", task.limit.text),) if task.limit else ()


def _versions() -> tuple[tuple[str, str], ...]:
    return (
        ("hztune", version()),
        ("optuna", version_of("optuna")),
        ("numpy", version_of("numpy")),
        ("python", platform.python_version()),
    )


def _fresh_name(task: Task) -> str:
    """A name for a study's directory: what is tuned for what, and when."""
    workload = task.request.workload
    setting = f"-{workload.setting}" if workload.setting else ""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return f"{task.request.allocator}-{workload.name}{setting}-T{workload.threads}-{stamp}"
