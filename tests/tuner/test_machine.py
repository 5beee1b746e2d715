"""The record of the machine, its identity, and the lock that keeps timed windows apart."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from hztune import machine
from hztune.machine import Machine, group_limit
from hztune.study.bench import Budget, SystemClock

RECORD = Machine("CPU 3000", 2, None, "6.1", "glibc 2.36", 4096, "madvise", "", "", 24, None)


def put(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_this_machine_has_a_record() -> None:
    here = Machine.here()
    assert here.cpu and here.kernel and here.libc
    assert here.cores == len(os.sched_getaffinity(0))
    assert here.page_size % 4096 == 0
    assert Machine.here() == here


def test_a_machine_that_shows_nothing_still_has_a_record(tmp_path: Path) -> None:
    bare = Machine.here(tmp_path)
    shown = (bare.quota, bare.thp, bare.governor, bare.turbo, bare.memory_gib)
    assert shown == (None, "", "", "", 0)


def test_everything_that_the_system_shows_is_recorded(tmp_path: Path) -> None:
    files = {
        "proc/cpuinfo": "processor\t: 0\nmodel name\t: CPU 3000\n",
        "proc/meminfo": "MemTotal:       16284684 kB\n",
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
        "sys/devices/system/cpu/intel_pstate/no_turbo": "0\n",
    }
    record = Machine.here(put(tmp_path, files))
    assert (record.cpu, record.memory_gib) == ("CPU 3000", 16)
    assert (record.thp, record.governor, record.turbo) == ("madvise", "powersave", "on")


@pytest.mark.parametrize(
    ("mode", "sizes", "said"),
    [
        ("madvise", {16: "never", 64: "never", 2048: "inherit"}, "madvise"),
        (
            "madvise",
            {16: "never", 32: "always", 64: "always", 128: "inherit", 2048: "never"},
            "madvise, always for 32 64 KiB, madvise for 128 KiB, never for 2048 KiB",
        ),
        ("never", {64: "inherit", 2048: "inherit"}, "never"),
    ],
)
def test_sizes_of_huge_pages_are_named_where_their_mode_is_unusual(
    mode: str, sizes: dict[int, str], said: str, tmp_path: Path
) -> None:
    folder = "sys/kernel/mm/transparent_hugepage"
    files = {f"{folder}/enabled": f"[{mode}]", f"{folder}/hpage_pmd_size": "2097152"}
    for size, own in sizes.items():
        files[f"{folder}/hugepages-{size}kB/enabled"] = f"always [{own}]"
    assert Machine.here(put(tmp_path, files)).thp == said


@pytest.mark.parametrize("name", ["flags", "Features"])
def test_the_features_of_the_processor_are_recorded_whatever_their_order(
    name: str, tmp_path: Path
) -> None:
    def of(features: str) -> str:
        return Machine.here(put(tmp_path, {"proc/cpuinfo": f"{name}\t: {features}\n"})).cpu_flags

    assert of("fpu sse2 avx2") == of("avx2 fpu sse2") != of("fpu sse2") != ""


def test_an_arm_processor_is_named_by_its_parts(tmp_path: Path) -> None:
    files = {"proc/cpuinfo": "CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"}
    assert Machine.here(put(tmp_path, files)).cpu.endswith("0x41 0xd0c")


def test_the_smallest_quota_on_the_way_up_counts_in_version_2(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/outer/inner\n",
        "sys/fs/cgroup/outer/cpu.max": "150000 100000\n",
        "sys/fs/cgroup/outer/inner/cpu.max": "max 100000\n",
        "sys/fs/cgroup/outer/inner/memory.max": "1073741824\n",
        "sys/fs/cgroup/outer/inner/memory.current": "4096\n",
        "sys/fs/cgroup/outer/memory.max": "max\n",
        "proc/7/cgroup": "0::/outer/inner\n",
    }
    record = Machine.here(put(tmp_path, files))
    assert (record.quota, record.memory_limit_kb) == (1.5, 1 << 20)
    assert group_limit("7", tmp_path) == (1 << 30, 4096)


def test_quota_and_limit_are_read_in_version_1(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "4:memory:/box\n3:cpu,cpuacct:/box\n",
        "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us": "50000\n",
        "sys/fs/cgroup/cpu/box/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/memory/box/memory.limit_in_bytes": "2097152\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    }
    record = Machine.here(put(tmp_path, files))
    assert (record.quota, record.memory_limit_kb) == (0.5, 2048)


def test_every_field_changes_the_fingerprint_and_is_told_in_words() -> None:
    assert RECORD.differences(dataclasses.replace(RECORD)) == ()
    assert RECORD.fingerprint == dataclasses.replace(RECORD).fingerprint
    for field in dataclasses.fields(Machine):
        value = getattr(RECORD, field.name)
        changed = f"{value}x" if isinstance(value, str) else 77
        other = dataclasses.replace(RECORD, **{field.name: changed})
        assert other.fingerprint != RECORD.fingerprint
        (told,) = RECORD.differences(other)
        here = "none" if value is None else value or "unknown"
        assert told.endswith(f": {changed} there, {here} here")


MACHINE_ID = "3f2a" * 8
BOOT = {"proc/sys/kernel/random/boot_id": "0f1e\n"}
NO_MACHINE_IDS = {
    "it has none": {},
    "it has never run": {"etc/machine-id": ""},
    "it runs for the first time": {"etc/machine-id": "uninitialized\n"},
    "its id is no id": {"etc/machine-id": "0" * 32},
}


def called(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.socket, "gethostname", lambda: name)


def test_an_identity_outlasts_a_restart_and_shows_nothing_of_the_machine_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called("vm", monkeypatch)
    put(tmp_path, {"etc/machine-id": MACHINE_ID + "\n", **BOOT})
    before = machine.identity(tmp_path)
    put(tmp_path, {"proc/sys/kernel/random/boot_id": "another\n"})
    assert machine.identity(tmp_path) == before
    assert len(before) == 12
    assert before not in MACHINE_ID
    copy = put(tmp_path / "copy", {"etc/machine-id": MACHINE_ID[::-1], **BOOT})
    found = {before, machine.identity(copy)}
    called("another", monkeypatch)
    assert len({*found, machine.identity(tmp_path), machine.identity(copy)}) == 4


@pytest.mark.parametrize("why", NO_MACHINE_IDS)
def test_a_machine_without_a_machine_id_is_known_until_its_restart_where(
    why: str, tmp_path: Path
) -> None:
    put(tmp_path, {**NO_MACHINE_IDS[why], **BOOT})
    before = machine.identity(tmp_path)
    assert machine.identity(tmp_path) == before
    put(tmp_path, {"proc/sys/kernel/random/boot_id": "another\n"})
    assert machine.identity(tmp_path) != before


HOLDER = """
import sys
from hztune.machine import timed_window
for _ in range(10):
    with timed_window():
        print("in", flush=True)
        print("out", flush=True)
