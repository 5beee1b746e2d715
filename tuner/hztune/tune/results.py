"""The results directory: samples while they are made, then the profile and what is made from it."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from importlib.metadata import version as version_of
from pathlib import Path

from hztune import export, files, profile, version
from hztune.errors import UsageError
from hztune.machine import Machine
from hztune.params import Value
from hztune.profile import (
    AllocatorId,
    MachineId,
    Memory,
    Objective,
    Profile,
    Result,
    Share,
    WorkloadId,
)
from hztune.search.proposer import SAMPLER
from hztune.store.local import DATABASE, is_there
from hztune.tune.request import Task, TuneRequest
from hztune.tune.story import Decision
from hztune.workload import METRICS, WorkloadSpec

PROFILE = "profile.json"
FRONT = "front"
_EXPORTS = {"env": "profile.env", "header": "hz_config.h"}


def directory(task: Task) -> Path:
    """Makes the results directory, or finds the one to go on with.

    Raises:
        UsageError: It is no directory, cannot be made, or holds no study to resume.
    """
    request = task.request
    path = request.out or Path("hztune-results") / _fresh_name(task)
    if request.resume and not is_there(path):
        raise UsageError(f"there is no study to resume in {str(path)!r} (it has no {DATABASE})")
    make(path)
    return path


def make(path: Path) -> None:
    """Makes a results directory, unless it is there.

    Raises:
        UsageError: It is no directory, or cannot be made or written to.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write results to {str(path)!r}: {error.strerror}") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise UsageError(f"cannot write results to {str(path)!r}: it is not writable")


def write(result: Profile, folder: Path, front: Sequence[Profile] = ()) -> None:
    """Writes the profile, the forms that follow from it and a front, each file whole or not."""
    profile.save(result, folder / PROFILE)
    for number, member in enumerate(front, start=1):
        (folder / FRONT).mkdir(exist_ok=True)
        profile.save(member, folder / front_file(number))
    for form, name in _EXPORTS.items():
        if form != "header" or result.allocator.name == "hz":
            files.write_whole(folder / name, export.render(result, form))


def front_file(number: int) -> Path:
    """Where a member of a front stands in the results directory; 1 is the fastest."""
    return Path(FRONT) / f"{number}.json"


def build_profile(task: Task, machine: Machine, decision: Decision, trials: int) -> Profile:
    """The profile of a finished study."""
    request = task.request
    return Profile(
        allocator=AllocatorId.of(task.candidates.find(decision.arm.allocator)),
        params=_params(task, decision),
        workload=_workload_id(request),
        threads=request.threads,
        machine=MachineId.of(machine),
        objective=Objective(_metric(request), task.limits, _control(task)),
        result=_result(_metric(request), decision),
        search=profile.SearchInfo(
            sampler=SAMPLER,
            seed=request.seed,
            budget_s=request.budget_s,
            trials=trials,
            space_sha256=task.space.fingerprint(),
        ),
        versions=_versions(),
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        shares=_shares(request, decision),
    )


def _params(task: Task, decision: Decision) -> tuple[tuple[str, Value], ...]:
    """What differs from the defaults of the arm's allocator; the unchanged program has none."""
    arm = decision.arm
    if not task.space.holds(arm):
        return ()
    return tuple(task.space.part(arm.allocator).reduced(arm.config).items())


def _control(task: Task) -> str:
    """What the ratio is to; empty where that is the default of the profile's own allocator."""
    control = task.space.control
    return "" if task.space.holds(control) else control.allocator


def _workload_id(request: TuneRequest) -> WorkloadId:
    workload = request.workload
    if workload is None:
        assert request.program is not None  # `understand` saw to it
        words = profile.hash_of_words(request.program.argv)
        return WorkloadId("program", request.name, "", (), words)
    return _bench_id(workload)


def _bench_id(spec: WorkloadSpec) -> WorkloadId:
    return WorkloadId("bench", spec.name, spec.setting, spec.params)


def _shares(request: TuneRequest, decision: Decision) -> tuple[Share, ...]:
    """What each of several workloads has of it; nothing where there is one only."""
    if not request.beside:
        return ()
    intervals = decision.each or [None] * len(request.workloads)
    return tuple(
        Share(_bench_id(spec), *(interval.ratio if interval else (None, None, None)))
        for spec, interval in zip(request.workloads, intervals, strict=True)
    )


def _metric(request: TuneRequest) -> str:
    """What is made better: a workload's goal, runs a second, or the program's own metric."""
    if request.workload is not None:
        return METRICS[request.workload.goal]
    return "metric" if request.program and request.program.rate else "wall_s"


def _result(metric: str, decision: Decision) -> Result:
    interval = decision.interval
    if interval is None:
        return Result(metric, None, None, None, 0, decision.verdict)
    ratio, low, high = interval.ratio
    memory = Memory(*decision.memory.ratio) if decision.memory else None
    return Result(metric, ratio, low, high, interval.pairs, decision.verdict, memory)


def _versions() -> tuple[tuple[str, str], ...]:
    return (
        ("hztune", version()),
        ("optuna", version_of("optuna")),
        ("numpy", version_of("numpy")),
        ("python", platform.python_version()),
    )


def _fresh_name(task: Task) -> str:
    """A name for a study's directory: what is tuned for what, and when."""
    request = task.request
    words = [request.allocator.replace(",", "-"), request.name]
    if request.workload is not None:
        setting = request.workload.setting
        words += [*([setting] if setting else []), f"T{request.workload.threads}"]
    return "-".join([*words, time.strftime("%Y%m%d-%H%M%S")])
