"""ArmRecord of one study are never mixed with those of another: whatever differs is refused."""

from __future__ import annotations

import dataclasses
import shutil
from typing import Any

import pytest

from hztune import artifacts
from hztune.errors import UsageError
from hztune.machine import Machine
from hztune.measure.program import Program
from hztune.quota import Quota
from hztune.rests import RestPlan
from hztune.store.log import LocalStudy, recording
from hztune.tuning.request import TuneRequest, understand
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
    "container": {"workload": LARSON.within(Quota(1.0, None))},
    "rounds of rest": {"workload": LARSON.resting(RestPlan(2.0, 3))},
    "allocator": {"allocator": "glibc"},
    "search space": {"space": "narrow.toml"},
    "memory limit": {"max_rss": "1.10x"},
    "seed": {"seed": 2},
    "target": {"workload": None, "program": PROGRAM},
}


@pytest.fixture
def study(tmp_path):
    """The results directory of the study that was asked for."""
    folder = tmp_path / "results"
    folder.mkdir()
    opened(folder, REQUEST)
    return folder


def opened(folder, request, machine=MACHINE):
    LocalStudy(folder, understand(request).identity, machine, resume=True).close()


def refused(folder, request, machine=MACHINE):
    """Requires that the samples are refused to a study, in words, and left as they are."""
    before = recording(folder).lines
    with pytest.raises(UsageError, match="belongs to another study"):
        opened(folder, request, machine)
    assert recording(folder).lines == before


@pytest.mark.parametrize("what", REQUESTS)
def test_samples_are_refused_to_another_study(study, tmp_path, what):
    space = tmp_path / "narrow.toml"
    space.write_text('schema = 1\nallocator = "hz"\n[parameters.depot_lock]\n')
    changes = {**REQUESTS[what], **({"space": str(space)} if what == "search space" else {})}
    refused(study, dataclasses.replace(REQUEST, **changes))


def test_samples_are_refused_to_another_machine(study):
    refused(study, REQUEST, dataclasses.replace(MACHINE, cpu="another"))


@pytest.mark.parametrize("name", ["libhz.so", "hz-bench"])
def test_samples_are_refused_to_another_build(study, name, tmp_path, monkeypatch):
    another = tmp_path / "core"
    for file in (artifacts.library(), artifacts.bench(), artifacts.launch(), artifacts.turns()):
        (another / file.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copy(file.resolve(), another / file.parent.name / file.name)
    changed = next(another.rglob(name))
    changed.write_bytes(changed.read_bytes() + b"\0")
    monkeypatch.setenv("HZTUNE_CORE", str(another))
    refused(study, REQUEST)


def test_samples_of_a_program_are_refused_when_it_was_built_anew(tmp_path):
    program = tmp_path / "program"
    request = TuneRequest(program=Program((str(program),)))
    shutil.copy("/bin/echo", program)
    opened(tmp_path, request)
    shutil.copy("/bin/cat", program)
    refused(tmp_path, request)
