"""What other processes may ask of one that was started with HZ_CONTROL=1, and what it costs."""

import contextlib
import json
import os
import platform
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.conftest import until

from hztune.attach.channel import socket_of

DEADLINE_S = 60
MIB = 1 << 20
ANOTHER_USER = 12345
EXIT = {"x86_64": 60, "aarch64": 93}  # the number of the system call

# Each of these says "ready" and then waits for the end of its input.
WAIT = "print('ready', flush=True); import sys; sys.stdin.read()"
CLOSE_ALL = "import os, sys; print('ready', flush=True); os.closerange(1, 1024); sys.stdin.read()"
HOLD = f"block = bytearray({64 * MIB}); del block; {WAIT}"
MAIN_ENDS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(0.1,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""
BARE_CALL = f"""
import ctypes, threading
thread = threading.Thread(target=int)
thread.start()
thread.join()
ctypes.CDLL(None).syscall({EXIT[platform.machine()]}, 0)
"""
DROPS = f"import os; os.seteuid({ANOTHER_USER}); {WAIT}"
TOKEN = f"token={7:032x}"
# For each line of the input tells decay_ms, and then sets it to what the line says, if anything.
SETS = """
import ctypes, sys, threading
hz, text = ctypes.CDLL(None), ctypes.create_string_buffer(100)
def work():
    for line in sys.stdin:
        hz.hz_get(b"decay_ms", text, 100)
        print(text.value.decode(), flush=True)
        if line.strip():
            hz.hz_set(b"decay_ms", line.strip().encode(), text, 100)
threading.Thread(target=work).start()
print("ready", flush=True)
"""
LATE_DOUBLE_FREE = """
import ctypes, sys, threading, time
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
def free_twice():
    block = libc.malloc(200)
    libc.free(block)
    libc.free(block)
print("ready", flush=True)
sys.stdin.readline()
threading.Thread(target=free_twice).start()
time.sleep(20)
"""
FORK = "import os; child = os.fork(); child and print(child, flush=True); input()"


@pytest.fixture
def start(libhz, plain_environment):
    """Starts Python code on hz, which may be asked; all that was started ends with the test."""
    own = {**plain_environment, "LD_PRELOAD": str(libhz), "HZ_CONTROL": "1"}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with contextlib.ExitStack() as started:

        def run(code, **variables):
            words, environment = [sys.executable, "-c", code], {**own, **variables}
            program = subprocess.Popen(words, env=environment, text=True, **pipes)
            started.enter_context(program)
            started.callback(program.kill)
            return program

        yield run


def line(program):
    return program.stdout.readline().strip()


def ready(program):
    assert line(program) == "ready"
    return program


def await_address(pid):
    """The name of a process's socket and the key to it, as soon as it listens."""
    return until(lambda: socket_of(pid)) or pytest.fail("it does not listen")


@contextmanager
def connected(name):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(DEADLINE_S)
        connection.connect(f"\0{name}")
        yield connection


def ask_at(name, *lines):
    with connected(name) as connection:
        connection.send("\n".join(lines).encode())
        answer = json.loads(connection.recv(MIB))
        assert connection.recv(MIB) == b"", "more than one answer"
    assert answer["protocol"] == 3
    return dict(answer)


def ask(pid, *lines):
    name, key = await_address(pid)
    return ask_at(name, key, *lines)


def test_a_process_tells_what_it_has_and_a_trim_returns_what_is_free(start):
    pid = ready(start(HOLD, HZ_DECAY_MS="60000")).pid
    said = ask(pid, "stats")
    assert (said["pid"], said["allocator"]) == (pid, "hz")
    assert said["stats"]["config"]["decay_ms"] == 60000
    memory = said["stats"]["memory"]
    assert memory["held_bytes"] >= memory["live_bytes"] > 0
    assert pid in {each["thread"] for each in said["threads"]}
    said = ask(pid, "trim")
    assert said["before"]["held_bytes"] - said["after"]["held_bytes"] >= 32 * MIB


def test_a_change_acts_without_a_call_of_the_program(start):
    program = ready(start(HOLD, HZ_DECAY_MS="60000"))
    assert ask(program.pid, "stats")["stats"]["memory"]["free_bytes"] >= 32 * MIB
    said = ask(program.pid, "set", "decay_ms=0", "span_cache=3")
    assert said["before"] == {"decay_ms": 60000, "span_cache": 2}
    assert said["after"] == {"decay_ms": 0, "span_cache": 3}
    assert ask(program.pid, "stats")["stats"]["memory"]["free_bytes"] < MIB


WRONG = [
    (["set", "decay_ms=0", "span_cache=65"], "illegal", "span_cache is"),
    (["set", "decay_ms=0", "shards=2"], "fixed", "HZ_SHARDS=VALUE"),
    (["set", "decay_ms=0", "shard=2"], "unknown", "shard is no parameter"),
    (["set", "decay_ms=0", "thread_cache_bytes=65536"], "unfit", "magazine_bytes"),
    (["set", "decay_ms"], "request", "NAME=VALUE"),
    (["set", *["decay_ms=0"] * 33], "request", "too many"),
    (["set", "decay_ms=" + "0" * 5000], "request", "too long"),
    (['set', 'decay_ms="\\\t'], "illegal", '"\\\t'),
    (["sets"], "request", "understands stats, trim, set and govern"),
    (["govern 61", TOKEN, "decay_ms=0"], "request", "govern 0 to govern 60"),
    (["govern 5s", TOKEN, "decay_ms=0"], "request", "govern 0 to govern 60"),
    (["govern 5", "decay_ms=0"], "request", "a line token="),
    (["govern 5", "token=wrong", "decay_ms=0"], "request", "a line token="),
    (["govern 5", TOKEN, "decay_ms=0", "shards=2"], "fixed", "HZ_SHARDS=VALUE"),
]  # fmt: skip


def test_a_wrong_request_is_refused_and_changes_nothing(start):
    program = ready(start(WAIT))
    for lines, kind, sentence in WRONG:
        said = ask(program.pid, *lines)
        assert (said["refused"], sentence in said["sentence"]) == (kind, True), said
        assert ask(program.pid, "stats")["stats"]["config"]["decay_ms"] == 100, lines


def test_without_the_variable_there_is_neither_a_thread_nor_a_socket(start):
    program = ready(start(WAIT, HZ_CONTROL="0"))
    assert len(os.listdir(f"/proc/{program.pid}/task")) == 1
    assert socket_of(program.pid) is None


def test_the_program_never_sees_the_socket(start):
    def seen(code, **variables):
        program = start(code, **variables)
        if variables.get("HZ_CONTROL") != "0":
            ask(program.pid, "stats")
        return program.communicate("go\n", timeout=DEADLINE_S)[0]

    code = "import os; input(); print(sorted(os.listdir('/proc/self/fd')), flush=True)"
    assert seen(code) == seen(code, HZ_CONTROL="0")


def test_a_program_that_closes_all_descriptors_still_answers(start):
    program = ready(start(CLOSE_ALL))
    assert program.stdout.read() == "", "the thread must hold no copy of the pipe"
    assert ask(program.pid, "stats")["allocator"] == "hz"


def test_a_child_of_a_fork_cannot_be_asked_and_its_parent_can(start):
    program = start(FORK)
    child = int(line(program))
    assert ask(program.pid, "set", "decay_ms=3")["after"] == {"decay_ms": 3}
    assert socket_of(child) is None
    os.kill(child, 9)


# ---- the lease -----------------------------------------------------------------------------------


def await_decay(program, value):
    """Asks the program alone: a request would have the thread look at its lease."""

    def told():
        program.stdin.write("\n")
        program.stdin.flush()
        return line(program)

    assert until(lambda: told() == str(value)), f"decay_ms does not become {value}"


def test_a_lease_is_renewed_by_its_governor_alone_and_gives_back_what_it_set(start):
    pid = ready(start(WAIT, HZ_SPAN_CACHE="5")).pid
    said = ask(pid, "govern 60", TOKEN, "decay_ms=0")
    assert (said["began"], said["values"], said["taken"]) == (True, {"decay_ms": 0}, [])
    said = ask(pid, "govern 60", TOKEN, "span_cache=3", "max_dirty_bytes=1048576")
    values = {"decay_ms": 0, "span_cache": 3, "max_dirty_bytes": 1048576}
    assert (said["began"], said["values"]) == (False, values)
    ask(pid, "govern 60", TOKEN, "growth_rent=8", "growth_rent=16")
    said = ask(pid, "govern 60", TOKEN)
    values["growth_rent"] = 16
    assert (said["values"], said["taken"]) == (values, []), "what is said twice is one lever"
    for seconds in (60, 0):
        said = ask(pid, f"govern {seconds}", "token=0123456789abcdef", "decay_ms=7")
        assert said["refused"] == "governed"
    assert ask(pid, "govern 60", TOKEN, "decay_ms=x")["refused"] == "illegal"
    assert ask(pid, "govern 60", TOKEN)["values"] == values
    values = {"decay_ms": 100, "span_cache": 5, "max_dirty_bytes": "auto", "growth_rent": 4}
    assert ask(pid, "govern 0", TOKEN)["values"] == values
    assert ask(pid, "govern 60", "token=0123456789abcdef")["began"], "the next governor"


def test_a_lease_that_nobody_renews_ends_by_itself_also_in_a_process_that_was_stopped(start):
    program = ready(start(SETS))
    ask(program.pid, "govern 1", TOKEN, "decay_ms=0")
    await_decay(program, 100)
    ask(program.pid, "govern 1", TOKEN, "decay_ms=0")
    program.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, program.pid, os.WSTOPPED)
    time.sleep(1.1)
    name, key = await_address(program.pid)
    with connected(name) as late:
        late.send(f"{key}\ngovern 60\n{TOKEN}".encode())
        program.send_signal(signal.SIGCONT)
        said = json.loads(late.recv(MIB))
    assert (said["began"], said["values"]) == (True, {})
    assert ask(program.pid, "stats")["levers"]["decay_ms"] == 100


