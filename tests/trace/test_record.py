"""Recording: nothing that a program does to its allocator is lost, whatever becomes of it."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.conftest import until

BLOCK = "4321"
ROUNDS = int(os.environ.get("TEST_MORE", "1"))
CALLS = 2_000_000
WAIT_S = 20.0


def blocks_of(recorder, path):
    """How many of the program's blocks a trace has, each with its end."""
    lines = recorder.lines(path)
    given = [words[1] for words in lines if words[0] == "malloc" and words[2] == BLOCK]
    ended = {words[1] for words in lines if words[0] == "free"}
    return sum(block in ended for block in given)


def await_file(path, least_bytes=1):
    """Waits until a file is there and holds something."""
    assert until(lambda: path.exists() and path.stat().st_size >= least_bytes), path


def what_it_is(path):
    """The kind, the identity and the last change of a name; not when it was last looked at."""
    found = path.lstat()
    return found.st_mode, found.st_ino, found.st_size, found.st_mtime_ns


@contextmanager
def sleeping(recorder, mode):
    """A program whose recorder sleeps, and what it said when it had begun; killed at the end."""
    asleep = {"HZ_RECORD": "asleep", "LD_PRELOAD": str(recorder.library)}
    with recorder.start(recorder.program("program"), mode, **asleep) as running:
        yield running, running.stdout.readline()
        running.kill()


# ---- every call ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, ROUNDS + 1))
def test_of_two_million_calls_none_is_lost_or_out_of_order(seed, recorder):
    stress = (recorder.program("stress"), 8, CALLS, seed)
    truth = recorder.record("stress.trace", "--", *stress)
    seen = recorder.run(recorder.program("pairs"), "stress.trace")
    assert seen.stdout == truth.stdout, f"seed {seed}: {seen.stderr}"
    notes = recorder.info("stress.trace")["notes"]
    assert (notes["unknown"], notes["overlapping"], notes["lost"]) == (0, 0, 0)


def test_the_order_is_kept_when_a_thread_joins_one_that_was_alone(recorder):
    recorder.mode("joined")
    told = recorder.info("joined.trace")
    assert (told["notes"]["unknown"], told["notes"]["overlapping"]) == (0, 0)
    assert (
        told["operations"]["malloc"] >= 1000 + 64 + 300 * 64 == blocks_of(recorder, "joined.trace")
    )


def test_every_function_of_c_is_recorded_with_size_and_alignment(recorder):
    recorder.mode("all")
    lines = recorder.lines("all.trace")
    seen = {(words[0], *words[2:]) for words in lines}
    assert seen >= {
        ("malloc", "101"), ("calloc", "303"), ("aligned_alloc", "512", "256"),
        ("memalign", "102", "128"), ("posix_memalign", "103", "512"), ("valloc", "104"),
        ("pvalloc", "105"), ("malloc", "106"), ("realloc", "100000"), ("realloc", "7000"),
    }  # fmt: skip
    assert not [words for words in lines if words[-1] == str(1 << 60)], "it failed"
    assert Counter(words[0] for words in lines)["free"] >= 8


def test_every_operator_of_cpp_is_recorded_with_size_and_alignment(recorder):
    recorder.record("new.trace", "--", recorder.program("operators"))
    lines = [words for words in recorder.lines("new.trace") if "new" in words[0]]
    assert [(words[0], *words[2:]) for words in lines] == [
        ("new", "201"), ("new", "202"), ("new_nothrow", "203"), ("new_nothrow", "204"),
        ("new_aligned", "205", "128"), ("new_aligned", "206", "128"),
        ("new_aligned_nothrow", "207", "128"), ("new_aligned_nothrow", "208", "128"),
    ]  # fmt: skip
    ended = {words[1]: words[0] for words in recorder.lines("new.trace") if "delete" in words[0]}
    assert [ended[words[1]] for words in lines] == [
        "delete", "delete_sized", "delete", "delete", "delete_aligned", "delete_sized_aligned",
        "delete_aligned", "delete_aligned",
    ]  # fmt: skip


def test_threads_that_come_and_go_are_recorded_with_their_origin(recorder):
    recorder.mode("threads")
    told = recorder.info("threads.trace")
    assert told["threads"] == 301
    assert (told["operations"]["spawn"], told["operations"]["join"]) == (300, 300)
    assert blocks_of(recorder, "threads.trace") == 3000


# ---- how a program ends --------------------------------------------------------------------------


ENDS = {
    "exit": 7, "strip": 7, "crash": 128 + signal.SIGSEGV, "killed": 128 + signal.SIGKILL,
    "lock_up": 0, "handlers": 0,
}  # fmt: skip


@pytest.mark.parametrize("mode", ENDS)
def test_however_a_program_ends_nothing_is_lost(mode, recorder):
    """Without a word, or where it may write no file and has another root, or in its handlers."""
    recorder.mode(mode, status=ENDS[mode])
    assert blocks_of(recorder, f"{mode}.trace") == 1000


