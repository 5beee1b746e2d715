"""Every process proves which allocator it runs on and with which configuration; real processes."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from pathlib import Path
from threading import Event, Thread

import pytest

from hztune import allocator, artifacts, params
from hztune.allocator import live
from hztune.measure import Arm, Outcome
from hztune.measure.identity import AllocatorIdentity, Fault
from hztune.measure.program import Metric, Program, bench_program
from hztune.measure.turns import Tempo, TurnExecutor
from hztune.measure.whole import RunExecutor
from hztune.workload import WorkloadSpec

UNCHANGED = Arm("none")
DEFAULT = Arm("hz")
CANDIDATE = Arm.of("hz", {"magazine_cap": 512})
FOREIGN = [each.name for each in allocator.available() if each.name not in ("none", "hz")]
QUICK = Tempo(turn_ms=10, skip_ms=1, warmup_ms=20)


class Meddler(AllocatorIdentity):
    """A wrapper between hztune and the target that changes variables on the way."""

    def __init__(self, changes: dict[str, str | None]) -> None:
        super().__init__()
        self._changes = changes

    def prepare(self, arm: Arm) -> dict[str, str] | Fault:
        prepared = super().prepare(arm)
        assert isinstance(prepared, dict)
        meddled = {**prepared, **self._changes}
        return {name: value for name, value in meddled.items() if value is not None}


def spec() -> WorkloadSpec:
    return WorkloadSpec.from_text("remote", threads=2)


def by_turns(*arms: Arm, identity: AllocatorIdentity | None = None) -> tuple[Outcome, ...]:
    executor = TurnExecutor(spec(), seed=1, tempo=QUICK, identity=identity)
    return executor.measure(arms, role="search", rounds=8, number=0).outcomes


def by_runs(*arms: Arm, identity: AllocatorIdentity | None = None) -> tuple[Outcome, ...]:
    program = bench_program(spec(), seconds=0.05)
    executor = RunExecutor(program, seed=1, identity=identity, warmups=0)
    return executor.measure(arms, role="search", rounds=1, number=0).outcomes


WAYS = pytest.mark.parametrize("measure", [by_turns, by_runs])


@pytest.mark.parametrize("measure", [by_turns, by_runs])
def test_every_allocator_is_proved(measure) -> None:  # type: ignore[no-untyped-def]
    outcomes = measure(UNCHANGED, *map(Arm, FOREIGN), DEFAULT, CANDIDATE)
    assert [(each.status, each.detail) for each in outcomes] == [("ok", "")] * len(outcomes)
    assert all(outcome.ops_per_s > 0 for outcome in outcomes)
    default = outcomes[-2]
    assert default.counters["refills"] > 0
    assert default.facts["ops"] > 0 and default.facts["minor_faults"] >= 0
    assert default.rss_peak_kb > default.live_kb


MEDDLED: dict[str, tuple[Arm, dict[str, str | None], str, str]] = {
    "a lost preload": (CANDIDATE, {"LD_PRELOAD": None}, "wrong_allocator", "libc"),
    "a changed value": (CANDIDATE, {"HZ_MAGAZINE_CAP": "64"}, "wrong_config", "magazine_cap=512"),
    "a lost one": (CANDIDATE, {"HZ_MAGAZINE_CAP": None}, "wrong_config", "magazine_cap=512"),
    "an added one": (DEFAULT, {"HZ_DEPOT_LOCK": "spin"}, "wrong_config", "depot_lock"),
    "a refused one": (DEFAULT, {"HZ_MAGAZINE_CAP": "3"}, "rejected", "HZ_MAGAZINE_CAP"),
}


@WAYS
@pytest.mark.parametrize("name", MEDDLED)
def test_what_was_changed_on_the_way_is_noticed(measure, name: str) -> None:  # type: ignore[no-untyped-def]
    arm, changes, status, detail = MEDDLED[name]
    outcome = measure(arm, identity=Meddler(changes))[0]
    assert outcome.status == status
    assert detail in outcome.detail


def test_a_configuration_that_the_core_refuses_is_not_even_started() -> None:
    bad = Arm.of("hz", {"magazine_cap": params.find("magazine_cap").low - 1})
    prepared = AllocatorIdentity().prepare(bad)
    assert isinstance(prepared, Fault)
    assert prepared.status == "rejected"


def test_the_user_s_variables_are_today_s_state_and_no_part_of_an_arm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    monkeypatch.setenv("HZ_MAGAZINE_CAP", "64")
    monkeypatch.setenv("UNRELATED", "kept")
    proof = AllocatorIdentity()
    assert not {"MALLOC_ARENA_MAX", "HZ_MAGAZINE_CAP"} & proof.base.keys()
    assert proof.base["UNRELATED"] == "kept"
    unchanged, default = proof.prepare(UNCHANGED), proof.prepare(DEFAULT)
    assert isinstance(unchanged, dict) and isinstance(default, dict)
    assert unchanged["MALLOC_ARENA_MAX"] == "1"
    assert not {"MALLOC_ARENA_MAX", "HZ_MAGAZINE_CAP"} & default.keys()


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


@pytest.mark.parametrize("clock", ["hyperfine", "hz-launch"])
def test_of_all_processes_of_a_run_only_the_program_has_hz_mapped(
    clock: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if clock == "hz-launch":
        monkeypatch.setattr("hztune.measure.launch.hyperfine", lambda: None)
    library, chain, maps = os.path.realpath(artifacts.library()), tmp_path / "chain", "maps"
    hooks = {name: f"cat /proc/self/maps /proc/$$/maps > {tmp_path / maps}-{name}"
             for name in ("prepare", "cleanup", "check", "metric")}  # fmt: skip
    program = Program(
        (sys.executable, "-c", ANCESTORS, str(chain), str(os.getpid()), library),
        prepare=hooks["prepare"],
        cleanup=hooks["cleanup"],
        check=hooks["check"],
        rate=Metric(command=f"{hooks['metric']}; echo 1"),
    )
    block = RunExecutor(program, seed=1, warmups=0).measure(
        [DEFAULT], role="aa", rounds=1, number=0
    )
    assert block.control.ok, block.control
    itself, *above = [line.split() for line in chain.read_text().splitlines()]
    assert itself[1] == "True"
    assert {Path(path).name for path, _ in above} >= {"hz-launch", clock}
    assert {mapped for _, mapped in above} == {"False"}
    for name in hooks:
        told = Path(f"{tmp_path / maps}-{name}").read_text()
        assert "/cat" in told and library not in told


def test_of_all_processes_of_a_block_by_turns_only_hz_bench_has_hz_mapped() -> None:
    library, seen, ended = os.path.realpath(artifacts.library()), set(), Event()

    def look() -> None:
        while not ended.is_set():
            for pid in live.descendants(os.getpid()):
                with contextlib.suppress(OSError):
                    maps = Path("/proc", str(pid), "maps").read_text()
                    seen.add((Path(os.readlink(f"/proc/{pid}/exe")).name, library in maps))

    watcher = Thread(target=look)
    watcher.start()
    try:
        executor = TurnExecutor(spec(), seed=1, tempo=QUICK)
        block = executor.measure([DEFAULT, CANDIDATE], role="search", rounds=30, number=0)
    finally:
        ended.set()
        watcher.join()
    assert block.control.ok
    mapped = {name for name, is_mapped in seen if is_mapped}
    assert mapped - {"true"} == {"hz-bench"}  # `true` is what an allocator is asked through
    assert ("hz-turns", False) in seen


def test_a_block_by_turns_leaves_no_process_and_no_descriptor() -> None:
    before = set(os.listdir("/proc/self/fd"))
    by_turns(DEFAULT, CANDIDATE)
    assert set(os.listdir("/proc/self/fd")) == before
    names = [path.read_text().strip() for path in Path("/proc").glob("[0-9]*/comm")]
    parents = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text()
    assert parents.strip() == "", names


# ---- what stands between hztune and the program --------------------------------------------------

ONE_SETTING: dict[str, dict[str, params.Value]] = {
    "glibc": {"arena_max": 2},
    "jemalloc": {"narenas": 2},
    "mimalloc": {"purge_delay": 20},
    "tcmalloc": {"transfer_num_obj": 64},
    "hz": {"magazine_cap": 512},
}


def of_script(name: str, text: str) -> Outcome:
    """What one run of a shell script shows, with one setting of the allocator `name`."""
    program = Program(("sh", "-c", text), timeout_s=20.0)
    executor = RunExecutor(program, seed=1, warmups=0)
    arm = Arm.of(name, ONE_SETTING.get(name, {}))
    return executor.measure([arm], role="search", rounds=1, number=0).control


@pytest.mark.parametrize("name", ["glibc", "tcmalloc", "hz"])
def test_a_program_that_hands_everything_on_is_measured(name: str) -> None:
    outcome = of_script(name, "sleep 0.1; exec sleep 0.1")
    assert (outcome.status, outcome.detail) == ("ok", "")


@pytest.mark.parametrize("name", sorted(ONE_SETTING))
def test_a_wrapper_that_drops_one_setting_is_a_wrong_configuration(name: str) -> None:
    installed = allocator.get(name).installed()
    (variable,) = allocator.get(name).environment(ONE_SETTING[name], installed, preload=False)
    outcome = of_script(name, f"unset {variable}; exec sleep 0.2")
    assert outcome.status == "wrong_config"
    assert "look for a wrapper" in outcome.detail or "did not say" in outcome.detail


def test_a_wrapper_that_adds_a_setting_is_a_wrong_configuration() -> None:
    outcome = of_script("tcmalloc", "export TCMALLOC_RELEASE_RATE=5; exec sleep 0.2")
    assert outcome.status == "wrong_config"
    assert "TCMALLOC_RELEASE_RATE" in outcome.detail


@pytest.mark.parametrize("name", ["glibc", "mimalloc", "hz"])
def test_a_child_with_another_library_is_a_wrong_allocator(name: str) -> None:
    other = "LD_PRELOAD=libjemalloc.so.2" if name == "glibc" else "LD_PRELOAD="
    outcome = of_script(name, f"{other} sleep 0.2; true")
    assert outcome.status == "wrong_allocator"
    assert "has its malloc from" in outcome.detail


def test_a_preloaded_allocator_comes_before_the_one_that_a_program_is_linked_with() -> None:
    assert shutil.which("redis-server"), "install it: apt-get install redis-server"
    for name in ("jemalloc", "hz"):
        outcome = of_script(name, "timeout 0.3 redis-server --port 0 --save '' >&2; true")
        assert (outcome.status, outcome.detail) == ("ok", "")
