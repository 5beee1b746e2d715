"""A control group for one run: the kernel holds its processes to a quota, or freezes them.

A quota. Three ways, in this order: a group of one's own in the unified hierarchy (cgroup v2), one
in the hierarchies of its controllers (v1), or a scope that systemd makes. Only the program joins
the group: hz-launch, what loads a server, and hztune itself stay outside; in systemd's scope
hz-launch is inside.

A freezer stops all processes of a unit between its turns. Only version 2 can: what stands in a
freezer of version 1 cannot even be killed.

A group is removed when its run is over; where hztune is killed, by hz-alternate or hz-launch, which
end the program then. One that is left all the same is empty, and goes when the next one is made
beside it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hztune.errors import UsageError
from hztune.quota import Quota, memory_text

_PERIOD_US = 100_000
_MOUNT = Path("sys/fs/cgroup")
_OURS = re.compile(r"hztune-(\d+)-\d+")
_RUN = "systemd-run"
_GONE_S = 2.0
_serial = itertools.count()


@dataclass(frozen=True)
class Scope:
    """Where the program of one run lives.

    Attributes:
        quota: What it may use; None: there is no group.
        groups: Its control groups, one in each hierarchy that holds a limit.
        wrap: Words that stand before hz-launch; empty where the program joins by itself.
    """

    quota: Quota | None = None
    groups: tuple[Path, ...] = ()
    wrap: tuple[str, ...] = ()

    @property
    def doors(self) -> list[Path]:
        """The files by which a process joins."""
        return [group / "cgroup.procs" for group in self.groups]

    def kills(self) -> int:
        """Processes that the kernel ended for want of memory."""
        return sum(
            _counted(group / name, "oom_kill")
            for group in self.groups
            for name in ("memory.events", "memory.oom_control")
        )

    def is_out_of_memory(self, signal: int) -> bool:
        """Whether its program ended for want of memory.

        Args:
            signal: That ended it, 0: none did. systemd removes a scope with its last process, so
                that nothing is left to count in; there a SIGKILL that nothing of hztune's sent is
                the kernel's.
        """
        if self.quota is None or self.quota.memory_kb is None:
            return False
        return self.kills() > 0 or (bool(self.wrap) and signal == 9)

    def charged_kb(self, lazy_kb: int) -> int:
        """What the kernel charges the group and cannot reclaim, KiB; 0: not known.

        Args:
            lazy_kb: What its processes have given back lazily, KiB.
        """
        return max((_charged_kb(group, lazy_kb) for group in self.groups), default=0)


@contextmanager
def entered(quota: Quota | None, root: Path = Path("/")) -> Iterator[Scope]:
    """Makes a group for as long as the block lasts; its processes have ended when the block does.

    Args:
        quota: None: no group is made.
        root: Stands for / in tests.

    Raises:
        UsageError: There is no right to make one; the text says how to get it.
    """
    if quota is None:
        yield Scope()
        return
    scope = _made(quota, root)
    try:
        yield scope
    finally:
        for group in scope.groups:
            _remove(group)


@contextmanager
def freezer(root: Path = Path("/")) -> Iterator[Path | None]:
    """Makes a group whose processes can be frozen, for as long as the block lasts.

    It stands in this process's own group, so that whatever holds for that holds in it, too.

    Args:
        root: Stands for / in tests.

    Yields:
        Its folder; None: this process may not make one, or not put processes into it.
    """
    group = _freezer(root)
    try:
        yield group
    finally:
        if group is not None:
            _remove(group)


def _freezer(root: Path) -> Path | None:
    mounts = (root / _MOUNT, root / _MOUNT / "unified")
    mount = next((each for each in mounts if (each / "cgroup.controllers").exists()), None)
    if mount is None:
        return None
    own = mount / _own_group(root, "")
    if not os.access(own / "cgroup.procs", os.W_OK):
        return None
    with contextlib.suppress(OSError):
        group = _group(own, {})
        if (group / "cgroup.freeze").exists() and _words(group / "cgroup.type") == ["domain"]:
            return group
        _remove(group)
    return None


def _made(quota: Quota, root: Path) -> Scope:
    """The first way that works."""
    refusals = _Refusals()
    for make in (_unified, _by_controller):
        groups = make(quota, root, refusals)
        if groups:
            return Scope(quota, groups)
    if (systemd := shutil.which(_RUN)) and (root / "run/systemd/system").is_dir():
        return Scope(quota, wrap=_systemd_words(systemd, quota))
    raise UsageError(
        f"{' '.join(quota.options)}: this process may not make a control group ({refusals.text}); "
        "run hztune as root; or under systemd, from a group that is delegated to you: "
        "systemd-run --user --scope -p Delegate=yes hztune ...; or in a container that was started "
        "with --privileged --cgroupns=host"
    )


@dataclass
class _Refusals:
    """Why groups could not be made, by the folder that refused."""

    seen: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "; ".join(self.seen) or "no hierarchy with the controllers cpu and memory is mounted"

    @contextmanager
    def noted(self, folder: Path) -> Iterator[None]:
        """Goes on where the kernel refuses."""
        try:
            yield
        except OSError as error:
            self.seen.append(f"{folder}: {error.strerror}")


# ---- version 2 -----------------------------------------------------------------------------------


def _unified(quota: Quota, root: Path, refusals: _Refusals) -> tuple[Path, ...]:
    """A group in the unified hierarchy: in one's own, or in the nearest above that allows it.

    A group that has processes may have no children with controllers, but for the topmost one.
    """
    mount = root / _MOUNT
    files = {}
    if quota.cpus is not None:
        files["cpu"] = {"cpu.max": f"{round(quota.cpus * _PERIOD_US)} {_PERIOD_US}"}
    if quota.memory_kb is not None:
        limit = {"memory.max": str(quota.memory_kb << 10), "memory.oom.group": "1"}
        files["memory"] = {**limit, "memory.swap.max": "0"}
    if not set(files) <= set(_words(mount / "cgroup.controllers")):
        return ()
    for parent in _upwards(mount, _own_group(root, "")):
        control = parent / "cgroup.subtree_control"
        with refusals.noted(parent):
            if not set(files) <= set(_words(control)):
                control.write_text(" ".join(f"+{name}" for name in files))
            return (_group(parent, {k: v for each in files.values() for k, v in each.items()}),)
    return ()


# ---- version 1 -----------------------------------------------------------------------------------


def _by_controller(quota: Quota, root: Path, refusals: _Refusals) -> tuple[Path, ...]:
    """A group in the hierarchy of each controller that is needed; all of them, or none."""
    files: dict[str, dict[str, str]] = {}
    if quota.cpus is not None:
        runtime_us = str(round(quota.cpus * _PERIOD_US))
        files["cpu"] = {"cpu.cfs_period_us": str(_PERIOD_US), "cpu.cfs_quota_us": runtime_us}
    if quota.memory_kb is not None:
        limit = str(quota.memory_kb << 10)
        files["memory"] = {"memory.limit_in_bytes": limit, "memory.memsw.limit_in_bytes": limit}
    made: list[Path] = []
    for controller, limits in files.items():
        group = _in_hierarchy(root, controller, limits, refusals)
        if group is None:
            for other in made:
                _remove(other)
            return ()
        made.append(group)
    return tuple(made)


def _in_hierarchy(
    root: Path, controller: str, limits: Mapping[str, str], refusals: _Refusals
) -> Path | None:
    mount = root / _MOUNT / controller
    if not (mount / "cgroup.procs").exists():
        return None
    for parent in _upwards(mount, _own_group(root, controller)):
        with refusals.noted(parent):
            return _group(parent, limits)
    return None


# ---- both ----------------------------------------------------------------------------------------


def _own_group(root: Path, controller: str) -> str:
    """The group of this process in the hierarchy of a controller; "" names the unified one."""
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, group = line.split(":", 2)
            if controller in controllers.split(","):
                return group.strip("/")
    return ""


def _upwards(mount: Path, group: str) -> Iterator[Path]:
    """Yields a group's folder and those above it, as far as the hierarchy shows them."""
    own = mount / group
    for folder in (own, *own.parents):
        if folder.is_relative_to(mount) and folder.is_dir():
            yield folder


