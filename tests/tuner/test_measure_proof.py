"""Every process proves which allocator it runs on and with which configuration; real processes."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from hztune import allocator, artifacts, params
from hztune.blocks import Arm
from hztune.measure.identity import AllocatorIdentity, Fault
from hztune.measure.program import Metric, Program
from hztune.measure.turns import Tempo, TurnExecutor, bench_program
from hztune.measure.whole import RunExecutor
from hztune.workload import WorkloadSpec

UNCHANGED, DEFAULT, CANDIDATE = Arm("none"), Arm("hz"), Arm.of("hz", {"magazine_cap": 512})
FOREIGN = [each.name for each in allocator.available() if each.name not in ("none", "hz")]


class Meddler(AllocatorIdentity):
    """A wrapper between hztune and the target that changes variables on the way."""

    def __init__(self, changes):
        super().__init__()
        self._changes = changes

    def prepare(self, arm):
        prepared = super().prepare(arm)
        meddled = {**prepared, **self._changes}
        return {name: value for name, value in meddled.items() if value is not None}


def by_turns(*arms, rounds=8, identity=None):
    spec, quick = WorkloadSpec.from_text("remote", threads=2), Tempo(10, 1, 20)
    executor = TurnExecutor(spec, seed=1, tempo=quick, identity=identity)
    return executor.measure(arms, role="search", rounds=rounds, number=0).outcomes


def of_program(program, *arms, identity=None):
    executor = RunExecutor(program, seed=1, identity=identity, warmups=0)
    return executor.measure(arms, role="search", rounds=1, number=0).outcomes


def by_runs(*arms, identity=None):
    # with less time, a busy machine lets a program do nothing
    program = bench_program(WorkloadSpec.from_text("remote", threads=2), seconds=0.2)
    return of_program(program, *arms, identity=identity)


WAYS = pytest.mark.parametrize("measure", [by_turns, by_runs])


def of_this_process():
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text()
    return set(os.listdir("/proc/self/fd")), children  # others may have left some


@WAYS
def test_every_allocator_is_proved_and_nothing_is_left(measure):
    before = of_this_process()
    outcomes = measure(UNCHANGED, *map(Arm, FOREIGN), DEFAULT, CANDIDATE)
    assert [(each.status, each.detail) for each in outcomes] == [("ok", "")] * len(outcomes)
    assert all(outcome.ops_per_s > 0 for outcome in outcomes)
    default = outcomes[-2]
    assert default.counters["refills"] > 0
    assert default.facts["ops"] > 0 and default.facts["minor_faults"] >= 0
    assert default.rss_peak_kb > default.live_kb
    assert of_this_process() == before


MEDDLED = {
    "a lost preload": (CANDIDATE, {"LD_PRELOAD": None}, "wrong_allocator", "libc"),
    "a changed value": (CANDIDATE, {"HZ_MAGAZINE_CAP": "64"}, "wrong_config", "magazine_cap=512"),
    "a lost one": (CANDIDATE, {"HZ_MAGAZINE_CAP": None}, "wrong_config", "magazine_cap=512"),
    "an added one": (DEFAULT, {"HZ_DEPOT_LOCK": "spin"}, "wrong_config", "depot_lock"),
    "a refused one": (DEFAULT, {"HZ_MAGAZINE_CAP": "3"}, "rejected", "HZ_MAGAZINE_CAP"),
}


@WAYS
@pytest.mark.parametrize(("arm", "changes", "status", "detail"), MEDDLED.values(), ids=MEDDLED)
def test_what_was_changed_on_the_way_is_noticed(measure, arm, changes, status, detail):
    outcome = measure(arm, identity=Meddler(changes))[0]
    assert outcome.status == status
    assert detail in outcome.detail


def test_the_user_s_variables_are_today_s_state_and_no_part_of_an_arm(monkeypatch):
    for name in ("MALLOC_ARENA_MAX", "HZ_MAGAZINE_CAP", "mimalloc_purge_delay", "UNRELATED"):
        monkeypatch.setenv(name, "1")
    proof = AllocatorIdentity()
    assert not {"MALLOC_ARENA_MAX", "HZ_MAGAZINE_CAP", "mimalloc_purge_delay"} & proof.base.keys()
    assert proof.base["UNRELATED"] == "1"
    unchanged, default = proof.prepare(UNCHANGED), proof.prepare(DEFAULT)
    assert unchanged["MALLOC_ARENA_MAX"] == "1"
    assert not {"MALLOC_ARENA_MAX", "HZ_MAGAZINE_CAP"} & default.keys()
    refused = proof.prepare(Arm.of("hz", {"magazine_cap": params.find("magazine_cap").low - 1}))
    assert isinstance(refused, Fault) and refused.status == "rejected"  # it is not even started


ANCESTORS = """
import os, sys
def parent(pid):
    text = open(f"/proc/{pid}/stat").read()
    return int(text[text.rindex(")") + 2:].split()[1])