"""


def start_holder(folder: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with (folder / "log").open("ab") as log:
        return subprocess.Popen([sys.executable, "-c", HOLDER], env=environment, stdout=log)


def test_two_timed_windows_never_overlap(tmp_path: Path) -> None:
    holders = [start_holder(tmp_path) for _ in range(2)]
    assert [holder.wait() for holder in holders] == [0, 0]
    assert (tmp_path / "log").read_text().split() == ["in", "out"] * 20


def test_no_budget_pays_for_the_time_in_which_another_process_has_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 100.0

    def wait(fd: int, operation: int) -> None:
        nonlocal now_s
        now_s += 2.5

    monkeypatch.setattr(machine.fcntl, "flock", wait)
    monkeypatch.setattr(machine.time, "monotonic", lambda: now_s)
    one = Budget(SystemClock(), 60.0)
    with machine.timed_window():
        now_s += 1.0
    assert (one.elapsed(), one.waited_s) == (1.0, 2.5)


def test_a_window_whose_holder_was_killed_is_free_again() -> None:
    code = "from hztune.machine import timed_window\nwith timed_window():\n  print(); input()"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    holder = subprocess.Popen(
        [sys.executable, "-uc", code],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    holder.kill()
    holder.communicate()
    with machine.timed_window():
        pass


def is_kept_out(change: Callable[[], None]) -> bool:
    """Whether a process that has changed itself in some way has to wait for this one's window."""

    def wait(fd: int, operation: int) -> None:
        flock(fd, operation | fcntl.LOCK_NB)

    flock = fcntl.flock
    with machine.timed_window():
        child = os.fork()
        if child == 0:
            status = 1
            try:
                change()
                machine.fcntl.flock = wait
                with machine.timed_window():
                    status = 2
            except BlockingIOError:
                status = 0
            finally:
                os._exit(status)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def be_nobody() -> None:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)


def test_another_environment_does_not_open_another_window(tmp_path: Path) -> None:
    def move() -> None:
        os.environ.update(TMPDIR=str(tmp_path), XDG_RUNTIME_DIR=str(tmp_path), HOME=str(tmp_path))
        tempfile.tempdir = None

    assert is_kept_out(move)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_does_not_open_another_window() -> None:
    assert is_kept_out(be_nobody)


def test_all_users_lock_the_same_directory_whether_or_not_they_may_write_there(
    tmp_path: Path,
) -> None:
    for name in ("run/lock", "run", "tmp"):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    (tmp_path / "run/lock").chmod(0o555)
    assert machine._lock_folder(tmp_path) == tmp_path / "run/lock"
    (tmp_path / "run/lock").chmod(0o711)  # root could read it, others could not
    assert machine._lock_folder(tmp_path) == tmp_path / "run"
    (tmp_path / "run/lock").rmdir()
    (tmp_path / "run").rmdir()
    (tmp_path / "run").symlink_to("nowhere")
    assert machine._lock_folder(tmp_path) == tmp_path / "tmp"
    (tmp_path / "tmp").rmdir()
    assert machine._lock_folder(tmp_path) == tmp_path
