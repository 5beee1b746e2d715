"""The machine that measures: its record, and the lock on its timed windows."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import stat
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from hztune.files import text_or_empty

_CPU_QUOTA_V2 = "cpu.max"
_MEMORY_V2 = "memory.max"
_UNLIMITED_BYTES = 1 << 60
_LONG_WAIT_S = 5.0  # seconds of waiting for another hztune from which on that is said
GROUPS = Path("sys/fs/cgroup")  # where control groups are mounted
WORDS = {  # how sentences name the fields of a record
    "cpu": "CPU model",
    "cores": "number of CPUs",
    "quota": "CPU quota",
    "kernel": "kernel",
    "libc": "C library",
    "page_size": "page size",
    "thp": "mode of transparent huge pages",
    "governor": "frequency governor",
    "turbo": "turbo",
    "memory_gib": "memory (GiB)",
    "memory_limit_kb": "memory limit of the control group (KiB)",
    "cpu_flags": "CPU features (hash)",
}


@dataclass(frozen=True, slots=True)
class Machine:
    """What decides how fast a configuration is here; a text is "" where it cannot be read."""

    cpu: str
    cores: int  # CPUs that this process may run on
    quota: float | None  # CPUs' worth of time that its control group may use; None: no limit
    kernel: str
    libc: str
    page_size: int
    thp: str  # mode of transparent huge pages, and sizes that have another one than usual
    governor: str  # frequency governor of the first CPU
    turbo: str  # on, off
    memory_gib: int  # rounded: a few pages differ from boot to boot
    memory_limit_kb: int | None  # limit of its control group; None: no limit
    cpu_flags: str = ""  # a short hash of the CPU's features as the kernel lists them

    @classmethod
    def here(cls, root: Path = Path("/")) -> Machine:
        cpuinfo, cpu = text_or_empty(root / "proc/cpuinfo"), root / "sys/devices/system/cpu"
        boost = "/".join(
            text_or_empty(cpu / name) for name in ("cpufreq/boost", "intel_pstate/no_turbo")
        )
        flags = " ".join(sorted(_after("flags|Features", cpuinfo).split()))
        # Where the kernel gives no name (arm64).
        parts = re.findall(r"^CPU (?:implementer|part)\s*: (\S+)$", cpuinfo, re.M)[:2]
        limit, memory = group_limit(root=root), text_or_empty(root / "proc/meminfo")
        return cls(
            cpu=_after("model name", cpuinfo) or " ".join([platform.machine(), *parts]),
            cores=len(os.sched_getaffinity(0)),
            quota=_cpu_quota(root),
            kernel=platform.release(),
            libc=" ".join(platform.libc_ver()),
            page_size=os.sysconf("SC_PAGE_SIZE"),
            thp=_huge_pages(root / "sys/kernel/mm/transparent_hugepage"),
            governor=text_or_empty(cpu / "cpu0/cpufreq/scaling_governor"),
            turbo={"1/": "on", "/0": "on", "0/": "off", "/1": "off"}.get(boost, ""),
            memory_gib=round(int(_after("MemTotal", memory).split(" ")[0] or 0) / 2**20),
            memory_limit_kb=limit[0] // 1024 if limit else None,
            cpu_flags=hashlib.sha256(flags.encode()).hexdigest()[:12] if flags else "",
        )

    @property
    def fingerprint(self) -> str:
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def described(self) -> tuple[tuple[str, str], ...]:
        return tuple((WORDS[f.name], shown(getattr(self, f.name))) for f in fields(self))

    def differences(self, other: Machine) -> tuple[str, ...]:
        here, there = asdict(self), asdict(other)
        return tuple(
            f"{word}: {shown(there[name])} there, {shown(here[name])} here"
            for name, word in WORDS.items()
            if there[name] != here[name]
        )


class _Waiting(threading.local):
    seconds = 0.0
    tell: Callable[[], object] = int  # called while a wait lasts that makes these many


waiting = _Waiting()


def waited_s() -> float:
    """By this thread: another one has a budget of its own."""
    return waiting.seconds


@contextlib.contextmanager
def timed_window() -> Iterator[None]:
    """Holds the machine for one timed window: no two of them overlap, in any process.

    The lock is the kernel's (flock): it ends with its holder. It is on a directory that all users
    share, may read, and none may replace. If others measure beside a container, it has to be given
    the host's directory (`-v /run/lock:/run/lock`).
    """
    fd = os.open(_lock_folder(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        asked_s = time.monotonic()
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            teller = threading.Timer(_LONG_WAIT_S - waiting.seconds, waiting.tell)
            if waiting.seconds < _LONG_WAIT_S:  # else it was told
                teller.start()
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
            finally:
                teller.cancel()
        waiting.seconds += time.monotonic() - asked_s
        yield
    finally:
        os.close(fd)


def _lock_folder(root: Path = Path("/")) -> Path:
    """The same for every user, whatever the environment, and not shared over a network."""
    return next(filter(_all_may_read, (root / name for name in ("run/lock", "run", "tmp"))), root)


def _all_may_read(folder: Path) -> bool:
    try:
        mode = folder.stat().st_mode
    except OSError:
        return False
    return stat.S_ISDIR(mode) and bool(mode & stat.S_IROTH)


def quota_paths(
    root: Path, controller: str, name_v2: str, name_v1: str, whose: str = "self"
) -> tuple[Path, ...]:
    """Where a limit of a process's control group may stand, its own group first.

    `controller`: of v1 ("cpu"). `name_v2`: of the unified hierarchy ("cpu.max"). `name_v1`: of the
    controller's own ("cpu.cfs_quota_us"). `whose`: the process's number. `root`: / in tests.
    """
    mount = root / GROUPS
    found = [group / name_v2 for group in control_groups(mount, "", root, whose)]
    found += [
        group / name_v1 for group in control_groups(mount / controller, controller, root, whose)
    ]
    return tuple(path for path in found if path.is_file())


def control_groups(
    mount: Path, controller: str, root: Path = Path("/"), whose: str = "self"
) -> Iterator[Path]:
    """The groups of a process in the hierarchy of a controller ("": version 2), its own first."""
    for line in text_or_empty(root / "proc" / whose / "cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controller in controllers.split(","):
            own = mount / group.strip("/")
            for folder in (own, *own.parents):
                if folder.is_relative_to(mount) and folder.is_dir():
                    yield folder


def _cpu_quota(root: Path) -> float | None:
    quotas = []
    for path in quota_paths(root, "cpu", _CPU_QUOTA_V2, "cpu.cfs_quota_us"):
        words = text_or_empty(path).split()
        if path.name != _CPU_QUOTA_V2:
            words.append(text_or_empty(path.with_name("cpu.cfs_period_us")))
        if words[0].isdigit() and int(words[0]) > 0:
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def group_limit(whose: str = "self", root: Path = Path("/")) -> tuple[int, int] | None:
    """The smallest memory limit above a process and its use, bytes; None: there is no limit."""
    limits = []
    for path in quota_paths(root, "memory", _MEMORY_V2, "memory.limit_in_bytes", whose):
        text, used = text_or_empty(path), "current" if path.name == _MEMORY_V2 else "usage_in_bytes"
        if text.isdigit() and int(text) < _UNLIMITED_BYTES:
            limits.append((int(text), int(text_or_empty(path.with_name(f"memory.{used}")) or 0)))
    return min(limits, default=None)


def _after(name: str, text: str) -> str:
    found = re.search(rf"^(?:{name})\s*:\s*(.+)$", text, re.M)
    return found[1].strip() if found else ""


def _huge_pages(folder: Path) -> str:
    """The mode of transparent huge pages, and which sizes have an unusual one.

    "madvise, always for 32 64 KiB": since Linux 6.8 each size has a mode. Usually the largest has
    that of all, and no other is used.
    """
    mode = _chosen(folder)
    largest = text_or_empty(folder / "hpage_pmd_size")
    unusual: dict[str, list[int]] = {}
    names = (path.name for path in folder.glob("hugepages-*kB"))
    for kib in sorted(int(name.removeprefix("hugepages-").removesuffix("kB")) for name in names):
        own = _chosen(folder / f"hugepages-{kib}kB").replace("inherit", mode)
        if own not in ("", mode if largest == str(kib * 1024) else "never"):
            unusual.setdefault(own, []).append(kib)
    sizes = (f"{own} for {' '.join(map(str, kib))} KiB" for own, kib in unusual.items())
    return ", ".join((mode, *sizes))


def _chosen(folder: Path) -> str:
    """The word in brackets of its file: "madvise" of "always [madvise] never"."""
    found = re.search(r"\[(\w+)\]", text_or_empty(folder / "enabled"))
    return found[1] if found else ""


def shown(value: object) -> str:
    return "none" if value is None else str(value) or "unknown"
