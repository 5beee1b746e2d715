"""The record of the machine, its identity, and the lock that keeps timed windows apart."""

import dataclasses
import platform
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from hztune import machine
from hztune.machine import Machine, group_limit
from hztune.study.bench import Budget, system_clock

from .conftest import MACHINE, put

THP = "sys/kernel/mm/transparent_hugepage"
GROUP = "sys/fs/cgroup"


def pages(mode, sizes):
    """The modes of huge pages: that of all, of which 2 MiB is the largest, and of each size."""
    files = {f"{THP}/enabled": f"[{mode}]", f"{THP}/hpage_pmd_size": "2097152"}
    return files | {f"{THP}/hugepages-{n}kB/enabled": f"always [{own}]" for n, own in sizes.items()}


UNUSUAL = {16: "never", 32: "always", 64: "always", 128: "inherit", 2048: "never"}
RECORDED = {
    "nothing": ({}, {
        "quota": None, "thp": "", "governor": "", "turbo": "", "memory_gib": 0, "cpu_flags": "",
        "memory_limit_kb": None,
    }),
    "what most machines show": ({
        "proc/cpuinfo": "processor\t: 0\nmodel name\t: CPU 3000\n",
        "proc/meminfo": "MemTotal:       16284684 kB\n",
        f"{THP}/enabled": "always [madvise] never\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
        "sys/devices/system/cpu/intel_pstate/no_turbo": "0\n",
    }, {"cpu": "CPU 3000", "memory_gib": 16, "thp": "madvise", "governor": "powersave",
        "turbo": "on"}),
    "an ARM": ({"proc/cpuinfo": "CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"},
               {"cpu": f"{platform.machine()} 0x41 0xd0c"}),
    "unusual sizes": (pages("madvise", UNUSUAL), {
        "thp": "madvise, always for 32 64 KiB, madvise for 128 KiB, never for 2048 KiB",
    }),
    "groups of version 2": ({
        "proc/self/cgroup": "0::/outer/inner\n",
        f"{GROUP}/outer/cpu.max": "150000 100000\n",
        f"{GROUP}/outer/inner/cpu.max": "max 100000\n",
        f"{GROUP}/outer/inner/memory.max": "1073741824\n",
        f"{GROUP}/outer/memory.max": "max\n",
    }, {"quota": 1.5, "memory_limit_kb": 1 << 20}),
    "groups of version 1": ({
        "proc/self/cgroup": "4:memory:/box\n3:cpu,cpuacct:/box\n",
        f"{GROUP}/cpu/box/cpu.cfs_quota_us": "50000\n",
        f"{GROUP}/cpu/box/cpu.cfs_period_us": "100000\n",
        f"{GROUP}/cpu/cpu.cfs_quota_us": "-1\n",
        f"{GROUP}/cpu/cpu.cfs_period_us": "100000\n",
        f"{GROUP}/memory/box/memory.limit_in_bytes": "2097152\n",
        f"{GROUP}/memory/memory.limit_in_bytes": "9223372036854771712\n",
    }, {"quota": 0.5, "memory_limit_kb": 2048}),
}  # fmt: skip


@pytest.mark.parametrize(("files", "expected"), RECORDED.values(), ids=RECORDED)
def test_a_record_holds_what_the_system_shows(files, expected, tmp_path):
    record = Machine.here(put(tmp_path, files))
    assert {name: getattr(record, name) for name in expected} == expected


def test_the_limit_of_another_process_is_told_with_its_use(tmp_path):
    files = {
        "proc/7/cgroup": "0::/a/b\n",
        f"{GROUP}/a/b/memory.max": "max\n",
        f"{GROUP}/a/memory.max": "1073741824\n",
        f"{GROUP}/a/memory.current": "4096\n",
    }
    assert group_limit("7", put(tmp_path, files)) == (1 << 30, 4096)
    assert group_limit("8", tmp_path) is None


def test_every_field_changes_the_fingerprint_and_is_told_in_words():
    assert MACHINE.differences(dataclasses.replace(MACHINE)) == ()
    assert MACHINE.fingerprint == dataclasses.replace(MACHINE).fingerprint
    for field in dataclasses.fields(Machine):
        value = getattr(MACHINE, field.name)
        changed = f"{value}x" if isinstance(value, str) else 77
        other = dataclasses.replace(MACHINE, **{field.name: changed})
        assert other.fingerprint != MACHINE.fingerprint
        (told,) = MACHINE.differences(other)
        here = "none" if value is None else value or "unknown"
        assert told.endswith(f": {changed} there, {here} here")


def test_what_one_thread_waits_is_taken_from_the_budget_of_no_other():
    def other():
        with machine.timed_window():
            return machine.waited_s()

    with ThreadPoolExecutor(1) as pool, machine.timed_window():
        before, waiting = machine.waited_s(), pool.submit(other)
        time.sleep(0.05)  # it waits
    assert waiting.result() > 0.0
    assert machine.waited_s() == before


def test_a_long_wait_for_the_machine_is_told_while_it_lasts(monkeypatch):
    monkeypatch.setattr(machine, "_LONG_WAIT_S", 0.001)
    told = Event()

    def other():
        machine.waiting.tell = told.set
        with machine.timed_window():
            assert told.is_set()

    with ThreadPoolExecutor(1) as pool, machine.timed_window():
        waiting = pool.submit(other)
        assert told.wait(9.0)
    waiting.result()


def test_two_timed_windows_never_overlap(tmp_path):
    code = "from hztune.machine import timed_window\nfor _ in range(10):\n"
    holder = [sys.executable, "-uc", f"{code}  with timed_window(): print('in'); print('out')"]
    with (tmp_path / "log").open("ab") as log:
        holders = [subprocess.Popen(holder, stdout=log) for _ in range(2)]
        assert [each.wait() for each in holders] == [0, 0]
    assert (tmp_path / "log").read_text().split() == ["in", "out"] * 20


def test_no_budget_pays_for_the_time_in_which_another_process_has_the_machine(monkeypatch):
    now_s = 100.0

    def wait(fd, operation):
        nonlocal now_s
        now_s += 2.5

    monkeypatch.setattr(machine.fcntl, "flock", wait)
    monkeypatch.setattr(machine.time, "monotonic", lambda: now_s)
    one = Budget(system_clock, 60.0)
    with machine.timed_window():
        now_s += 1.0
    assert (one.elapsed(), one.waited_s) == (1.0, 2.5)


def test_all_users_lock_the_same_directory_whatever_they_may_write(tmp_path):
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