def test_a_thousand_children_are_counted(recorder):
    done = recorder.mode("many")
    assert "1000 other programs called less and are left out" in done.stderr
    assert blocks_of(recorder, "many.trace") == 1000
    assert {path.name for path in recorder.folder.iterdir()} == {"lines.txt", "many.trace"}
    each = recorder.record("some.trace", "--each", "--", "sh", "-c", "/bin/ls; /bin/ls; exit")
    assert "2 other programs called hardly anything and are left out" in each.stderr


@pytest.mark.parametrize("mode", ["fork", "raw_fork"])
def test_a_forked_child_has_a_trace_of_its_own(mode, recorder):
    recorder.mode(mode, "--each")
    (parent,) = recorder.folder.glob(f"{mode}.trace.*")
    assert blocks_of(recorder, f"{mode}.trace") == 3000, "the busiest is the child"
    assert blocks_of(recorder, parent) in (1000, 1001)


def test_a_program_that_cannot_be_started_leaves_no_file(recorder):
    done = recorder.record("none.trace", "--", "/nonexistent/program", status=2)
    assert "cannot run /nonexistent/program: No such file" in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(recorder.folder.iterdir()) == []


# ---- how a recording ends ------------------------------------------------------------------------


def test_after_its_time_the_recording_ends_and_the_program_goes_on(recorder):
    words = recorder.words("part.trace", "--for", "0.2", "--", recorder.program("program"), "go_on")
    with recorder.start(*words) as running:
        await_file(recorder.folder / "part.trace")
        assert running.poll() is None
        running.send_signal(signal.SIGTERM)
        assert running.wait(WAIT_S) == 128 + signal.SIGTERM
    assert blocks_of(recorder, "part.trace") > 10


def test_a_file_that_took_the_place_of_the_pool_is_not_recorded_into(recorder):
    (recorder.folder / "other").touch()
    recorder.run("ls", HZ_RECORD="other", LD_PRELOAD=str(recorder.library))


