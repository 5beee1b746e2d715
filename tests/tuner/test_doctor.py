"""The doctor tells what disturbs measurements and the command that mends it; it changes nothing."""

import os
import sys

import pytest

from hztune.doctor import examine, remarks

from .conftest import put

HEALTHY = {
    "proc/cpuinfo": "model name\t: CPU 3000\n",
    "proc/meminfo": "MemTotal: 1000 kB\nSwapTotal: 2048 kB\nSwapFree: 2048 kB\n",
    "proc/loadavg": "0.05 0.03 0.00 1/100 4242\n",
    "proc/stat": "cpu  1000 0 500 9000 10 0 5 0 0 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n",
    "proc/sys/kernel/randomize_va_space": "2\n",
    "proc/77/comm": "bash\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
    "sys/devices/system/cpu/cpufreq/boost": "0\n",
}


def findings(root, **changes):
    """What the doctor says of the healthy machine with some of its files changed."""
    return {finding.name: finding for finding in examine(put(root, {**HEALTHY, **changes}))}


@pytest.fixture(autouse=True)
def nothing_preloaded(monkeypatch):
    monkeypatch.delenv("LD_PRELOAD", raising=False)


def test_a_healthy_machine_needs_no_mending(tmp_path):
    found = findings(tmp_path, **QUOTA)
    del found["hyperfine"]  # of this machine, not of the pictured one
    assert {finding.verdict for finding in found.values()} == {"ok"}
    assert not any(finding.mend for finding in found.values())
    assert found["CPU quota"].found == "0.5 CPUs, never throttled"


QUOTA = {"proc/self/cgroup": "0::/box\n", "sys/fs/cgroup/box/cpu.max": "50000 100000\n"}
THROTTLED = {**QUOTA, "sys/fs/cgroup/box/cpu.stat": "nr_periods 10\nnr_throttled 3\n"}
ILLS = [
    ("frequency governor", {"sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave"},
     "warn", "powersave", "cpupower frequency-set"),
    ("turbo", {"sys/devices/system/cpu/cpufreq/boost": "1"}, "warn", "on", "cpufreq/boost"),
    ("transparent huge pages",
     {"sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never"},
     "warn", "always: speed and memory depend", "echo madvise"),
    ("load", {"proc/loadavg": "1000.00 3.00 2.00 1/100 4242"}, "unfit", "1000.00", "ps -eo"),
    ("stolen time", {"proc/stat": "cpu  1000 0 500 9000 10 0 5 900 0 0\n"},
     "warn", "37.4 % of the busy time", "dedicated"),
    ("swap", {"proc/meminfo": "SwapTotal: 204800 kB\nSwapFree: 2048 kB\n"},
     "warn", "198 MiB in use", "swapoff"),
    ("address randomisation", {"proc/sys/kernel/randomize_va_space": "0"},
     "warn", "mode 0", "kernel.randomize_va_space=2"),
    ("other tuners", {"proc/88/comm": "hz-turns\n"}, "unfit", "hz-turns", "wait for process 88"),
    ("other tuners", {"proc/99/comm": "thermald\n"}, "warn", "therm", "systemctl stop thermald"),
    ("CPU quota", THROTTLED, "warn", "0.5 CPUs, throttled 3 times so far", "without --cpus"),
    ("allocator settings", {"etc/ld.so.preload": "/usr/lib/libjemalloc.so.2"},
     "warn", "libjemalloc.so.2", "sudo rm /etc/ld.so.preload"),
    ("allocator settings", {"etc/malloc.conf": "narenas:1"},
     "warn", "/etc/malloc.conf says narenas:1", "sudo rm /etc/malloc.conf"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "files", "verdict", "found", "mend"), ILLS)
def test_an_ill_is_found_and_its_mending_named(tmp_path, name, files, verdict, found, mend):
    every = findings(tmp_path, **files)
    assert every[name].verdict == verdict
    assert found in every[name].found and mend in every[name].mend
    others = [each for each in every.values() if each.name not in (name, "hyperfine")]
    assert {each.verdict for each in others} == {"ok"}


def test_what_cannot_be_seen_is_unknown_and_no_warning(tmp_path):
    found = {each.name: each for each in examine(tmp_path)}
    for name in ("frequency governor", "turbo", "load", "stolen time", "address randomisation"):
        assert (found[name].verdict, found[name].mend) == ("unknown", "")


@pytest.mark.parametrize("variable", ["_RJEM_MALLOC_CONF", "MIMALLOC_PAGE_RESET", "LD_PRELOAD"])
def test_a_setting_in_the_environment_is_found(tmp_path, monkeypatch, variable):
    monkeypatch.setenv(variable, "2")
    assert f"unset {variable}" in {found.mend for found in findings(tmp_path).values()}


WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
STARTS = ("subprocess.Popen", "os.posix_spawn", "os.system", "os.exec")
LIBRARIES = ("tempfile.", "shutil.", "socket.")
CHANGES = {"mkdir", "rename", "remove", "rmdir", "link", "symlink", "truncate", "chmod", "chown",
           "lchown", "utime", "setxattr", "removexattr", "mkfifo", "mknod"}  # fmt: skip


def changing(events):
    """Of what Python audits, what writes or starts something."""
    for event, words in events:
        is_written = event == "open" and words[2] & WRITING and words[0] != "/dev/null"
        is_change = event.partition(".")[2] in CHANGES or event.startswith(LIBRARIES)
        if is_written or is_change or event in STARTS:
            yield event, words


@pytest.mark.parametrize("words", [["doctor"], ["doctor", "--json"]], ids=" ".join)
def test_the_doctor_only_looks_and_asks_another(words, hztune_here, audited, monkeypatch, tmp_path):
    hyperfine = put(tmp_path, {"hyperfine": "#!/bin/sh\necho hyperfine 1.18.0\n"}) / "hyperfine"
    for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    with audited() as events:
        assert hztune_here(*words).returncode == 0
    ((what, (_, started, *_)),) = changing(events)
    assert what == "subprocess.Popen"
    assert " ".join(map(os.fsdecode, started)).endswith(f" {hyperfine} --version")
    assert list(tmp_path.iterdir()) == [hyperfine]


def test_what_writes_is_seen(audited, tmp_path):
    with audited() as events:
        (tmp_path / "a").write_text("text")
        (tmp_path / "a").rename(tmp_path / "b")
        (tmp_path / "c").mkdir()
    assert [what for what, _ in changing(events)] == ["open", "os.rename", "os.mkdir"]


# ---- at the start of a study ---------------------------------------------------------------------


def test_a_study_is_told_what_disturbs_the_worst_first_and_how_to_mend_it(tmp_path):
    findings(tmp_path)
    assert remarks(tmp_path) == []
    findings(tmp_path, **{"proc/sys/kernel/randomize_va_space": "0\n"})
    assert remarks(tmp_path) == [
        "warning: address randomisation: mode 0: layouts repeat (fix: sudo sysctl "
        "kernel.randomize_va_space=2); `hztune doctor` tells more"
    ]
    for name, files, *_ in ILLS:
        if name in ("load", "frequency governor", "transparent huge pages", "swap"):
            put(tmp_path, files)
    said = remarks(tmp_path)
    assert len(said) == 3
    assert said[0].startswith("warning: measurements mean little here: load: ")
    assert said[1].startswith("warning: frequency governor: powersave (fix: sudo cpupower ")
    assert said[2].endswith("; 2 more by `hztune doctor`")