def test_what_others_set_is_theirs_from_then_on(start):
    program = ready(start(SETS))
    ask(program.pid, "govern 60", TOKEN, "decay_ms=1", "span_cache=4", "growth_rent=8")
    ask(program.pid, "set", "span_cache=4")
    program.stdin.write("9\n")
    program.stdin.flush()
    assert line(program) == "1"
    await_decay(program, 9)
    said = ask(program.pid, "govern 60", TOKEN, "decay_ms=2", "span_cache=6", "growth_rent=16")
    assert said["taken"] == ["decay_ms", "span_cache"]
    assert said["values"] == {"decay_ms": 9, "span_cache": 4, "growth_rent": 16}
    said = ask(program.pid, "govern 0", TOKEN)
    assert said["values"] == {"decay_ms": 9, "span_cache": 4, "growth_rent": 4}


def test_a_lease_ends_with_main(start):
    waits = "import sys\nprint('ready', flush=True)\nsys.stdin.readline()"
    ends = SETS.replace('print("ready", flush=True)', "hz.pthread_exit(None)")
    program = ready(start(f"{waits}{ends}"))
    ask(program.pid, "govern 60", TOKEN, "decay_ms=0")
    program.stdin.write("go\n")
    await_decay(program, 100)


# ---- who may ask ---------------------------------------------------------------------------------


