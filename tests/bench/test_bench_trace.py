"""Replaying a trace: every call of every thread, in its order, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from . import traces
from .conftest import ALLOCATORS, DEADLINE_S, MARKED, Call, Preload, Programs, Witness, read_event
from .traces import Thread, churn, conveyor


def words_of(calls: Sequence[Call]) -> list[tuple[str, int]]:
    """Kind and size of each call."""
    return [(call.kind, call.size - MARKED) for call in calls]


# ---- what is called ------------------------------------------------------------------------------


def test_the_calls_of_a_thread_are_those_of_the_trace_in_its_order(
    witness: Witness, tmp_path: Path
) -> None:
    thread = Thread()
    thread.add("malloc", 0, MARKED + 1).add("malloc", 1, MARKED + 2).add("free", 0, MARKED + 1)
    thread.add("malloc", 0, MARKED + 3).add("realloc", 0, MARKED + 4).add("free", 0, MARKED + 4)
    thread.add("calloc", 0, MARKED + 5).add("free", 1, MARKED + 2).add("free", 0, MARKED + 5)
    path = traces.write(tmp_path / "one.hzt", [thread])
    assert words_of(witness(path, "--ops", 1)) == [
        ("malloc", 1), ("malloc", 2), ("free", 1), ("malloc", 3), ("realloc", 4), ("free", 4),
        ("calloc", 5), ("free", 2), ("free", 5),
    ]  # fmt: skip


PAIRS = {
    "malloc": "free",
    "calloc": "free_sized",
    "aligned_alloc": "free_aligned_sized",
    "memalign": "free",
    "posix_memalign": "free",
    "valloc": "free",
    "pvalloc": "free",
    "new": "delete",
    "new_nothrow": "delete_sized",
    "new_aligned": "delete_aligned",
    "new_aligned_nothrow": "delete_sized_aligned",
}
ALIGNED = {"aligned_alloc", "memalign", "posix_memalign", "new_aligned", "new_aligned_nothrow"}


def test_every_kind_of_operation_is_a_call_of_its_own(witness: Witness, tmp_path: Path) -> None:
    thread = Thread()
    for takes, ends in PAIRS.items():
        align = 8 if takes in ALIGNED else 0
        thread.add(takes, 0, MARKED + 256, align=align).add(ends, 0, MARKED + 256, align=align)
    calls = witness(traces.write(tmp_path / "kinds.hzt", [thread]), "--ops", 1)
    assert [call.kind for call in calls] == [kind for pair in PAIRS.items() for kind in pair]
    told = {call.kind: call.align for call in calls if call.align}
    assert told == dict.fromkeys(
        [*sorted(ALIGNED), "free_aligned_sized", "delete_aligned", "delete_sized_aligned"], 256
    )


def test_large_sizes_slots_and_alignments_take_two_words(witness: Witness, tmp_path: Path) -> None:
    size, slots = (3 << 20) + 5, 3000
    thread = Thread()
    for slot in range(slots):
        thread.add("malloc", slot, 8)
    thread.add("malloc", slots, size).add("memalign", slots + 1, MARKED, align=12)
    thread.add("free", slots, size).add("free", slots + 1, MARKED)
    for slot in range(slots):
        thread.add("free", slot, 8)
    calls = witness(traces.write(tmp_path / "wide.hzt", [thread]), "--ops", 1)
    assert [(call.size, call.align) for call in calls] == [
        (size, 0), (MARKED, 4096), (size, 0), (MARKED, 0)]  # fmt: skip


# ---- between threads -----------------------------------------------------------------------------


def test_a_block_that_another_thread_ends_is_ended_by_another_thread(
    witness: Witness, tmp_path: Path
) -> None:
    blocks = 3000
    threads = conveyor(blocks, size=MARKED)
    path = traces.write(tmp_path / "conveyor.hzt", threads, cells=8, handed=blocks)
    calls = witness(path, "--ops", 1)
    givers = {call.thread for call in calls if call.kind == "malloc"}
    takers = {call.thread for call in calls if call.kind == "free"}
    assert Counter(call.kind for call in calls) == {"malloc": blocks, "free": blocks}
    assert len(givers) == len(takers) == 1 and givers != takers


def test_no_more_blocks_are_on_their_way_than_there_are_cells(
    witness: Witness, tmp_path: Path
) -> None:
    path = traces.write(
        tmp_path / "three.hzt", conveyor(3000, cells=3, size=MARKED), cells=8, handed=3000
    )
    live = most = 0
    for call in witness(path, "--ops", 1):
        live += 1 if call.kind == "malloc" else -1
        most = max(most, live)
    assert 1 <= most <= 3 + 2, "one more may be in the hands of each thread"


def test_edges_order_the_threads_as_the_program_did(witness: Witness, tmp_path: Path) -> None:
    """Thread 0 starts 1, which starts 2; a block goes around, and each marks when it had it."""
    threads = [Thread(), Thread(spawned=True), Thread(spawned=True)]
    threads[0].add("malloc", 0, MARKED + 1).add("spawn", 1).add("spawn", 2)
    threads[0].add("hand", 0, 0)
    threads[1].add("fetch", 0, 0).add("realloc", 0, MARKED + 2).add("hand", 0, 8)
    threads[2].add("fetch", 0, 8).add("realloc", 0, MARKED + 3).add("hand", 0, 16)
    threads[0].add("fetch", 0, 16).add("free", 0, MARKED + 3)
    threads[0].add("join", 1).add("join", 2).add("malloc", 0, MARKED + 4)
    threads[0].add("free", 0, MARKED + 4)
    path = traces.write(tmp_path / "around.hzt", threads, cells=24, handed=3)
    calls = witness(path, "--ops", 40)
    rounds = 40 // 6 + 1
    assert words_of(calls) == rounds * [
        ("malloc", 1), ("realloc", 2), ("realloc", 3), ("free", 3), ("malloc", 4), ("free", 4)
    ]  # fmt: skip


def test_a_thread_that_was_spawned_is_a_new_one_in_every_round(
    witness: Witness, tmp_path: Path
) -> None:
    threads = [Thread().add("spawn", 1).add("join", 1), Thread(spawned=True)]
    threads[1].add("malloc", 0, MARKED).add("free", 0, MARKED)
    path = traces.write(tmp_path / "reborn.hzt", threads)
    calls = witness(path, "--ops", 10)
    assert len(calls) == 10 and len({call.thread for call in calls}) == 5


def test_a_thread_waits_for_nothing_but_what_its_words_say(
    witness: Witness, tmp_path: Path
) -> None:
    """Each of two threads waits at its end for a block that the other gives at its beginning."""
    threads = [Thread(), Thread()]
    for me in (0, 1):
        threads[me].add("malloc", 8 * me, MARKED + me, cell=True)
    for me in (0, 1):
        threads[me].add("free", 8 * (1 - me), MARKED + 1 - me, cell=True)
    path = traces.write(tmp_path / "cross.hzt", threads, cells=16, handed=2)
    assert len(witness(path, "--ops", 400)) == 400


# ---- rounds --------------------------------------------------------------------------------------


def test_blocks_that_are_left_are_freed_between_two_rounds(
    witness: Witness, tmp_path: Path
) -> None:
    threads = [Thread().add("spawn", 1), Thread(spawned=True)]
    threads[0].add("malloc", 0, MARKED).add("malloc", 1, MARKED).add("malloc", 4, MARKED, cell=True)
    threads[0].add("join", 1)
    threads[1].add("malloc", 0, MARKED).add("malloc", 1, MARKED).add("free", 0, MARKED)
    path = traces.write(tmp_path / "left.hzt", threads, cells=8)
    live = most = 0
    for call in witness(path, "--ops", 60):
        live += 1 if call.kind == "malloc" else -1
        most = max(most, live)
    assert most <= 5, "a round begins with nothing"
    assert live == 0


def test_a_run_of_fixed_work_is_whole_rounds(programs: Programs, tmp_path: Path) -> None:
    path = traces.write(tmp_path / "churn.hzt", [churn(1000), churn(500)])
    for asked, rounds in ((1, 1), (1500, 1), (1501, 2), (6000, 4)):
        result = programs.result(f"trace:{path}", "--ops", asked)
        assert result["ops"] == 1500 * rounds
        assert result["trace"]["rounds"] == rounds


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_it_runs_under_every_allocator_for_a_time(
    programs: Programs, preload: Preload, tmp_path: Path, allocator: str
) -> None:
    path = traces.write(tmp_path / "conveyor.hzt", conveyor(500), cells=8, handed=500)
    result = programs.result(f"trace:{path}", "--seconds", 0.1, **preload(allocator))
    assert result["allocator"]["name"] == allocator
    assert result["threads"] == 2 and result["ops"] > 0
    assert 0 < result["trace"]["waited_share"] < 1
    assert result["trace"] | {"calls": 1000, "handed": 500} == result["trace"]


def test_latencies_cover_every_call(programs: Programs, tmp_path: Path) -> None:
    path = traces.write(tmp_path / "conveyor.hzt", conveyor(500), cells=8, handed=500)
    latency = programs.result(f"trace:{path}", "--ops", 2000, "--latency")["latency"]
    assert latency["malloc"]["count"] == latency["free"]["count"] == 1000


# ---- memory --------------------------------------------------------------------------------------


def test_the_file_and_its_tables_are_in_no_figure_of_memory(
    programs: Programs, tmp_path: Path
) -> None:
    """The same calls by a trace that is a hundred times as long take the same memory."""
    short, long = (
        programs.result(
            f"trace:{traces.write(tmp_path / f'{n}.hzt', [churn(n)])}", "--seconds", 0.1
        )
        for n in (4000, 400_000)
    )
    assert long["own_kb"] - short["own_kb"] > 3000
    assert abs(long["rss_peak_kb"] - short["rss_peak_kb"]) < 600
    assert abs(long["rss_end_kb"] - short["rss_end_kb"]) < 600


def test_nor_are_they_in_any_figure_of_turns(programs: Programs, tmp_path: Path) -> None:
    words = ("--turn-ms", 10, "--skip-ms", 1, "--warmup-ms", 10, "--rounds", 2)
    seen = []
    for n in (4000, 400_000):
        path = traces.write(tmp_path / f"{n}.hzt", [churn(n)])
        done = programs.turns(*words, "--arm", "a", "--", programs.bench_path, f"trace:{path}")
        events = [read_event(line) for line in done.stdout.splitlines()]
        (end,) = (each for each in events if each["event"] == "exit")
        now = max(each["rss_kb"] for each in events if each["event"] == "turn")
        seen.append((end["result"]["own_kb"], now, end["rss_peak_kb"]))
    (short, *short_kb), (long, *long_kb) = seen
    assert long - short > 3000
    assert all(abs(a - b) < 600 for a, b in zip(short_kb, long_kb, strict=True)), seen


@pytest.mark.parametrize(
    ("touch", "touched", "least_kb", "most_kb"),
    [("head", None, 7000, 9500), ("none", None, -900, 900), ("full", 4 << 20, 3200, 5000),
     ("head", 4 << 20, 3200, 5000), ("none", 4 << 20, -900, 900)],
)  # fmt: skip
def test_blocks_are_touched_as_recorded_or_by_the_rule(
    programs: Programs, tmp_path: Path, touch: str, touched: int | None, least_kb: int, most_kb: int
) -> None:
    thread, small = Thread(), Thread().add("malloc", 0, 8 << 20).add("free", 0, 8 << 20)
    if touched is not None:
        thread.add("touch", 0, touched)
    thread.add("malloc", 0, 8 << 20).add("free", 0, 8 << 20)
    taken = [
        programs.result(f"trace:{traces.write(tmp_path / 't.hzt', [each])}", "--touch", how,
                        "--ops", 1)["rss_peak_kb"]
        for each, how in ((small, "none"), (thread, touch))
    ]  # fmt: skip
    assert least_kb <= taken[1] - taken[0] <= most_kb


# ---- pace and turns ------------------------------------------------------------------------------


@pytest.mark.parametrize(("pace", "least_s"), [(100, 0.1), (200, 0.05)])
def test_the_pace_of_the_recording_is_kept(
    programs: Programs, tmp_path: Path, pace: int, least_s: float
) -> None:
    thread = Thread()
    for _ in range(20):
        thread.add("malloc", 0, 64).add("free", 0, 64, delta_ns=5_000_000)
    path = traces.write(tmp_path / "paced.hzt", [thread], flags=traces.HAS_TIME)
    assert programs.result(f"trace:{path}", "--ops", 1, "--pace", pace)["seconds"] >= least_s


def test_a_trace_stops_and_goes_on_in_turns(
    programs: Programs, preload: Preload, tmp_path: Path
) -> None:
    threads = conveyor(400)
    path = traces.write(tmp_path / "turns.hzt", threads, cells=8, handed=400)
    words = ("--turn-ms", 10, "--skip-ms", 1, "--warmup-ms", 10, "--rounds", 6)
    arms = [word for name in ("hz", "jemalloc") for word in (
        "--arm", name, "--env", f"LD_PRELOAD={preload(name)['LD_PRELOAD']}")]  # fmt: skip
    done = programs.turns(*words, *arms, "--", programs.bench_path, f"trace:{path}")
    events = [read_event(line) for line in done.stdout.splitlines()]
    turns = [each for each in events if each["event"] == "turn"]
    assert len(turns) == 12
    for name in ("hz", "jemalloc"):  # beside other work, a turn of 10 ms may get no CPU at all
        assert sum(turn["ops"] > 0 for turn in turns if turn["arm"] == name) >= 2
    assert all(0 < turn["rss_kb"] < 30000 for turn in turns)
    for ended in (each for each in events if each["event"] == "exit"):
        assert ended["status"] == "ok", ended
        assert ended["result"]["trace"]["rounds"] > 0


def test_a_turn_of_whole_rounds_ends_where_a_round_does(programs: Programs, tmp_path: Path) -> None:
    """Even where a turn is over before all threads have heard of it."""
    late = [churn(2000), churn(2000)]
    for thread in late:
        thread.spawned = True
    spawning = Thread().add("spawn", 3).add("spawn", 4).add("join", 3)
    crowd = [churn(40, live=10) for _ in range(200)]
    threads = [*conveyor(4000), spawning, *late, *crowd]
    calls = sum(thread.calls for thread in threads)
    path = traces.write(tmp_path / "whole.hzt", threads, cells=8, handed=4000)
    words = ("--whole", "--turn-ms", 1, "--skip-ms", 0, "--warmup-ms", 1, "--rounds", 6)
    arms = ("--arm", "a", "--arm", "b")
    done = programs.turns(*words, *arms, "--", programs.bench_path, f"trace:{path}")
    turns = [e for e in map(json.loads, done.stdout.splitlines()) if e["event"] == "turn"]
    assert len(turns) == 12, done.stderr
    rounds = [turn["ops"] / calls for turn in turns]
    assert all(each >= 1 and each.is_integer() for each in rounds), rounds


def test_what_has_no_rounds_gets_no_turns_of_whole_rounds(programs: Programs) -> None:
    done = programs.turns("--whole", "--arm", "a", "--", programs.bench_path, "kv")
    assert "kv has no rounds" in done.stdout


def test_players_that_wait_sleep_through_the_turns_of_others(
    programs: Programs, tmp_path: Path
) -> None:
    """Many threads wait for one that works; they use no time while another arm has its turn."""
    threads = [churn(400_000)]
    for number in range(1, 40):
        threads.append(Thread(spawned=True).add("malloc", 0, 64).add("free", 0, 64))
        threads[0].add("spawn", number)
    path = traces.write(tmp_path / "sleepers.hzt", threads)
    words = ("--turn-ms", 20, "--skip-ms", 2, "--warmup-ms", 20, "--rounds", 8)
    done = programs.turns(
        *words, "--arm", "a", "--arm", "b", "--", programs.bench_path, f"trace:{path}"
    )
    turns = [e for e in map(json.loads, done.stdout.splitlines()) if e["event"] == "turn"]
    worked = sum(turn["cpu_ns"] for turn in turns)
    assert sum(turn["gap_cpu_ns"] for turn in turns[2:]) < 0.1 * worked


# ---- what is refused -----------------------------------------------------------------------------


def refusal(programs: Programs, path: Path, *options: object) -> str:
    done = programs.bench(f"trace:{path}", *options)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.startswith("hz-bench: ") and done.stderr.count("\n") == 1
    return done.stderr


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    return traces.write(tmp_path / "sound.hzt", conveyor(5000), cells=8, handed=5000)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 16
    path.write_bytes(data)


def test_a_byte_that_changed_is_noticed_wherever_it_stands(programs: Programs, sound: Path) -> None:
    whole = sound.read_bytes()
    places = [*range(8, 96, 4), 100, 130, len(whole) // 2, len(whole) - 100, len(whole) - 3]
    for at in places:
        flip(sound, at)
        words = refusal(programs, sound, "--ops", 1)
        assert "damaged" in words or "of version" in words, at
        sound.write_bytes(whole)


def test_a_trace_that_was_cut_says_so(programs: Programs, sound: Path) -> None:
    whole = sound.read_bytes()
    for length in (100, len(whole) // 2, len(whole) - 1):
        sound.write_bytes(whole[:length])
        words = refusal(programs, sound)
        assert f"is cut: it should have {len(whole)} bytes and has {length}" in words
        assert "copy it again" in words


def test_a_trace_that_changes_while_it_is_replayed_changes_nothing(
    programs: Programs, tmp_path: Path
) -> None:
    path = traces.write(tmp_path / "long.hzt", [churn(100_000), churn(100_000)])
    words = [str(programs.bench_path), f"trace:{path}", "--ops", "5000000"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as running:
        tasks = Path(f"/proc/{running.pid}/task")
        while len(os.listdir(tasks)) < 3:
            assert running.poll() is None
        path.write_bytes(b"\xff" * path.stat().st_size)
        os.truncate(path, 0)
        assert running.poll() is None
        assert running.wait(DEADLINE_S) == 0


def test_what_is_no_trace_is_refused(programs: Programs, tmp_path: Path) -> None:
    foreign, short, folder = tmp_path / "foreign", tmp_path / "short", tmp_path / "folder"
    foreign.write_bytes(os.urandom(5000))
    short.write_bytes(b"HZTRACE\n")
    folder.mkdir()
    assert "is not a trace: record one with" in refusal(programs, foreign)
    assert "is not a trace: it is too short" in refusal(programs, short)
    assert "it is a folder" in refusal(programs, folder)
    assert "No such file" in refusal(programs, tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"version": 2}, "is a trace of version 2; this hztune reads version 1"),
        ({"peak_bytes": 1 << 50}, "blocks of 1048576.0 GiB at once, and this machine has"),
        *(({name: value}, "sound.hzt") for name, value in (
            ("cells", 0), ("cells", 1 << 27), ("threads", 1), ("threads", 3), ("chunks", 1),
            ("chunks", 1 << 31), ("notes", 1 << 31), ("directory_offset", 1 << 60),
            ("directory_offset", 96), ("calls", 5))),
    ],
)  # fmt: skip
def test_a_header_that_does_not_fit_its_file_or_this_machine_is_refused(
    programs: Programs, sound: Path, changes: dict[str, int], sentence: str
) -> None:
    traces.with_header(sound, **changes)
    assert sentence in refusal(programs, sound, "--ops", 1)


def one(*operations: tuple[object, ...], **options: bool) -> Thread:
    thread = Thread()
    for operation in operations:
        thread.add(*operation, **options)  # type: ignore[arg-type]
    return thread


IMPOSSIBLE = {
    "a free of an empty slot": ([one(("free", 0, 8))], "the slot is empty"),
    "two blocks in one slot": (
        [one(("malloc", 0, 8), ("malloc", 0, 8))], "the slot is full already"),
    "a free with another size": (
        [one(("malloc", 0, 8), ("free", 0, 9))], "another size than it was asked for with"),
    "a cell that never fills": ([one(("free", 0, 8), cell=True)], "thread 0 waits for ever"),
    "a cell that is not there": (
        [one(("malloc", 99, 8), cell=True)], "it uses a cell that is not there"),
    "a cell of two givers": (
        [one(("malloc", 0, 8), cell=True), one(("malloc", 1, 8), cell=True)],
        "it uses a cell of other threads"),
    "a thread that nothing starts": (
        [one(("malloc", 0, 8)), Thread(spawned=True)], "nothing starts thread 1"),
    "a spawn of a thread that is not there": ([one(("spawn", 7))], "a thread that is not there"),
    "a spawn of a thread that runs": (
        [one(("spawn", 1)), one(("malloc", 0, 8))], "a thread that has started"),
    "a join of itself": ([one(("join", 0))], "a thread that is not there"),
    "threads that wait for each other": (
        [one(("join", 1), ("malloc", 0, 8)), one(("join", 0))], "waits for ever"),
    "no call at all": ([Thread().add("touch", 0, 8)], "it has 0 calls"),
    "an alignment that cannot be": (
        [Thread().add("memalign", 0, 8, align=60)], "an alignment that cannot be"),
    "a realloc to nothing": (
        [one(("malloc", 0, 8), ("realloc", 0, 0))], "it is no legal realloc"),
}  # fmt: skip


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_a_whole_file_of_impossible_operations_is_refused(
    programs: Programs, tmp_path: Path, what: str
) -> None:
    threads, words = IMPOSSIBLE[what]
    path = traces.write(tmp_path / "impossible.hzt", threads, cells=8)
    assert words in refusal(programs, path, "--ops", 1)


def test_options_that_do_not_fit_a_trace_are_refused(programs: Programs, sound: Path) -> None:
    assert "--threads 3: " in refusal(programs, sound, "--threads", 3)
    assert "recorded without times" in refusal(programs, sound, "--pace", 100)
    assert programs.bench(f"trace:{sound}", "--ops", 1, "--threads", 2).returncode == 0
    for line, words in (
        ("trace", "it replays a file: write trace:FILE"),
        ("trace:", "it replays a file: write trace:FILE"),
        (f"larson:{sound}", "larson has no file"),
    ):
        done = programs.bench(line)
        assert done.returncode == 2 and words in done.stderr