def _group(parent: Path, limits: Mapping[str, str]) -> Path:
    """A new group with limits; a limit of swap is left out where the kernel counts none.

    Raises:
        OSError: The kernel refuses; nothing is left.
    """
    _sweep(parent)
    group = parent / f"hztune-{os.getpid()}-{next(_serial)}"
    group.mkdir()
    try:
        for name, value in limits.items():
            if "sw" not in name or (group / name).exists():
                (group / name).write_text(value)
    except OSError:
        _remove(group)
        raise
    return group


def _sweep(parent: Path) -> None:
    """Removes the groups of processes that are gone."""
    with contextlib.suppress(OSError):
        for folder in parent.iterdir():
            found = _OURS.fullmatch(folder.name)
            if found and not Path("/proc", found[1]).exists():
                with contextlib.suppress(OSError):
                    folder.rmdir()


def _remove(group: Path) -> None:
    """Removes a group; its last process may still be on its way out of it."""
    deadline = time.monotonic() + _GONE_S
    while True:
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            is_busy = error.errno == 16
            if not is_busy or time.monotonic() > deadline:
                return
            time.sleep(0.01)
        else:
            return


def _systemd_words(program: str, quota: Quota) -> tuple[str, ...]:
    """The words that run a command in a scope of its own."""
    words = [program, "--scope", "--quiet", "--collect"]
    if os.geteuid() != 0:
        words.append("--user")
    if quota.cpus is not None:
        words += ["-p", f"CPUQuota={100.0 * quota.cpus:g}%"]
    if quota.memory_kb is not None:
        words += ["-p", f"MemoryMax={quota.memory_kb << 10}", "-p", "MemorySwapMax=0"]
    return (*words, "--")