def as_another_user(code):
    words = ["setpriv", f"--reuid={ANOTHER_USER}", f"--regid={ANOTHER_USER}", "--clear-groups"]
    words += [sys.executable, "-c", f"import os, socket\n{code}"]
    return subprocess.check_output(words, text=True, timeout=DEADLINE_S)


def test_a_request_without_the_key_is_refused(start):
    name, key = await_address(ready(start(WAIT)).pid)
    for lines in (["stats"], ["0" * 32, "stats"], [key], [key[:-1], "stats"]):
        assert ask_at(name, *lines)["refused"] == "user"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_neither_finds_the_key_nor_is_in_the_way(start):
    pid = ready(start(WAIT)).pid
    name, _ = await_address(pid)
    said = as_another_user(f"""
held = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(40)]
for each in held:
    each.connect("\\0{name}")
print([each.recv(100) for each in held] == [b""] * 40)
for task in os.listdir("/proc/{pid}/task"):
    try:
        print(os.listdir(f"/proc/{pid}/task/{{task}}/fd"))
    except PermissionError:
        print("refused")
""")
    assert said == "True\nrefused\nrefused\n"
    assert ask(pid, "stats")["allocator"] == "hz"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_user_whose_rights_a_daemon_has_for_a_moment_cannot_ask_it(start):
    """Not even with the key, which a child of a fork may have left to that user."""
    program = ready(start(DROPS))
    name, key = await_address(program.pid)
    said = as_another_user(f"""
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.connect("\\0{name}")
try:
    s.send(b"{key}\\nstats")
    print(s.recv(65536))
except OSError:
    print(b"")
try:
    os.listdir("/proc/{program.pid}/task/{program.pid}/fd")
except PermissionError:
    print("refused")
""")
    assert said == "b''\nrefused\n"


