"""What hz would meet on more CPUs: the doctor's file, and the model of experiments/scale."""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from math import factorial
from pathlib import Path
from typing import Any

import pytest

from hztune.errors import HztuneError, StoppedByUser
from hztune.scale import LockUse, Scaling, measure_scaling, scaling

ROOT = Path(__file__).parents[2]
MODEL = runpy.run_path(str(ROOT / "experiments" / "scale" / "model.py"))
Station, solved = MODEL["Station"], MODEL["solved"]

USE = LockUse("depot", 3, 4.0, 0.01, 0.0, 90.0, 300.0, 0.02, 0.0, {})
ROW = Scaling("larson", 4, 1, 1, 2e6, 0.9, 1.5e6, 0.1, (USE,), {})


def doctor(core: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`hztune doctor --scale` on two CPUs."""
    cpus = ",".join(map(str, sorted(os.sched_getaffinity(0))[:2]))
    return subprocess.run(
        ["taskset", "-c", cpus, sys.executable, "-m", "hztune", "doctor", "--scale", *words],
        env={**os.environ, "HZTUNE_CORE": str(core)},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_doctor_prints_the_curve_and_the_locks_and_saves_them(
    core_build: Path, tmp_path: Path
) -> None:
    done = doctor(core_build, tmp_path, "--seconds", "0.05")
    assert (done.returncode, done.stderr) == (0, "")
    saved: dict[str, Any] = json.loads((tmp_path / "hz-scale.json").read_text())
    assert saved["schema"] == "hztune-scale/1"
    assert saved["machine"]["cores"] >= 1
    found = {(row["workload"], row["threads"]) for row in saved["rows"]}
    assert {("larson", 1), ("remote remote=0", 1), ("mstress", 1)} <= found
    larson = next(row for row in saved["rows"] if row["workload"] == "larson")
    assert {"depot", "heaps"} <= {lock["name"] for lock in larson["locks"]}
    assert larson["nodes"] >= 1
    assert done.stdout.count("million operations a second") == len(saved["rows"])
    assert done.stdout.endswith("saved in hz-scale.json\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--json"], "--json does not go with --scale"),
        (["--pid", "1"], "--pid does not go with --scale"),
        (["--output", "/no/such/place.json"], "cannot write '/no/such/place.unfinished.json'"),
        (["--output", "/dev/null"], "cannot write '/dev/null': it is not a regular file"),
    ],
)
def test_the_doctor_says_what_it_cannot_do(
    core_build: Path, tmp_path: Path, words: list[str], said: str
) -> None:
    done = doctor(core_build, tmp_path, *words)
    assert done.returncode in (1, 2)
    assert said in done.stderr


@pytest.mark.parametrize(
    ("failure", "raised", "said"),
    [
        (KeyboardInterrupt(), StoppedByUser, "interrupted; 2 of 7 rows are in "),
        (HztuneError("larson: it crashed"), HztuneError, "larson: it crashed; 2 of 7 rows are in "),
    ],
)
def test_a_measurement_that_is_cut_short_keeps_its_rows_and_the_last_whole_result(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failure: BaseException,
    raised: type[HztuneError],
    said: str,
) -> None:
    answers = iter([ROW, ROW])

    def a_row(*arguments: object) -> Scaling:
        if (row := next(answers, None)) is None:
            raise failure
        return row

    monkeypatch.setattr(scaling, "_row", a_row)
    path = tmp_path / "hz-scale.json"
    path.write_text("of last year")
    with pytest.raises(raised) as caught:
        measure_scaling(path, 0.05, 2)
    unfinished = tmp_path / "hz-scale.unfinished.json"
    assert str(caught.value) == f"{said}{unfinished}"
    assert len(json.loads(unfinished.read_text())["rows"]) == 2
    assert path.read_text() == "of last year"


def test_an_interrupt_that_python_swallowed_ends_the_measurement_before_the_next_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def a_row(*arguments: object) -> Scaling:
        with suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        return ROW

    monkeypatch.setattr(scaling, "_row", a_row)
    with pytest.raises(StoppedByUser, match="1 of 7 rows"):
        measure_scaling(tmp_path / "hz-scale.json", 0.05, 2)


def test_a_row_says_how_often_and_how_long_each_lock_is_held() -> None:
    told = "\n".join(ROW.words(replace(ROW, threads=1, ops_per_s=1e6)))
    assert "larson, 4 threads, 1 shard: 2.00 million operations a second, 2.00 times" in told
    assert "lock depot: taken 4.00 times in 1000 operations" in told
    assert "the busiest one 2.00 % of the time\n" in told
    assert told.endswith("no lock was held across a system call")


def test_a_row_names_the_lock_that_limits_the_speed_and_calls_under_a_lock() -> None:
    busy = replace(USE, busiest=0.4, with_calls=3.0, calls={"hz_os_map": 3.0})
    told = "\n".join(replace(ROW, locks=(busy,), shards=4, nodes=2).words(ROW))
    assert "4 threads, 4 shards on 2 nodes: " in told
    assert "40.00 % of the time (it limits the speed)" in told
    assert "held across a system call 3.00 times in a million operations (hz_os_map 3.00)" in told


# ---- the model -----------------------------------------------------------------------------------


def test_one_thread_waits_for_nobody() -> None:
    answer = solved([Station("a", 10.0), Station("b", 5.0)], 85.0, 1)
    assert answer.ops_per_ns == pytest.approx(0.01)
    assert dict(answer.used) == pytest.approx({"a": 0.1, "b": 0.05})


@pytest.mark.parametrize("threads", [2, 5, 20])
def test_one_lock_is_the_machine_repairman(threads: int) -> None:
    """P(all think) = 1 / sum of N! / (N - n)! (D/Z)^n; the lock is in use otherwise."""
    demand, think = 10.0, 100.0
    weights = [
        factorial(threads) / factorial(threads - n) * (demand / think) ** n
        for n in range(threads + 1)
    ]
    answer = solved([Station("lock", demand)], think, threads)
    assert dict(answer.used)["lock"] == pytest.approx(1 - 1 / sum(weights))


def test_many_threads_are_as_fast_as_the_busiest_lock_lets_them() -> None:
    answer = solved([Station("fast", 1.0), Station("slow", 4.0)], 100.0, 192)
    assert answer.ops_per_ns == pytest.approx(0.25, rel=0.01)
    assert answer.used[0][0] == "slow"


LINE_NS, FAULT_NS = 40.0, 2000.0


def ns_per_op(base: dict[str, Any], run: dict[str, Any], cpus: int = 1) -> float:
    """What the model says that an operation of a thread costs."""
    speed = MODEL["predicted"](base, run, cpus, LINE_NS, FAULT_NS).ops_per_ns
    return float(min(cpus, run["threads"]) / speed)


def a_run(**changed: Any) -> dict[str, Any]:
    """A run of the ledger with one lock and one slow path."""
    lock = {"name": "depot", "class": 1, "shard": 0, "per_op": 0.01, "ns": 100.0}
    return {
        "threads": 1,
        "apart": {"cpu_ns_per_op": 50.0, "faults_per_op": 0.01},
        "faults_per_op": 0.01,
        "ways_per_op": {"program": 0.0, "hz": 0.0},
        "clock_ns": 0.0,
        "locks": [lock],
        "paths": {"hz_magazine_pop": {"per_op": 0.01, "ns": 500.0}},
        "system_calls": {},
        **changed,
    }


def test_the_run_that_a_prediction_starts_from_is_predicted_as_it_was() -> None:
    base = a_run()
    assert ns_per_op(base, base) == pytest.approx(50.0)


def test_more_slow_calls_cost_what_the_ledger_says() -> None:
    paths = {"hz_magazine_pop": {"per_op": 0.05, "ns": 500.0}}
    assert ns_per_op(a_run(), a_run(paths=paths)) == pytest.approx(50.0 + 0.04 * 500.0)


def test_more_page_faults_cost_what_one_takes() -> None:
    run = a_run(faults_per_op=0.03)
    assert ns_per_op(a_run(), run) == pytest.approx(50.0 + 0.02 * FAULT_NS)


def test_a_line_from_another_cpu_takes_half_of_what_a_pass_to_and_fro_does() -> None:
    ways = {"program": 0.2, "hz": 0.1}
    few, many = (a_run(locks=[], ways_per_op=ways, threads=threads) for threads in (2, 64))
    assert ns_per_op(a_run(), few, 1) == pytest.approx(50.0)
    assert ns_per_op(a_run(), few, 2) == pytest.approx(50.0 + 0.2 * LINE_NS / 2)
    assert ns_per_op(a_run(), many, 64) == pytest.approx(50.0 + 0.3 * LINE_NS / 2)


def test_on_many_cpus_the_way_of_its_line_makes_a_lock_the_limit() -> None:
    run = a_run(threads=64)
    answer = MODEL["predicted"](a_run(), run, 64, LINE_NS, FAULT_NS)
    demand = 0.01 * (100.0 + LINE_NS)
    assert dict(answer.used)["depot class 1 shard 0"] == pytest.approx(answer.ops_per_ns * demand)
    assert answer.ops_per_ns == pytest.approx(1 / demand, rel=0.02)
