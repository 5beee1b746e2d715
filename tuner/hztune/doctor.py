"""Whether this machine is fit to measure on: read-only checks, each with the command that mends it.

A check that cannot see (a virtual machine hides its CPU's governor) says so and warns of nothing.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hztune import allocator, process
from hztune.files import text_or_empty
from hztune.machine import Machine
from hztune.measure.disturbance import Throttling
from hztune.quota import cpus_text

Fitness = Literal["ok", "warn", "unfit", "unknown"]

_BUSY_SHARE = 0.25
_VERY_BUSY_SHARE = 0.75
_STEAL_SHARE = 0.01
_OWN_PROGRAMS = frozenset({"hz-bench", "hz-turns", "hz-launch", "hz-alternate", "hyperfine"})
_FREQUENCY_TUNERS = frozenset({"auto-cpufreq", "power-profiles-", "tuned", "thermald", "tlp"})
_HYPERFINE_DEADLINE_S = 10.0
_MOST_REMARKS = 3
_LOOK_S = 0.2
_LOAD, _OTHERS = "load", "other tuners"
_HIDDEN = "not visible here (virtual machine?)"


@dataclass(frozen=True, slots=True)
class Check:
    """What one check found, and the command that mends it; "": there is nothing to mend.

    The verdict is ok; warn: it costs precision; unfit: measurements mean little; unknown.
    """

    name: str
    verdict: Fitness
    found: str
    mend: str = ""


def examine(root: Path = Path("/")) -> tuple[Check, ...]:
    """Every finding on this machine; `root` stands for / in tests."""
    return (*_checks(root), _hyperfine())


def remarks(root: Path = Path("/"), *, alone: bool = True) -> list[str]:
    """What a study is told of the machine before it measures: the worst, a sentence each.

    It reads a few files, starts nothing and takes a fifth of a second at most. A load that is over,
    such as that of the study before this one, is not told.

    Args:
        root: Stands for / in tests.
        alone: Whether nothing else of the same study measures here; else what shows its presence
            is no disturbance.
    """
    found = [each for each in _checks(root) if alone or each.name not in (_LOAD, _OTHERS)]
    serious = [each for worst in ("unfit", "warn") for each in found if each.verdict == worst]
    if any(each.name == _LOAD for each in serious) and _is_idle_now(root):
        serious = [each for each in serious if each.name != _LOAD]
    if not serious:
        return []
    told = [
        f"warning: {'measurements mean little here: ' * (each.verdict == 'unfit')}{each.name}: "
        f"{each.found} (fix: {each.mend})"
        for each in serious[:_MOST_REMARKS]
    ]
    more = len(serious) - _MOST_REMARKS
    told[-1] += f"; {more} more by `hztune doctor`" if more > 0 else "; `hztune doctor` tells more"
    return told


def _checks(root: Path) -> Iterator[Check]:
    """Every check that starts nothing."""
    machine, ticks = Machine.here(root), _ticks(root)
    yield from _settings(root, machine)
    yield from _shared(root, machine)
    if not sum(ticks):
        yield Check("stolen time", "unknown", _HIDDEN)
    else:
        stolen = ticks[7] / max(1, sum(ticks) - ticks[3] - ticks[4])
        found = f"{100 * stolen:.1f} % of the busy time since the start"
        mend = "move to a machine with dedicated CPUs"
        yield _judged("stolen time", stolen < _STEAL_SHARE, found, found, mend)
    memory = text_or_empty(root / "proc/meminfo")
    total, free = (re.search(rf"{name}:\s+(\d+) kB", memory) for name in ("SwapTotal", "SwapFree"))
    used_mb = (int(total[1]) - int(free[1])) // 1024 if total and free else 0
    swapped = f"{used_mb} MiB in use"
    yield _judged("swap", used_mb <= 0, "none in use", swapped, "sudo swapoff --all")
    yield _other_tuners(root)
    preloaded = os.environ.get("LD_PRELOAD", "")  # into hztune's helpers, too
    said = f"set to {preloaded}"
    yield _judged("LD_PRELOAD", not preloaded, "not set", said, "unset LD_PRELOAD")
    yield _allocator_settings(root)


def _judged(name: str, is_good: bool, good: str, bad: str, mend: str) -> Check:
    return Check(name, "ok", good) if is_good else Check(name, "warn", bad, mend)


def _settings(root: Path, machine: Machine) -> Iterator[Check]:
    """Settings of the kernel and of the CPU, each with the value that measurements want."""
    cpu, layout = (
        "/sys/devices/system/cpu",
        text_or_empty(root / "proc/sys/kernel/randomize_va_space"),
    )
    boost = f"echo 0 | sudo tee {cpu}/cpufreq/boost"
    if (root / f".{cpu}/intel_pstate/no_turbo").exists():
        boost = f"echo 1 | sudo tee {cpu}/intel_pstate/no_turbo"
    rows = (
        # It should not change its speed with the load.
        ("frequency governor", machine.governor, machine.governor == "performance",
         machine.governor, "sudo cpupower frequency-set --governor performance"),
        # Turbo makes the speed depend on temperature and on the other cores.
        ("turbo", machine.turbo, machine.turbo != "on", "on", boost),
        # With `always` the kernel gives huge pages to some processes and not to others.
        ("transparent huge pages", machine.thp, not machine.thp.startswith("always"),
         f"{machine.thp}: speed and memory depend on what the kernel finds",
         "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"),
        # Without it one lucky or unlucky layout is measured over and over.
        ("address randomisation", layout, layout == "2", f"mode {layout}: layouts repeat",
         "sudo sysctl kernel.randomize_va_space=2"),
    )  # fmt: skip
    for name, value, is_good, bad, mend in rows:
        known = _judged(name, is_good, value, bad, mend)
        yield known if value else Check(name, "unknown", _HIDDEN)


def _shared(root: Path, machine: Machine) -> Iterator[Check]:
    """What takes the CPUs from the arms: a quota that throttles amid a turn, and other programs."""
    throttled = Throttling(root).count() if machine.quota is not None else 0
    quota = "none" if machine.quota is None else f"{cpus_text(machine.quota)}, never throttled"
    bad = f"{cpus_text(machine.quota or 0)}, throttled {throttled} times so far"
    mend = "run without --cpus / CPUQuota=, and give --threads within it"
    yield _judged("CPU quota", throttled == 0, quota, bad, mend)
    words = text_or_empty(root / "proc/loadavg").split()
    if not words:
        yield Check(_LOAD, "unknown", _HIDDEN)
        return
    busy, cores = float(words[0]), cpus_text(machine.cores)
    found, share = (
        f"{busy:.2f} running on average in the last minute, for {cores}",
        busy / machine.cores,
    )
    mend = "ps -eo pcpu,pid,comm --sort=-pcpu | head  # and end what is not needed"
    is_unfit = share >= _VERY_BUSY_SHARE
    loaded = Check(_LOAD, "unfit" if is_unfit else "warn", found, mend)
    yield Check(_LOAD, "ok", found) if share < _BUSY_SHARE else loaded


def _ticks(root: Path) -> list[int]:
    """What all CPUs have spent since the start: user, nice, system, idle, I/O wait, ..., stolen."""
    words = text_or_empty(root / "proc/stat").partition("\n")[0].split()
    return [int(word) for word in words[1:9]] if len(words) > 8 else [0] * 8


def _is_idle_now(root: Path) -> bool:
    """Whether the CPUs are idle at the moment, whatever the average of the last minute is."""
    before = _ticks(root)
    time.sleep(_LOOK_S)
    passed = [new - old for old, new in zip(before, _ticks(root), strict=True)]
    idle = sum(passed[3:5])
    return sum(passed) > 0 and sum(passed) - idle < _BUSY_SHARE * sum(passed)


def _other_tuners(root: Path) -> Check:
    """A study beside this one, or a daemon that changes frequencies."""
    names = {text_or_empty(path / "comm"): path.name for path in (root / "proc").glob("[0-9]*")}
    for name in sorted(_OWN_PROGRAMS & names.keys()):
        mend = f"wait for process {names[name]}, or end it"
        return Check(_OTHERS, "unfit", f"{name} is running: another study?", mend)
    tuning = [*sorted(_FREQUENCY_TUNERS & names.keys()), ""][0]
    found = f"{tuning} changes the CPU's frequency"
    return _judged(_OTHERS, not tuning, "none", found, f"sudo systemctl stop {tuning}")


def _allocator_settings(root: Path) -> Check:
    """Settings that were made once act on every allocator that is measured with its defaults."""
    name = "allocator settings"
    for place in ("etc/ld.so.preload", "etc/malloc.conf"):
        path = root / place
        if content := os.readlink(path) if path.is_symlink() else text_or_empty(path):
            return Check(name, "warn", f"/{place} says {content}", f"sudo rm /{place}")
    known = {each for one in allocator.names() for each in allocator.get(one).variables()}
    prefixed = {name for name in os.environ if name.endswith("_MALLOC_CONF")}
    found = sorted(known.intersection(os.environ) - {"LD_PRELOAD"} | prefixed)
    said = "".join(f"{each}={os.environ[each]} in the environment" for each in found[:1])
    return _judged(name, not found, "none in force for all programs", said,
                   f"unset {' '.join(found)}")  # fmt: skip


def _hyperfine() -> Check:
    """Whole programs are timed by hyperfine where it is installed."""
    name, mend = "hyperfine", "sudo apt-get install hyperfine"
    path = shutil.which(name)
    if path is None:
        return Check(name, "warn", "not installed: hz-launch will time whole programs", mend)
    done = process.run([path, "--version"], deadline_s=_HYPERFINE_DEADLINE_S)
    version = done.stdout.strip().removeprefix("hyperfine ")
    bad, mend = (
        f"{path} is another program of that name",
        f"{mend}  # the PyPI and npm packages are something else",
    )
    return _judged(name, done.ok and bool(re.match(r"\d+\.\d+", version)), version, bad, mend)