def _charged_kb(group: Path, lazy_kb: int) -> int:
    """What is charged less files in memory and what was given back lazily, KiB.

    The kernel's list of such pages (`inactive_file`) does not tell: a page that was given back
    lazily and is in use again stands there until memory is short.
    """
    with contextlib.suppress(OSError, ValueError):
        stat = group / "memory.stat"
        if (group / "memory.current").exists():
            used = int((group / "memory.current").read_text())
            dropped = _counted(stat, "file") - _counted(stat, "shmem")
            dropped += _counted(stat, "slab_reclaimable")
        else:
            used = int((group / "memory.usage_in_bytes").read_text())
            dropped = _counted(stat, "total_cache") - _counted(stat, "total_shmem")
        return max(0, (used - dropped) // 1024 - lazy_kb)
    return 0


def _counted(path: Path, name: str) -> int:
    """The number behind a name in a file of such lines; 0 where there is none."""
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text(encoding="ascii").splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    return 0


def _words(path: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="ascii").split()
    return []


def memory_limit_of(pid: int, root: Path = Path("/")) -> str:
    """The memory limit of a process's control group, as an option has it; "": there is none."""
    found = []
    with contextlib.suppress(OSError, ValueError):
        for line in (root / "proc" / str(pid) / "cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            mount = root / _MOUNT / ("memory" if controllers else "")
            for folder in _upwards(mount, group.strip("/")):
                for name in ("memory.max", "memory.limit_in_bytes"):
                    text = " ".join(_words(folder / name))
                    if text.isdigit() and int(text) < 1 << 60:
                        found.append(int(text) >> 10)
    return memory_text(min(found)) if found else ""
