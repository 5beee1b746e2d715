"""ArmRecord of one study are never mixed with those of another: whatever differs is refused."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest

from hztune import artifacts
from hztune.errors import UsageError
from hztune.machine import Machine
from hztune.measure.program import Program
from hztune.store.log import LocalStudy, recording
from hztune.tune.request import TuneRequest, understand
from hztune.workload import WorkloadSpec

LARSON = WorkloadSpec.from_text("larson", threads=2)
REQUEST = TuneRequest(LARSON)
MACHINE = Machine.here()
PROGRAM = Program(("/bin/echo", "one"))

REQUESTS: dict[str, dict[str, Any]] = {
    "workload": {"workload": WorkloadSpec.from_text("sh6", threads=2)},
    "parameter of the workload": {
        "workload": WorkloadSpec.from_text("larson", ["max_size=512"], 2)
    },
    "number of threads": {"workload": WorkloadSpec.from_text("larson", threads=3)},
    "objective": {"workload": LARSON.by("p99")},
    "allocator": {"allocator": "glibc"},
    "search space": {"space": "narrow.toml"},
    "memory limit": {"max_rss": "1.10x"},
    "seed": {"seed": 2},
    "target": {"workload": None, "program": PROGRAM},
}
MACHINES: dict[str, str | int] = {
    **dict.fromkeys(("cpu", "cpu_flags", "thp", "kernel", "libc"), "another"),
    "cores": MACHINE.cores + 1,
    "page_size": 2 * MACHINE.page_size,
}
FILES = ("libhz.so", "hz-bench")


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """The results directory of the study that was asked for."""
    folder = tmp_path / "results"
    folder.mkdir()
    opened(folder, REQUEST)
    return folder


def opened(folder: Path, request: TuneRequest, machine: Machine = MACHINE) -> None:
    LocalStudy(folder, understand(request).identity, machine, resume=True).close()


def refused(folder: Path, request: TuneRequest, machine: Machine = MACHINE) -> None:
    """Requires that the samples are refused to a study, in words, and left as they are."""
    before = recording(folder).lines
    with pytest.raises(UsageError, match="belongs to another study"):
        opened(folder, request, machine)
    assert recording(folder).lines == before
    opened(folder, REQUEST)


@pytest.mark.parametrize("what", REQUESTS)
def test_samples_are_refused_to_another_study(study: Path, tmp_path: Path, what: str) -> None:
    space = tmp_path / "narrow.toml"
    space.write_text('schema = 1\nallocator = "hz"\n[parameters.depot_lock]\n')
    changes = {**REQUESTS[what], **({"space": str(space)} if what == "search space" else {})}
    refused(study, dataclasses.replace(REQUEST, **changes))


@pytest.mark.parametrize("field", MACHINES)
def test_samples_are_refused_to_another_machine(study: Path, field: str) -> None:
    refused(study, REQUEST, dataclasses.replace(MACHINE, **{field: MACHINES[field]}))


@pytest.mark.parametrize("name", FILES)
def test_samples_are_refused_to_another_build(
    study: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    another = tmp_path / "core"
    for file in (artifacts.library(), artifacts.bench(), artifacts.launch(), artifacts.turns()):
        (another / file.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copy(file.resolve(), another / file.parent.name / file.name)
    changed = next(another.rglob(name))
    changed.write_bytes(changed.read_bytes() + b"\0")
    before = recording(study).lines
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("HZTUNE_CORE", str(another))
        with pytest.raises(UsageError, match="belongs to another study"):
            opened(study, REQUEST)
    assert recording(study).lines == before


def test_samples_of_a_program_are_refused_when_it_was_built_anew(tmp_path: Path) -> None:
    program = tmp_path / "program"
    request = TuneRequest(program=Program((str(program),)))
    shutil.copy("/bin/echo", program)
    opened(tmp_path, request)
    shutil.copy("/bin/cat", program)
    with pytest.raises(UsageError, match="belongs to another study"):
        opened(tmp_path, request)
