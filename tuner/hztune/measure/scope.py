"""A control group for one run: the kernel holds its processes to a quota, or freezes them.

A quota takes a group of one's own in the unified hierarchy (cgroup v2), or one in the hierarchies
of its controllers (v1). Only the program joins the group: hz-launch, what loads a server, and
hztune itself stay outside. A freezer stops all processes of a unit between its turns. Only version
2 can: what stands in a freezer of version 1 cannot even be killed.

A group is removed when its run is over; where hztune is killed, by hz-alternate or hz-launch, which
end the program then. One that is left all the same is empty, and goes when the next one is made
beside it.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hztune.errors import UsageError
from hztune.files import text_or_empty
from hztune.machine import GROUPS, control_groups
from hztune.quota import Quota

_PERIOD_US = 100_000
_OURS = re.compile(r"hztune-(\d+)-\d+")
_GONE_S = 2.0
_serial = itertools.count()


def is_out_of_memory(quota: Quota | None, groups: Iterable[Path]) -> bool:
    if quota is None or quota.memory_kb is None:
        return False
    counts = [group / name for group in groups for name in ("memory.events", "memory.oom_control")]
    return any(_counted(path, "oom_kill") for path in counts)


@contextmanager
def entered(quota: Quota | None, root: Path = Path("/")) -> Iterator[tuple[Path, ...]]:
    """Makes a group in each hierarchy that holds a limit; UsageError: this process may not."""
    groups = () if quota is None else _made(quota, root)
    try:
        yield groups
    finally:
        for group in groups:
            _remove(group)


@contextmanager
def freezer(root: Path = Path("/")) -> Iterator[Path | None]:
    """Makes a group that can be frozen, inside this process's group; None: not permitted here."""
    group, mounts = None, (root / GROUPS, root / GROUPS / "unified")
    for mount in mounts:
        own = next(control_groups(mount, "", root), mount)
        if (mount / "cgroup.controllers").exists() and os.access(own / "cgroup.procs", os.W_OK):
            with contextlib.suppress(OSError):
                group = _group(own, {})
            break
    if group is not None:
        can_freeze = (group / "cgroup.freeze").exists()
        if not can_freeze or text_or_empty(group / "cgroup.type") != "domain":
            _remove(group)
            group = None
    try:
        yield group
    finally:
        if group is not None:
            _remove(group)


def _made(quota: Quota, root: Path) -> tuple[Path, ...]:
    wanted: dict[str, tuple[dict[str, str], dict[str, str]]] = {}  # limits of version 2, and of 1
    if quota.cpus is not None:
        runtime, period = str(round(quota.cpus * _PERIOD_US)), str(_PERIOD_US)
        new = {"cpu.max": f"{runtime} {period}"}
        wanted["cpu"] = new, {"cpu.cfs_period_us": period, "cpu.cfs_quota_us": runtime}
    if quota.memory_kb is not None:
        most = str(quota.memory_kb << 10)
        new = {"memory.max": most, "memory.oom.group": "1", "memory.swap.max": "0"}
        old = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
        wanted["memory"] = new, dict.fromkeys(old, most)
    mount, refused, groups = root / GROUPS, list[str](), list[Path]()
    if wanted.keys() <= {*text_or_empty(mount / "cgroup.controllers").split()}:
        limits = {name: value for new, _ in wanted.values() for name, value in new.items()}
        parents = control_groups(mount, "", root)
        if group := _first_group(parents, limits, refused, [*wanted]):
            return (group,)
    for controller, (_, limits) in wanted.items():
        parents = control_groups(mount / controller, controller, root)
        is_there = (mount / controller / "cgroup.procs").exists()
        if is_there and (group := _first_group(parents, limits, refused)):
            groups.append(group)
    if len(groups) == len(wanted):
        return tuple(groups)
    for group in groups:  # all of them, or none
        _remove(group)
    why = "; ".join(refused) or "no hierarchy with the controllers cpu and memory is mounted"
    raise UsageError(
        f"{' '.join(quota.options)}: this process may not make a control group ({why}); "
        "run hztune as root; or under systemd, from a group that is delegated to you: "
        "systemd-run --user --scope -p Delegate=yes hztune ...; or in a container that was started "
        "with --privileged --cgroupns=host"
    )


def _first_group(
    parents: Iterator[Path],
    limits: Mapping[str, str],
    refused: list[str],
    controllers: list[str] | None = None,
) -> Path | None:
    """A group in one's own, or in the nearest above that allows it.

    In the unified hierarchy only the topmost group may have processes and controlled children.
    """
    for parent in parents:
        try:
            control = parent / "cgroup.subtree_control"
            if controllers and not {*controllers} <= {*text_or_empty(control).split()}:
                control.write_text(" ".join(f"+{name}" for name in sorted(controllers)))
            return _group(parent, limits)
        except OSError as error:
            refused.append(f"{parent}: {error.strerror}")
    return None


def _group(parent: Path, limits: Mapping[str, str]) -> Path:
    """A new group with limits (of swap where it is counted); groups of dead processes go first."""
    with contextlib.suppress(OSError):
        for folder in parent.iterdir():
            found = _OURS.fullmatch(folder.name)
            if found and not Path("/proc", found[1]).exists():
                with contextlib.suppress(OSError):
                    folder.rmdir()
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


def _remove(group: Path) -> None:
    """Removes a group; its last process may still be on its way out of it."""
    deadline = time.monotonic() + _GONE_S
    while time.monotonic() < deadline:
        try:
            return group.rmdir()
        except OSError as error:
            if error.errno != errno.EBUSY:
                return
            time.sleep(0.01)


def _counted(path: Path, name: str) -> int:
    found = re.search(rf"^{name} (\d+)$", text_or_empty(path), re.M)
    return int(found[1]) if found else 0
