"""hz-bench: every workload keeps its shape, whatever the allocator, and rests where it is asked."""

from __future__ import annotations

import json
import subprocess
from collections import Counter, defaultdict
from itertools import groupby
from pathlib import Path

import pytest

from .conftest import DEADLINE_S, MARKED

NAMES = [
    *("larson", "remote", "pipeline", "xmalloc", "lifo", "fifo", "random", "interleaved", "mixed"),
    *("mstress", "rptest", "sh6", "sh8", "alloctest", "cache-scratch", "cache-thrash", "large"),
    *("threads", "burst-idle", "kv", "app"),
]
NOT_STEADY = {"burst-idle"}
ONE_SIZE = ("--min_size", MARKED, "--max_size", MARKED)
TWO_THREADS_AT_LEAST = {"pipeline", "xmalloc", "sh8"}
OPS = {"threads": 200, "cache-scratch": 5000, "cache-thrash": 5000, "sh6": 5000, "sh8": 5000}
HURRY = {
    "burst-idle": ("--idle", 0, "--blocks", 2000),
    "alloctest": ("--items", 500),
    "larson": ("--slots", 500),
}


def words(name, threads):
    """A short run of fixed work."""
    alone = ("--remote", 0) if name == "remote" and threads == 1 else ()
    ops = OPS.get(name, 20000)
    return [name, "--threads", threads, "--ops", ops, *alone, *HURRY.get(name, ())]


def listing(programs):
    return json.loads(programs.bench("--list").stdout)["workloads"]


def test_the_list_names_every_workload_once(programs):
    assert [workload["name"] for workload in listing(programs)] == [*NAMES, "trace"]


def test_the_list_documents_everything(programs):
    for workload in listing(programs)[:-1]:
        assert workload["source"] and "An operation is" in workload["doc"]
        assert workload["steady"] is (workload["name"] not in NOT_STEADY)
        assert workload["min_threads"] == (2 if workload["name"] in TWO_THREADS_AT_LEAST else 1)
        for param in workload["params"]:
            assert param["doc"] and "unit" in param
            if "choices" in param:
                assert param["default"] in param["choices"]
            else:
                assert param["low"] <= param["default"] <= param["high"]


def test_every_setting_runs_with_the_values_it_names(programs):
    for workload in listing(programs):
        for setting in workload["settings"]:
            result = programs.result(
                f"{workload['name']}@{setting['name']}", "--threads", 2, "--ops", 200
            )
            assert result["setting"] == setting["name"]
            assert setting["values"].items() <= result["params"].items()


@pytest.fixture
def requests(witness):
    """The sizes that each thread of a run asks for, one after the other, whichever thread it is."""

    def of_threads(*line):
        sizes = defaultdict(list)
        for call in witness(*line, least=1):
            if call.kind in ("malloc", "realloc"):
                sizes[call.thread].append(call.size)
        return sorted(sizes.values())

    return of_threads


@pytest.mark.parametrize("threads", [2, 32])
@pytest.mark.parametrize("name", NAMES)
def test_a_run_asks_for_the_same_however_its_threads_wait_for_each_other(requests, name, threads):
    one, other = (requests(*words(name, threads)) for _ in range(2))
    assert one == other and len(one) >= threads // 2, "consumers ask for nothing"


@pytest.mark.parametrize("name", ["remote", "mixed"])
def test_the_seed_decides_what_each_thread_asks_for(requests, name):
    first, again, other = (requests(*words(name, 2), "--seed", seed) for seed in (5, 5, 6))
    assert first == again != other
    assert first[-1] != first[-2], "two threads ask for different blocks"


@pytest.mark.parametrize(
    ("line", "share"),
    [
        *((f"remote --ws 10 --remote {share} --fan {fan}", share) for share in (0, 50, 100)
          for fan in ("next", "all")),
        ("remote@main --ws 10 --mailbox 2", 50), ("pipeline", 100), ("xmalloc", 100),
    ],
)  # fmt: skip
def test_the_remote_share_is_what_was_asked_for(witness, line, share):
    """A tiny mailbox makes senders wait, and not free; consumers free all."""
    limits = () if line == "xmalloc" else ONE_SIZE
    least = 8 if line == "xmalloc" else MARKED
    calls = witness(*line.split(), *limits, "--threads", 8, "--ops", 100000, least=least)
    givers, frees, remote = {}, 0, 0
    for call in calls:
        if call.kind != "free":
            givers[call.address] = call.thread
        else:
            frees += 1
            remote += givers.pop(call.address) != call.thread
    assert 100 * remote / frees == pytest.approx(share, abs=0.5)


@pytest.mark.parametrize(
    "line", ["pipeline --threads 2 --queue 4", "pipeline --threads 5", "xmalloc --threads 2"]
)
def test_the_last_blocks_on_their_way_are_counted(programs, line):
    counts = {programs.result(*line.split(), "--ops", 4000)["ops"] for _ in range(3)}
    assert counts == {4000}


def test_live_bytes_of_remote_are_bounded_by_slots_and_mailboxes(programs):
    result = programs.result("remote", "--threads", 8, "--ws", 100, "--mailbox", 16, "--ops", 10**6)
    assert 0 < result["live_peak_kb"] * 1024 <= 8 * (100 + 16 + 1) * 2048


