"""Replaying a trace: every call of every thread, in its order, and nothing else."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from itertools import accumulate
from pathlib import Path

import pytest

from . import traces
from .conftest import DEADLINE_S, MARKED, of
from .traces import Thread, churn, conveyor

TURN = ("--turn-ms", 10, "--skip-ms", 1, "--warmup-ms", 10)


@pytest.fixture
def written(tmp_path):
    """Writes threads to a file, `written(*threads)`."""
    return lambda *threads, **more: traces.write(tmp_path / "t.hzt", threads, **more)


@pytest.fixture
def seen(witness, written):
    """What threads ask of an allocator until they have made that many calls."""
    return lambda ops, *threads: witness(written(*threads), "--ops", ops)


def words_of(calls):
    """Kind and size of each call."""
    return [(call.kind, call.size - MARKED) for call in calls]


def live(calls):
    """How many blocks live after each call."""
    return [*accumulate(1 if call.kind == "malloc" else -1 for call in calls)]


def turns_of(programs, path, *options):
    """The events of turns; each of its arms replays a trace."""
    return programs.events(*TURN, *options, "--", programs.bench_path, f"trace:{path}")


# ---- what is called ------------------------------------------------------------------------------


def test_the_calls_of_a_thread_are_those_of_the_trace_in_its_order(seen):
    thread = Thread()
    thread.add("malloc", 0, MARKED + 1).add("malloc", 1, MARKED + 2).add("free", 0, MARKED + 1)
    thread.add("malloc", 0, MARKED + 3).add("realloc", 0, MARKED + 4).add("free", 0, MARKED + 4)
    thread.add("calloc", 0, MARKED + 5).add("free", 1, MARKED + 2).add("free", 0, MARKED + 5)
    assert words_of(seen(1, thread)) == [
        ("malloc", 1), ("malloc", 2), ("free", 1), ("malloc", 3), ("realloc", 4), ("free", 4),
        ("calloc", 5), ("free", 2), ("free", 5),
    ]  # fmt: skip


PAIRS = {
    "malloc": "free", "calloc": "free_sized", "memalign": "free", "posix_memalign": "free",
    "aligned_alloc": "free_aligned_sized", "valloc": "free", "pvalloc": "free", "new": "delete",
    "new_nothrow": "delete_sized", "new_aligned": "delete_aligned",
    "new_aligned_nothrow": "delete_sized_aligned",
}  # fmt: skip
ALIGNED = {"aligned_alloc", "memalign", "posix_memalign", "new_aligned", "new_aligned_nothrow"}


def test_every_kind_of_operation_is_a_call_of_its_own(seen):
    thread = Thread()
    for takes, ends in PAIRS.items():
        align = 8 if takes in ALIGNED else 0
        thread.add(takes, 0, MARKED + 256, align=align).add(ends, 0, MARKED + 256, align=align)
    calls = seen(1, thread)
    assert [call.kind for call in calls] == [kind for pair in PAIRS.items() for kind in pair]
    told = {call.kind: call.align for call in calls if call.align}
    aligned_ends = ["free_aligned_sized", "delete_aligned", "delete_sized_aligned"]
    assert told == dict.fromkeys([*ALIGNED, *aligned_ends], 256)


def test_large_sizes_slots_and_alignments_take_two_words(seen):
    size, slots = (3 << 20) + 5, 3000
    thread = Thread()
    for slot in range(slots):
        thread.add("malloc", slot, 8)
    thread.add("malloc", slots, size).add("memalign", slots + 1, MARKED, align=12)
    thread.add("free", slots, size).add("free", slots + 1, MARKED)
    for slot in range(slots):
        thread.add("free", slot, 8)
    assert [(call.size, call.align) for call in seen(1, thread)] == [
        (size, 0), (MARKED, 4096), (size, 0), (MARKED, 0)]  # fmt: skip


# ---- between threads -----------------------------------------------------------------------------


def test_what_one_thread_gives_another_ends_and_no_more_is_under_way_than_fits(seen):
    calls = seen(1, *conveyor(3000, cells=3, size=MARKED))
    threads = {
        kind: {call.thread for call in calls if call.kind == kind} for kind in ("malloc", "free")
    }
    assert Counter(call.kind for call in calls) == {"malloc": 3000, "free": 3000}
    assert [*map(len, threads.values())] == [1, 1] and threads["malloc"] != threads["free"]
    assert 1 <= max(live(calls)) <= 3 + 2, "one more may be in the hands of each thread"


def test_edges_order_the_threads_as_the_program_did(seen):
    """Thread 0 starts 1, which starts 2; a block goes around, and each marks when it had it."""
    threads = [Thread(), Thread(spawned=True), Thread(spawned=True)]
    threads[0].add("malloc", 0, MARKED + 1).add("spawn", 1).add("spawn", 2)
    threads[0].add("hand", 0, 0)
    threads[1].add("fetch", 0, 0).add("realloc", 0, MARKED + 2).add("hand", 0, 8)
    threads[2].add("fetch", 0, 8).add("realloc", 0, MARKED + 3).add("hand", 0, 16)
    threads[0].add("fetch", 0, 16).add("free", 0, MARKED + 3)
    threads[0].add("join", 1).add("join", 2).add("malloc", 0, MARKED + 4)
    threads[0].add("free", 0, MARKED + 4)
    assert words_of(seen(40, *threads)) == (40 // 6 + 1) * [
        ("malloc", 1), ("realloc", 2), ("realloc", 3), ("free", 3), ("malloc", 4), ("free", 4)
    ]  # fmt: skip


def test_a_thread_that_was_spawned_is_a_new_one_in_every_round(seen):
    threads = [Thread().add("spawn", 1).add("join", 1), Thread(spawned=True)]
    threads[1].add("malloc", 0, MARKED).add("free", 0, MARKED)
    calls = seen(10, *threads)
    assert len(calls) == 10 and len({call.thread for call in calls}) == 5


def test_a_thread_waits_for_nothing_but_what_its_words_say(seen):
    """Each of two threads waits at its end for a block that the other gives at its beginning."""
    threads = [Thread(), Thread()]
    for me in (0, 1):
        threads[me].add("malloc", 8 * me, MARKED + me, cell=True)
        threads[me].add("free", 8 * (1 - me), MARKED + 1 - me, cell=True)
    assert len(seen(400, *threads)) == 400


# ---- rounds --------------------------------------------------------------------------------------


def test_blocks_that_are_left_are_freed_between_two_rounds(seen):
    threads = [Thread().add("spawn", 1), Thread(spawned=True)]
    threads[0].add("malloc", 0, MARKED).add("malloc", 1, MARKED).add("malloc", 4, MARKED, cell=True)
    threads[0].add("join", 1)
    threads[1].add("malloc", 0, MARKED).add("malloc", 1, MARKED).add("free", 0, MARKED)
    found = live(seen(60, *threads))
    assert max(found) <= 5, "a round begins with nothing"
    assert found[-1] == 0


def test_a_run_of_fixed_work_is_whole_rounds(programs, written):
    path = written(churn(1000), churn(500))
    for asked, rounds in ((1, 1), (1500, 1), (1501, 2), (6000, 4)):
        result = programs.result(f"trace:{path}", "--ops", asked)
        assert (result["ops"], result["trace"]["rounds"]) == (1500 * rounds, rounds)


# ---- memory --------------------------------------------------------------------------------------


def test_the_file_and_its_tables_are_in_no_figure_of_memory(programs, written):
    """The same calls by a trace that is a hundred times as long take the same memory."""
    seen = []
    for n in (4000, 400_000):
        path = written(churn(n))
        alone = programs.result(f"trace:{path}", "--seconds", 0.1)
        events = turns_of(programs, path, "--rounds", 2, "--arm", "a")
        (end,) = (each for each in events if each["event"] == "exit")
        now = max(each["rss_kb"] for each in events if each["event"] == "turn")
        own = (alone["own_kb"], end["result"]["own_kb"])
        seen.append((own, (alone["rss_peak_kb"], now, end["rss_peak_kb"])))
    (short, short_kb), (long, long_kb) = seen
    assert all(b - a > 3000 for a, b in zip(short, long, strict=True))
    assert all(abs(a - b) < 600 for a, b in zip(short_kb, long_kb, strict=True)), seen


def test_every_page_of_a_block_is_touched_once_it_has_it(programs, written):
    small = Thread().add("malloc", 0, 4096).add("free", 0, 4096)
    given = Thread().add("malloc", 0, 8 << 20).add("free", 0, 8 << 20)
    grown = Thread().add("malloc", 0, 4096).add("realloc", 0, 8 << 20).add("free", 0, 8 << 20)
    least, *taken = [
        programs.result(f"trace:{written(each)}", "--ops", 1)["rss_peak_kb"]
        for each in (small, given, grown)
    ]
    assert all(7000 <= kb - least <= 9500 for kb in taken)


# ---- pace and turns ------------------------------------------------------------------------------


@pytest.mark.parametrize(("pace", "least_s"), [(100, 0.09), (200, 0.045)])
def test_the_pace_of_the_recording_is_kept(programs, written, pace, least_s):
    thread = Thread()
    for _ in range(20):
        thread.add("malloc", 0, 64).add("free", 0, 64, delta_ns=5_000_000)
    path = written(thread, flags=traces.HAS_TIME)
    assert programs.result(f"trace:{path}", "--ops", 1, "--pace", pace)["seconds"] >= least_s


def test_a_turn_of_whole_rounds_ends_where_a_round_does(programs, written):
    """Even where a turn is over before all threads have heard of it."""
    late = [churn(2000), churn(2000)]
    for thread in late:
        thread.spawned = True
    spawning = Thread().add("spawn", 3).add("spawn", 4).add("join", 3)
    crowd = [churn(40, live=10) for _ in range(200)]
    threads = [*conveyor(4000), spawning, *late, *crowd]
    calls = sum(thread.calls for thread in threads)
    quick = ("--whole", "--turn-ms", 1, "--skip-ms", 0, "--warmup-ms", 1, "--rounds", 6)
    events = turns_of(programs, written(*threads), *quick, "--arm", "a", "--arm", "b")
    rounds = [each["ops"] / calls for each in events if each["event"] == "turn"]
    assert len(rounds) == 12 and all(each >= 1 and each.is_integer() for each in rounds), rounds


def test_players_that_wait_sleep_in_the_turns_of_others(programs, written):
    """Many threads wait for one that works; they use no time while another arm has its turn."""
    threads = [churn(400_000)]
    for number in range(1, 40):
        threads.append(Thread(spawned=True).add("malloc", 0, 64).add("free", 0, 64))
        threads[0].add("spawn", number)
    events = turns_of(
        programs, written(*threads), "--turn-ms", 20, "--rounds", 8, "--arm", "a", "--arm", "b"
    )
    for end in of(events, "exit"):
        in_turns = sum(turn["cpu_ns"] for turn in of(events, "turn", end["arm"]))
        assert 1e9 * end["result"]["cpu_s"] < 1.5 * in_turns


# ---- what is refused -----------------------------------------------------------------------------


def refusal(programs, path, *options):
    done = programs.bench(f"trace:{path}", *options)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.startswith("hz-bench: ") and done.stderr.count("\n") == 1
    return done.stderr


@pytest.fixture
def sound(written):
    return written(*conveyor(5000))


def test_a_byte_that_changed_and_a_cut_are_noticed_wherever(programs, sound):
    whole = sound.read_bytes()
    for at in (*range(8, 96, 4), 100, 130, len(whole) // 2, len(whole) - 100, len(whole) - 3):
        sound.write_bytes(whole[:at] + bytes([whole[at] ^ 16]) + whole[at + 1 :])
        words = refusal(programs, sound, "--ops", 1)
        assert "damaged" in words or "of version" in words, at
    for length in (100, len(whole) // 2, len(whole) - 1):
        sound.write_bytes(whole[:length])
        words = refusal(programs, sound)
        assert f"is cut: it should have {len(whole)} bytes and has {length}; copy it" in words


def test_a_trace_that_changes_under_its_replay_changes_nothing(programs, written):
    path = written(churn(100_000), churn(100_000))
    words = [str(programs.bench_path), f"trace:{path}", "--ops", "5000000"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as running:
        tasks = Path(f"/proc/{running.pid}/task")
        while len(os.listdir(tasks)) < 3:
            assert running.poll() is None
        path.write_bytes(b"\xff" * path.stat().st_size)
        os.truncate(path, 0)
        assert running.poll() is None
        assert running.wait(DEADLINE_S) == 0


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"version": 2}, "is a trace of version 2; this hztune reads version 1"),
        ({"peak_bytes": 1 << 50}, "blocks of 1048576.0 GiB at once, and this machine has"),
        *(({name: value}, "t.hzt") for name, value in (
            ("cells", 0), ("cells", 1 << 27), ("threads", 1), ("threads", 3), ("chunks", 1),
            ("chunks", 1 << 31), ("notes_bytes", 1 << 31), ("directory_offset", 1 << 60),
            ("directory_offset", 96), ("calls", 5))),
    ],
)  # fmt: skip
def test_a_header_that_does_not_fit_its_file_or_this_machine_is_refused(
    programs, written, changes, sentence
):
    path = written(*conveyor(5000), **changes)
    assert sentence in refusal(programs, path, "--ops", 1)


def one(*operations, **options):
    thread = Thread()
    for operation in operations:
        thread.add(*operation, **options)
    return thread


IMPOSSIBLE = [
    ("the slot is empty", one(("free", 0, 8))),
    ("the slot is full already", one(("malloc", 0, 8), ("malloc", 0, 8))),
    ("another size than it was asked for with", one(("malloc", 0, 8), ("free", 0, 9))),
    ("thread 0 waits for ever", one(("free", 0, 8), cell=True)),
    ("it uses a cell that is not there", one(("malloc", 99, 8), cell=True)),
    ("it uses a cell of other threads", one(("malloc", 0, 8), cell=True),
     one(("malloc", 1, 8), cell=True)),
    ("nothing starts thread 1", one(("malloc", 0, 8)), Thread(spawned=True)),
    ("a thread that is not there", one(("spawn", 7))),
    ("a thread that has started", one(("spawn", 1)), one(("malloc", 0, 8))),
    ("a thread that is not there", one(("join", 0))),
    ("waits for ever", one(("join", 1), ("malloc", 0, 8)), one(("join", 0))),
    ("it has 0 calls", Thread()),
    ("an alignment that cannot be", Thread().add("memalign", 0, 8, align=60)),
    ("it is no legal realloc", one(("malloc", 0, 8), ("realloc", 0, 0))),
]  # fmt: skip


@pytest.mark.parametrize(("sentence", "threads"), [(row[0], row[1:]) for row in IMPOSSIBLE])
def test_impossible_operations_are_refused(programs, written, sentence, threads):
    assert sentence in refusal(programs, written(*threads, cells=8), "--ops", 1)


def test_what_is_no_trace_or_does_not_fit_it_is_refused(programs, sound):
    assert "is not a trace: record one with" in refusal(programs, programs.bench_path)
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