@pytest.mark.parametrize(
    ("library", "main", "variables"),
    [
        ("libhz.so", MAIN_ENDS, {}),
        ("libhz.so", MAIN_ENDS, {"HZ_CONTROL": "0", "HZ_BACKGROUND_PERIOD_US": "65536"}),
        ("libhz.so", MAIN_ENDS, {"HZ_CONTROL": "0", "HZ_REST_MS": "20"}),
        ("libhz-agent.so", MAIN_ENDS, {}),
        ("libhz.so", BARE_CALL, {"HZ_CONTROL": "0", "HZ_BACKGROUND_PERIOD_US": "64"}),
        ("libhz.so", BARE_CALL, {"HZ_CONTROL": "0", "HZ_REST_MS": "64"}),
    ],
)
def test_a_process_whose_main_has_ended_ends_with_the_last_thread_of_the_program(
    library, main, variables, libhz, start
):
    program = start(main, LD_PRELOAD=str(libhz.with_name(library)), **variables)
    assert program.wait(DEADLINE_S) == 0


def test_many_requests_at_once_are_answered_beside_large_thread_local_data(core_tests, start):
    both = f"{core_tests / 'libhz.so'}:{core_tests / 'tests' / 'liblarge_tls.so'}"
    program = ready(start(WAIT, LD_PRELOAD=both))
    requests = [("stats",), ("trim",), ("set", "decay_ms=5")] * 10
    with ThreadPoolExecutor(8) as pool:
        said = list(pool.map(lambda lines: ask(program.pid, *lines), requests))
    assert [each.get("refused") for each in said] == [None] * 30


def test_those_that_say_nothing_and_one_that_goes_do_not_stop_the_others(start):
    program = ready(start(WAIT))
    name, key = await_address(program.pid)
    with connected(name) as gone:
        gone.send(f"{key}\nstats".encode())
    with ExitStack() as silent:
        first, *_ = [silent.enter_context(connected(name)) for _ in range(20)]
        assert ask(program.pid, "stats")["allocator"] == "hz"
        assert first.recv(1) == b"", "it came first, and there are too many"
        for few in (8, 3):
            resource.prlimit(program.pid, resource.RLIMIT_NOFILE, (few, few))
            assert ask(program.pid, "stats")["allocator"] == "hz"


SECURE = """
#include <stdio.h>
#include <sys/auxv.h>
#include <sys/stat.h>
int main(void)
{
    struct stat tasks;
    stat("/proc/self/task", &tasks);
    return printf("%lu %lu", getauxval(AT_SECURE), tasks.st_nlink - 2) != 3;
}
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a program of another user")
def test_a_set_user_id_program_starts_no_agent(libhz, tmp_path):
    program = tmp_path / "secure"
    with TemporaryDirectory() as folder:  # the other user has to reach the agent
        agent = shutil.copy(libhz.parent / "libhz-agent.so", folder)
        Path(folder).chmod(0o755)
        words = ["cc", "-o", program, "-Wl,--no-as-needed", agent, f"-Wl,-rpath,{folder}"]
        subprocess.run([*words, "-x", "c", "-"], input=SECURE, text=True, check=True)
        said = [subprocess.check_output([program], text=True)]
        os.chown(program, ANOTHER_USER, 0)
        program.chmod(0o4755)
        said.append(subprocess.check_output([program], text=True))
    if said[1][0] == "0":
        pytest.skip("the folder of the tests is mounted without set-user-id")
    assert said == ["0 2", "1 1"]


# ---- what the program sees of it -----------------------------------------------------------------


def test_the_thread_has_a_table_of_its_own_before_it_opens_anything(libhz, tmp_path):
    log = tmp_path / "calls"
    strace = ["strace", "-f", "-o", log, "-e", "trace=openat,socket,memfd_create,close_range"]
    switch = ["env", "HZ_CONTROL=1", f"LD_PRELOAD={libhz}"]
    subprocess.run([*strace, *switch, "sleep", "0.2"], timeout=DEADLINE_S, check=True)
    calls = [line.split(maxsplit=1) for line in log.read_text().splitlines()]
    (thread,) = {words[0] for words in calls if words[1].startswith("close_range")}
    first = next(words[1] for words in calls if words[0] == thread)
    assert first.startswith("close_range")


def test_what_a_thread_that_a_request_started_says_is_on_the_programs_stderr(start):
    program = ready(start(LATE_DOUBLE_FREE))
    said = ask(program.pid, "set", "background_period_us=1024")
    assert said["after"] == {"background_period_us": 1024}
    _, said = program.communicate("go\n", timeout=DEADLINE_S)
    assert "freed twice" in said