pid = os.getpid()
with open(sys.argv[1], "w") as file:  # a run that was disturbed is repeated: the last one counts
    while True:
        maps = open(f"/proc/{pid}/maps").read()
        print(os.readlink(f"/proc/{pid}/exe"), sys.argv[3] in maps, file=file)
        if pid == int(sys.argv[2]): break
        pid = parent(pid)
print(1)
"""


def test_of_all_processes_of_a_run_only_the_program_has_hz_mapped(clock, tmp_path):
    library, chain = os.path.realpath(artifacts.library()), tmp_path / "chain"
    names = ("prepare", "cleanup", "check", "metric")
    hooks = {name: f"cat /proc/self/maps /proc/$$/maps > {tmp_path}/{name}" for name in names}
    metric = Metric(command=f"{hooks.pop('metric')}; echo 1")
    argv = (sys.executable, "-c", ANCESTORS, str(chain), str(os.getpid()), library)
    (outcome,) = of_program(Program(argv, rate=metric, **hooks), DEFAULT)
    assert outcome.ok, outcome
    itself, *above = [line.split() for line in chain.read_text().splitlines()]
    assert itself[1] == "True"
    assert {Path(path).name for path, _ in above} >= {"hz-launch", clock}
    assert {mapped for _, mapped in above} == {"False"}
    for name in names:
        told = (tmp_path / name).read_text()
        assert "/cat" in told and library not in told


# ---- what stands between hztune and the program --------------------------------------------------

ONE_SETTING = {
    "glibc": {"arena_max": 2},
    "jemalloc": {"narenas": 2},
    "mimalloc": {"purge_delay": 20},
    "tcmalloc": {"transfer_num_obj": 64},
    "hz": {"magazine_cap": 512},
}
HANDED = "sleep 0.1; exec sleep 0.1"
UNSET = "unset {variable}; exec sleep 0.2"
CHILD = "LD_PRELOAD={other} sleep 0.2; true"
REDIS = "timeout 0.3 redis-server --port 0 --save '' >&2; true"  # linked with jemalloc
ADDED = "export TCMALLOC_RELEASE_RATE=5; exec sleep 0.2"
SCRIPTS = [
    *[(name, HANDED, "ok", "^$") for name in ("glibc", "tcmalloc", "hz")],
    *[(name, UNSET, "wrong_config", "look for a wrapper|did not say") for name in ONE_SETTING],
    *[(n, CHILD, "wrong_allocator", "has its malloc from") for n in ("glibc", "mimalloc", "hz")],
    *[(name, REDIS, "ok", "^$") for name in ("jemalloc", "hz")],
    ("tcmalloc", ADDED, "wrong_config", "TCMALLOC_RELEASE_RATE"),
]


@pytest.mark.parametrize(("name", "script", "status", "said"), SCRIPTS)
def test_what_a_wrapper_does_to_the_settings_or_the_library_is_noticed(name, script, status, said):
    assert script != REDIS or shutil.which("redis-server"), "apt-get install redis-server"
    adapter, setting = allocator.get(name), ONE_SETTING[name]
    (variable,) = adapter.environment(setting, adapter.installed(), preload=False)
    other = "libjemalloc.so.2" if name == "glibc" else ""
    words = ("sh", "-c", script.replace("{variable}", variable).replace("{other}", other))
    (outcome,) = of_program(Program(words, timeout_s=20.0), Arm.of(name, setting))
    assert outcome.status == status
    assert re.search(said, outcome.detail)