def test_live_bytes_of_larson_are_its_slots(programs):
    result = programs.result("larson", "--threads", 4, "--slots", 5000, "--ops", 200000)
    assert result["live_peak_kb"] * 1024 == pytest.approx(4 * 5000 * (8 + 1024) / 2, rel=0.03)


@pytest.mark.parametrize(
    ("line", "births"),
    [("larson --threads 3 --slots 100 --rounds 2 --ops 6000", 6000 / (100 * 2)),
     ("threads --threads 2 --ops 300", 300)],
)  # fmt: skip
def test_threads_are_born_when_others_end(witness, line, births):
    taken = {call.thread for call in witness(*line.split(), *ONE_SIZE) if call.kind == "malloc"}
    assert len(taken) == births


def test_app_has_the_sizes_of_applications(witness):
    sizes = [call.size for call in witness("app", "--threads", 1, "--ops", 50000, least=16)]
    assert share(sizes, 16, 257) == pytest.approx(0.80, abs=0.02)
    assert share(sizes, 2049, 1 << 16) == pytest.approx(0.05, abs=0.01)


def test_uniform_sizes_are_all_equally_likely(witness):
    limits = ("--min-size", 64, "--max-size", 1023, "--threads", 1, "--ops", 50000)
    sizes = [call.size for call in witness("larson", *limits, least=64)]
    for least in (64, 128, 256, 512):
        assert share(sizes, least, 2 * least) == pytest.approx(least / 960, abs=0.01)


def share(sizes, least, beyond):
    """How many of them lie between two limits."""
    return sum(least <= size < beyond for size in sizes) / len(sizes)


def test_every_page_of_a_block_is_touched(programs):
    base = ("alloctest", "--items", 500, "--min-size", 100000, "--max-size", 100001)
    result = programs.result(*base, "--sizes", "uniform", "--threads", 1, "--ops", 500)
    assert result["rss_peak_kb"] > 0.9 * 500 * 100000 // 1024


def test_a_burst_reports_its_memory_while_it_idles(programs):
    result = programs.result("burst-idle", "--threads", 2, "--idle", 0, "--ops", 200000)
    assert 0 < result["rss_idle_kb"] <= result["rss_peak_kb"] + 1024


def test_a_run_for_a_time_reports_what_it_counted(programs):
    result = programs.result("kv", "--threads", 2, "--seconds", 0.2, "--warmup", 0)
    assert result["seconds"] >= 0.2
    assert result["ops_per_s"] == pytest.approx(result["ops"] / result["seconds"], rel=1e-6)
    assert 0 < result["cpu_share"] < 1.5
    assert "latency" not in result, "a plain run does not time its calls"


def test_latencies_are_ordered_and_cover_every_call(programs):
    result = programs.result("lifo", "--threads", 2, "--ops", 50000, "--latency")
    for call in ("malloc", "free"):
        times = result["latency"][call]
        assert times["count"] == 50000
        values = [times[key] for key in ("p50_ns", "p99_ns", "p999_ns", "p9999_ns", "max_ns")]
        assert [1, *values] == sorted([1, *values])


def test_the_threads_of_burst_idle_allocate_together_and_free_together(witness):
    work = ("--threads", 4, "--blocks", 400, "--ops", 3 * 2 * 404, "--idle", 0)
    kinds = [call.kind for call in witness("burst-idle", *work, *ONE_SIZE)]
    halves = [(kind, len(list(calls))) for kind, calls in groupby(kinds)]
    assert halves == [("malloc", 404), ("free", 404)] * 4, "three bursts, and the last one"


@pytest.mark.parametrize(
    "line", ["larson --slots 20", "remote --ws 20 --mailbox 2", "sh8 --kept 5"]
)
def test_everything_is_freed_in_the_end(witness, line):
    calls = witness(*line.split(), *ONE_SIZE, "--threads", 3, "--ops", 3000)
    kinds = Counter(call.kind for call in calls)
    assert kinds["malloc"] == kinds["free"] > 100


# ---- rounds of work and rest ---------------------------------------------------------------------


REST = "hz-bench: at rest\n"


@pytest.mark.parametrize("name", NAMES)
def test_a_workload_works_and_rests_as_often_as_was_asked(programs, name):
    once = programs.result(*words(name, 2))
    done = programs.bench(*words(name, 2), "--rests", 3)
    assert done.returncode == 0, done.stderr
    *rests, told = done.stdout.splitlines(keepends=True)
    assert rests == [REST] * 3
    assert json.loads(told)["ops"] == 3 * once["ops"]


def test_it_rests_until_it_gets_a_line_and_its_threads_live_on(programs):
    words = [str(programs.bench_path), "larson", "--threads", "3", "--ops", "3000", "--rests", "2"]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        for _ in range(2):
            assert process.stdout.readline() == REST
            assert len(list(Path("/proc", str(process.pid), "task").iterdir())) == 1 + 3
            process.stdin.write("\n")
            process.stdin.flush()
        process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