# Makes a pool as hz-record does, says where, and after a line how many processes fill it.
POOL = """
import fcntl, mmap, os, struct, sys
file = os.memfd_create("pool", os.MFD_ALLOW_SEALING)
os.ftruncate(file, 4096 * (32 * 1024 + 1))
fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
pool = mmap.mmap(file, 4096)
pool[:16] = struct.pack("IIIi", 0x6C70687A, 1, 2, os.getpid())
print(f"/proc/{os.getpid()}/fd/{file}", flush=True)
sys.stdin.readline()
print(struct.unpack_from("I", pool, 68)[0])
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize(("user", "images"), [(12345, 0), (0, 1)])
def test_no_pool_of_another_user_is_filled(user, images, recorder):
    words = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    with subprocess.Popen(
        [*words, sys.executable, "-c", POOL],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        path = running.stdout.readline().strip()
        recorder.run("true", HZ_RECORD=path, LD_PRELOAD=str(recorder.library))
        assert running.communicate("\n", WAIT_S)[0] == f"{images}\n"


def test_a_recorder_that_sleeps_is_woken_and_heard_from_then_on(recorder):
    with sleeping(recorder, "go_on") as (running, _):
        for name in ("first.trace", "second.trace"):
            with recorder.start(*recorder.words(name, "--pid", running.pid)) as one:
                await_file(recorder.folder / f"{name}.recording", 4096)
                one.send_signal(signal.SIGINT)
                one.communicate(timeout=WAIT_S)
            told = recorder.info(name)
            assert told["is_part"] and told["notes"]["unknown"] <= 3
            assert blocks_of(recorder, name) > 10


def test_of_a_thread_for_each_task_parts_can_be_read_and_leave_no_memory(recorder):
    """A thread from before the recording is the first one, and the next have its pthread_t."""
    with sleeping(recorder, "tasks") as (running, _):
        for _ in range(3):
            recorder.record("tasks.trace", "--pid", running.pid, "--for", "0.2")
            assert blocks_of(recorder, "tasks.trace") > 10
        status = Path(f"/proc/{running.pid}/status").read_text()
        assert int(status.partition("RssShmem:")[2].split()[0]) < 1024


def test_a_recorder_that_sleeps_is_found_in_a_child_that_closed_all(recorder):
    with sleeping(recorder, "alone") as (_, said):
        child = int(said)
        try:
            recorder.record("child.trace", "--pid", child, "--for", "0.3")
            assert blocks_of(recorder, "child.trace") > 10
        finally:
            os.kill(child, signal.SIGKILL)


NAMES_A_TERMINAL = """
import ctypes, os, re, time
(bell,) = re.findall("^([0-9a-f]+)-.*/SYSV00000000", open("/proc/self/maps").read(), re.M)
path = f"/proc/{os.getpid()}/fd/{os.openpty()[1]}".encode()
ctypes.memmove(int(bell, 16) + 12, path, len(path) + 1)
print("named", flush=True)
time.sleep(60)
"""


def test_no_terminal_that_a_program_names_becomes_the_recorders(recorder):
    asleep = {"HZ_RECORD": "asleep", "LD_PRELOAD": str(recorder.library)}
    with recorder.start(sys.executable, "-c", NAMES_A_TERMINAL, **asleep) as running:
        assert running.stdout.readline() == "named\n"
        words = recorder.words("one.trace", "--pid", running.pid, "--for", "1")
        with recorder.start("setsid", *words) as one:
            await_file(recorder.folder / "one.trace.recording")
            stat = Path(f"/proc/{one.pid}/stat").read_text()
            running.kill()
    terminal = stat.rpartition(")")[2].split()[4]
    assert terminal == "0"


def test_a_process_is_recorded_by_one_recorder_at_a_time(recorder):
    with sleeping(recorder, "go_on") as (running, _):
        log = recorder.folder / "first.trace.recording"
        with recorder.start(*recorder.words("first.trace", "--pid", running.pid)) as first:
            await_file(log, 4096)
            second = recorder.record("second.trace", "--pid", running.pid, status=2)
            assert "it is being recorded already" in second.stderr
            first.kill()
        recorder.record("third.trace", "--pid", running.pid, "--for", "2")
    assert blocks_of(recorder, "third.trace") > 10
    assert sorted(path.name for path in recorder.folder.glob("*.recording")) == [log.name]


def segments_of(pid):
    """The segments of shared memory that a process has made and that are there."""
    rows = [line.split() for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]]
    return [row[1] for row in rows if int(row[4]) == pid]


def test_of_a_recorder_that_sleeps_nothing_is_left_when_it_is_killed(recorder):
    before = set(os.listdir("/dev/shm"))
    with sleeping(recorder, "go_on") as (running, _):
        assert len(segments_of(running.pid)) == 1
        mine = str(running.pid)
    assert segments_of(running.pid) == []
    assert not [name for name in set(os.listdir("/dev/shm")) - before if mine in name]


def test_a_full_disk_ends_the_recording_and_not_the_program(recorder):
    """A file that may grow no further stands for a disk that has no room."""
    log = recorder.folder / "full.trace.recording"
    words = recorder.words("full.trace", "--", recorder.program("program"), "fill")
    with recorder.start(*words) as running:
        await_file(log)
        resource.prlimit(running.pid, resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        _, said = running.communicate(timeout=WAIT_S)
    assert running.returncode == 9
    assert "is kept in full.trace.recording" in said
    done = recorder.trace("convert", log, "--output", "full.trace")
    assert "no room was left on the disk" in done.stderr
    assert recorder.info("full.trace")["is_part"]
    assert blocks_of(recorder, "full.trace") > 10_000


def test_of_a_recorder_that_is_killed_the_log_can_be_read(recorder):
    words = recorder.words("killed.trace", "--", recorder.program("program"), "go_on")
    log = recorder.folder / "killed.trace.recording"
    with recorder.start(*words) as running:
        await_file(log, 4096)
        running.kill()
    done = recorder.trace("convert", log, "--output", "killed.trace")
    assert "the recording was cut short" in done.stderr
    assert recorder.info("killed.trace")["is_part"]
    assert blocks_of(recorder, "killed.trace") > 10


@pytest.mark.parametrize(
    "make",
    [
        os.mkfifo,
        os.mkdir,
        lambda path: path.symlink_to("/dev/null"),
        lambda path: path.symlink_to("/proc/self/exe"),  # as /dev/stdout where that is a file
    ],
)
def test_no_trace_replaces_what_is_no_file(make, recorder):
    make(recorder.folder / "there")
    before = what_it_is(recorder.folder / "there")
    (recorder.folder / "a.txt").write_text("0 0 malloc 1 8\n")
    recorder.trace("convert", "a.txt", "--output", "a.trace")
    done = [
        recorder.record("there", "--", "/bin/true", status=2),
        recorder.trace("convert", "a.txt", "--output", "there", status=2),
        recorder.trace("convert", "a.trace", "--output", "there", "--to", "text", status=2),
    ]
    assert all("cannot write there: it is a " in each.stderr for each in done)
    assert what_it_is(recorder.folder / "there") == before
    assert sorted(path.name for path in recorder.folder.iterdir()) == ["a.trace", "a.txt", "there"]


def test_a_log_that_is_there_is_not_overwritten(recorder):
    (recorder.folder / "a.trace.recording").write_text("of value")
    done = recorder.record("a.trace", "--", "/bin/true", status=2)
    assert "a.trace.recording is there" in done.stderr
    assert (recorder.folder / "a.trace.recording").read_text() == "of value"
