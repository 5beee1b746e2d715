"""Whether this machine is fit to measure on: read-only checks, each with the command that mends it.

A check that cannot see (a virtual machine hides its CPU's governor) says so and warns of nothing.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable
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
_LOAD = "load"


@dataclass(frozen=True, slots=True)
class Check:
    """What one check found."""

    name: str
    verdict: Fitness
    """One of ok; warn: it costs precision; unfit: measurements mean little; unknown."""
    found: str
    mend: str = ""
    """The command that mends it; "" when there is nothing to mend."""


def examine(root: Path = Path("/")) -> tuple[Check, ...]:
    """Every finding on this machine; `root` stands for / in tests."""
    machine = Machine.here(root)
    return tuple(check(root, machine) for check in _CHECKS)


def remarks(root: Path = Path("/"), *, alone: bool = True) -> list[str]:
    """What a study is told of the machine before it measures: the worst, a sentence each.

    It reads a few files, starts nothing and takes a fifth of a second at most. A load that is over,
    such as that of the study before this one, is not told.

    Args:
        root: Stands for / in tests.
        alone: Whether nothing else of the same study measures here; else what shows its presence
            is no disturbance.
    """
    machine = Machine.here(root)
    checks = [each for each in _AT_THE_START if alone or each not in (_load, _others)]
    found = [check(root, machine) for check in checks]
    serious = [each for worst in ("unfit", "warn") for each in found if each.verdict == worst]
    if any(each.name == _LOAD for each in serious) and _is_idle_now(root):
        serious = [each for each in serious if each.name != _LOAD]
    if not serious:
        return []
    more = "`hztune doctor` tells more"
    if len(serious) > _MOST_REMARKS:
        more = f"{len(serious) - _MOST_REMARKS} more by `hztune doctor`"
    *before, last = serious[:_MOST_REMARKS]
    return [*map(_remark, before), f"{_remark(last)}; {more}"]


def _remark(finding: Check) -> str:
    unfit = "measurements mean little here: " if finding.verdict == "unfit" else ""
    return f"warning: {unfit}{finding.name}: {finding.found} (fix: {finding.mend})"


def _governor(root: Path, machine: Machine) -> Check:
    """The CPU should not change its speed with the load."""
    if not machine.governor:
        return Check("frequency governor", "unknown", "not visible here (virtual machine?)")
    if machine.governor == "performance":
        return Check("frequency governor", "ok", "performance")
    mend = "sudo cpupower frequency-set --governor performance"
    return Check("frequency governor", "warn", machine.governor, mend)


def _turbo(root: Path, machine: Machine) -> Check:
    """Turbo makes the speed depend on temperature and on the other cores."""
    if machine.turbo != "on":
        verdict: Fitness = "ok" if machine.turbo else "unknown"
        return Check("turbo", verdict, machine.turbo or "not visible here (virtual machine?)")
    intel = root / "sys/devices/system/cpu/intel_pstate/no_turbo"
    mend = (
        "echo 1 | sudo tee /sys/devices/system/cpu/intel_pstate/no_turbo"
        if intel.exists()
        else "echo 0 | sudo tee /sys/devices/system/cpu/cpufreq/boost"
    )
    return Check("turbo", "warn", "on", mend)


def _huge_pages(root: Path, machine: Machine) -> Check:
    """With `always` the kernel gives huge pages to some processes and not to others, and so RSS."""
    name = "transparent huge pages"
    if not machine.thp.startswith("always"):
        return Check(name, "ok" if machine.thp else "unknown", machine.thp or "not visible here")
    mend = "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"
    found = f"{machine.thp}: speed and memory depend on what the kernel finds"
    return Check(name, "warn", found, mend)


def _quota(root: Path, machine: Machine) -> Check:
    """A control group that is throttled stops in the middle of a turn."""
    if machine.quota is None:
        return Check("CPU quota", "ok", "none")
    quota, throttled = cpus_text(machine.quota), Throttling(root).count()
    if throttled > 0:
        found = f"{quota}, throttled {throttled} times so far"
        mend = "run without --cpus / CPUQuota=, and give --threads within it"
        return Check("CPU quota", "warn", found, mend)
    return Check("CPU quota", "ok", f"{quota}, never throttled")


def _load(root: Path, machine: Machine) -> Check:
    """Others that want the CPUs take them from the arms."""
    words = text_or_empty(root / "proc/loadavg").split()
    if not words:
        return Check(_LOAD, "unknown", "not visible here")
    busy = float(words[0])
    share = busy / machine.cores
    found = f"{busy:.2f} running on average in the last minute, for {cpus_text(machine.cores)}"
    if share < _BUSY_SHARE:
        return Check(_LOAD, "ok", found)
    mend = "ps -eo pcpu,pid,comm --sort=-pcpu | head  # and end what is not needed"
    return Check(_LOAD, "warn" if share < _VERY_BUSY_SHARE else "unfit", found, mend)


def _is_idle_now(root: Path) -> bool:
    """Whether the CPUs are idle at the moment, whatever the average of the last minute is."""
    before = _ticks(root)
    time.sleep(_LOOK_S)
    passed = [new - old for old, new in zip(before, _ticks(root), strict=True)]
    idle = sum(passed[3:5])
    return sum(passed) > 0 and sum(passed) - idle < _BUSY_SHARE * sum(passed)


def _ticks(root: Path) -> list[int]:
    """What all CPUs have spent since the start: user, nice, system, idle, I/O wait, ..."""
    words = text_or_empty(root / "proc/stat").partition("\n")[0].split()
    return [int(word) for word in words[1:9]]


def _steal(root: Path, machine: Machine) -> Check:
    """A hypervisor that has sold too much takes the CPUs away."""
    ticks = _ticks(root)
    if len(ticks) < 8 or not sum(ticks):
        return Check("stolen time", "unknown", "not visible here")
    busy = sum(ticks) - ticks[3] - ticks[4]
    share = ticks[7] / max(1, busy)
    found = f"{100 * share:.1f} % of the busy time since the start"
    if share < _STEAL_SHARE:
        return Check("stolen time", "ok", found)
    return Check("stolen time", "warn", found, "move to a machine with dedicated CPUs")


def _swap(root: Path, machine: Machine) -> Check:
    """A page that was swapped out costs as much as a million allocations."""
    sizes = dict(
        re.findall(r"^(Swap\w+):\s+(\d+) kB", text_or_empty(root / "proc/meminfo"), re.MULTILINE)
    )
    used_mb = (int(sizes.get("SwapTotal", 0)) - int(sizes.get("SwapFree", 0))) // 1024
    if used_mb > 0:
        return Check("swap", "warn", f"{used_mb} MiB in use", "sudo swapoff --all")
    return Check("swap", "ok", "none in use")


def _address_layout(root: Path, machine: Machine) -> Check:
    """Without randomisation one lucky or unlucky layout is measured over and over."""
    mode = text_or_empty(root / "proc/sys/kernel/randomize_va_space")
    if mode in ("", "2"):
        return Check("address randomisation", "ok" if mode else "unknown", mode or "not visible")
    mend = "sudo sysctl kernel.randomize_va_space=2"
    return Check("address randomisation", "warn", f"mode {mode}: layouts repeat", mend)


def _others(root: Path, machine: Machine) -> Check:
    """A study beside this one, or a daemon that changes frequencies."""
    names = {text_or_empty(path / "comm"): path.name for path in (root / "proc").glob("[0-9]*")}
    measuring = sorted(_OWN_PROGRAMS & names.keys())
    if measuring:
        name = measuring[0]
        mend = f"wait for process {names[name]}, or end it"
        return Check("other tuners", "unfit", f"{name} is running: another study?", mend)
    tuning = sorted(_FREQUENCY_TUNERS & names.keys())
    if tuning:
        mend = f"sudo systemctl stop {tuning[0]}"
        return Check("other tuners", "warn", f"{tuning[0]} changes the CPU's frequency", mend)
    return Check("other tuners", "ok", "none")


def _preload(root: Path, machine: Machine) -> Check:
    """What is preloaded into hztune is preloaded into its helpers, too."""
    preloaded = os.environ.get("LD_PRELOAD", "")
    if preloaded:
        return Check("LD_PRELOAD", "warn", f"set to {preloaded}", "unset LD_PRELOAD")
    return Check("LD_PRELOAD", "ok", "not set")


def _allocator_settings(root: Path, machine: Machine) -> Check:
    """Settings that were made once act on every allocator that is measured with its defaults."""
    name = "allocator settings"
    for place in ("etc/ld.so.preload", "etc/malloc.conf"):
        path = root / place
        content = os.readlink(path) if path.is_symlink() else text_or_empty(path)
        if content:
            return Check(name, "warn", f"/{place} says {content}", f"sudo rm /{place}")
    known = {each for one in allocator.names() for each in allocator.get(one).variables()}
    prefixed = {name for name in os.environ if name.endswith("_MALLOC_CONF")}
    found = sorted(known.intersection(os.environ) - {"LD_PRELOAD"} | prefixed)
    if found:
        said = f"{found[0]}={os.environ[found[0]]} in the environment"
        return Check(name, "warn", said, f"unset {' '.join(found)}")
    return Check(name, "ok", "none in force for all programs")


def _hyperfine(root: Path, machine: Machine) -> Check:
    """Whole programs are timed by hyperfine where it is installed."""
    name = "hyperfine"
    path = shutil.which(name)
    if path is None:
        found = "not installed: hz-launch will time whole programs"
        return Check(name, "warn", found, "sudo apt-get install hyperfine")
    done = process.run([path, "--version"], deadline_s=_HYPERFINE_DEADLINE_S)
    version = done.stdout.strip().removeprefix("hyperfine ")
    if not done.ok or not re.match(r"\d+\.\d+", version):
        mend = "sudo apt-get install hyperfine  # the PyPI and npm packages are something else"
        return Check(name, "warn", f"{path} is another program of that name", mend)
    return Check(name, "ok", version)


_CHECKS: tuple[Callable[[Path, Machine], Check], ...] = (
    _governor,
    _turbo,
    _huge_pages,
    _quota,
    _load,
    _steal,
    _swap,
    _address_layout,
    _others,
    _preload,
    _allocator_settings,
    _hyperfine,
)

_AT_THE_START = tuple(check for check in _CHECKS if check is not _hyperfine)
