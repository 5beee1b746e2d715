"""Whether this machine is fit to measure on, and the one that a profile was proved on.

The checks are read-only, each with the command that mends it. One that cannot see (a virtual
machine hides its CPU's governor) says so and warns of nothing.
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
from hztune.allocator import Installed
from hztune.errors import HztuneError
from hztune.files import text_or_empty
from hztune.machine import WORDS, Machine, shown
from hztune.measure.disturbance import cpu_ticks, throttle_counts, throttled
from hztune.profile import MachineId, Profile
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
_DIGITS = 12  # of a SHA-256 that is told
_VERDICTS: tuple[Fitness, ...] = ("ok", "warn", "unfit")
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


def remarks(root: Path = Path("/")) -> list[str]:
    """What a study is told of the machine before it measures: the worst, a sentence each.

    Starts nothing, takes 0.2 s at most, and leaves out the load of a study that is over.
    """
    found = [*_checks(root)]
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
    machine = Machine.here(root)
    for rows in (_settings(root, machine), _shared(root, machine), _of_processes(root)):
        yield from (_judged(*row) for row in rows)


_Row = tuple[str, str, int, str]
"""The name of a check, what it found ("": nothing shows it), its place in _VERDICTS, the mend."""


def _judged(name: str, found: str, level: int, mend: str) -> Check:
    if not found:
        return Check(name, "unknown", _HIDDEN)
    return Check(name, _VERDICTS[level], found, mend if level else "")


def _settings(root: Path, machine: Machine) -> Iterator[_Row]:
    # It should not change its speed with the load.
    yield (
        "frequency governor", machine.governor, machine.governor != "performance",
        "sudo cpupower frequency-set --governor performance",
    )  # fmt: skip
    # Turbo makes the speed depend on temperature and on the other cores.
    cpu = "/sys/devices/system/cpu"
    is_intel = (root / f".{cpu}/intel_pstate/no_turbo").exists()
    to = "1 | sudo tee {}/intel_pstate/no_turbo" if is_intel else "0 | sudo tee {}/cpufreq/boost"
    yield "turbo", machine.turbo, machine.turbo == "on", f"echo {to.format(cpu)}"
    # With `always` the kernel gives huge pages to some processes and not to others.
    is_always = machine.thp.startswith("always")
    yield (
        "transparent huge pages",
        machine.thp + ": speed and memory depend on what the kernel finds" * is_always, is_always,
        "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
    )  # fmt: skip
    # Without it one lucky or unlucky layout is measured over and over.
    layout = text_or_empty(root / "proc/sys/kernel/randomize_va_space")
    found = layout if layout in ("", "2") else f"mode {layout}: layouts repeat"
    yield "address randomisation", found, layout != "2", "sudo sysctl kernel.randomize_va_space=2"


def _shared(root: Path, machine: Machine) -> Iterator[_Row]:
    """What takes CPUs and memory from the arms: a quota, other programs, a hypervisor, swap."""
    times = throttled(throttle_counts(root))[0] if machine.quota is not None else 0
    found = f", throttled {times} times so far" if times else ", never throttled"
    found = "none" if machine.quota is None else cpus_text(machine.quota) + found
    mend = "run without --cpus / CPUQuota=, and give --threads within it"
    yield "CPU quota", found, times > 0, mend
    words = text_or_empty(root / "proc/loadavg").split()
    share = float(words[0]) / machine.cores if words else 0.0
    cores = cpus_text(machine.cores)
    found = (
        f"{float(words[0]):.2f} running on average in the last minute, for {cores}" if words else ""
    )
    level = (share >= _BUSY_SHARE) + (share >= _VERY_BUSY_SHARE)
    mend = "ps -eo pcpu,pid,comm --sort=-pcpu | head  # and end what is not needed"
    yield _LOAD, found, level, mend
    ticks = cpu_ticks(root)
    stolen = ticks[7] / max(1, sum(ticks) - ticks[3] - ticks[4])
    found = f"{100 * stolen:.1f} % of the busy time since the start" if sum(ticks) else ""
    yield "stolen time", found, stolen >= _STEAL_SHARE, "move to a machine with dedicated CPUs"
    memory = text_or_empty(root / "proc/meminfo")
    kb = dict(re.findall(r"^(Swap\w+):\s+(\d+) kB", memory, re.M))
    used_mb = (int(kb.get("SwapTotal", 0)) - int(kb.get("SwapFree", 0))) // 1024
    found = f"{used_mb} MiB in use" if used_mb > 0 else "none in use"
    yield "swap", found, used_mb > 0, "sudo swapoff --all"


def _of_processes(root: Path) -> Iterator[_Row]:
    # A study beside this one, or a daemon that changes frequencies.
    names = {text_or_empty(path / "comm"): path.name for path in (root / "proc").glob("[0-9]*")}
    own, tuning = (sorted(them & names.keys()) for them in (_OWN_PROGRAMS, _FREQUENCY_TUNERS))
    row = "none", 0, ""
    if own:
        mend = f"wait for process {names[own[0]]}, or end it"
        row = f"{own[0]} is running: another study?", 2, mend
    elif tuning:
        row = f"{tuning[0]} changes the CPU's frequency", 1, f"sudo systemctl stop {tuning[0]}"
    yield "other tuners", *row
    preloaded = os.environ.get("LD_PRELOAD", "")  # into hztune's helpers, too
    found = f"set to {preloaded}" if preloaded else "not set"
    yield "LD_PRELOAD", found, bool(preloaded), "unset LD_PRELOAD"
    # Settings that were made once act on every allocator that is measured with its defaults.
    row = "none in force for all programs", 0, ""
    known = {each for one in allocator.names() for each in allocator.get(one).variables()}
    prefixed = {name for name in os.environ if name.endswith("_MALLOC_CONF")}
    if given := sorted(known.intersection(os.environ) - {"LD_PRELOAD"} | prefixed):
        said = f"{given[0]}={os.environ[given[0]]} in the environment"
        row = said, 1, f"unset {' '.join(given)}"
    for place in ("etc/ld.so.preload", "etc/malloc.conf"):
        path = root / place
        if content := os.readlink(path) if path.is_symlink() else text_or_empty(path):
            row = f"/{place} says {content}", 1, f"sudo rm /{place}"
    yield "allocator settings", *row


def _is_idle_now(root: Path) -> bool:
    before = cpu_ticks(root)
    time.sleep(_LOOK_S)
    passed = [new - old for old, new in zip(before, cpu_ticks(root), strict=True)]
    idle = sum(passed[3:5])
    return sum(passed) > 0 and sum(passed) - idle < _BUSY_SHARE * sum(passed)


def _hyperfine() -> Check:
    name, mend = "hyperfine", "sudo apt-get install hyperfine"
    path = shutil.which(name)
    if path is None:
        return Check(name, "warn", "not installed: hz-launch will time whole programs", mend)
    done = process.run([path, "--version"], deadline_s=_HYPERFINE_DEADLINE_S)
    version = done.stdout.strip().removeprefix("hyperfine ")
    if done.ok and re.match(r"\d+\.\d+", version):
        return Check(name, "ok", version)
    mend += "  # the PyPI and npm packages are something else"
    return Check(name, "warn", f"{path} is another program of that name", mend)


# ---- beside the machine of a profile -------------------------------------------------------------


def changed_since_proof(tuned: Profile) -> tuple[str, ...]:
    """In what this machine is not the one that a profile was proved on, one sentence each.

    A library that is inside a program is seen only in a process.
    """
    there, here = tuned.machine, MachineId.of(Machine.here())
    pairs = ((name, getattr(there, name), getattr(here, name)) for name in there.__struct_fields__)
    found = tuple(_another(WORDS[name], old, new) for name, old, new in pairs if old != new)
    if tuned.adapter.is_inside:
        return found
    try:
        return (*found, *changed_library(tuned, tuned.adapter.installed()))
    except HztuneError as error:
        return (*found, str(error))


def changed_library(tuned: Profile, found: Installed) -> tuple[str, ...]:
    there = tuned.allocator
    if found.version != there.version:
        return (_another(f"version of {there.name}", there.version, found.version),)
    if there.sha256 and found.sha256 != there.sha256:
        what = f"build of {there.name} {there.version}".rstrip()
        return (_another(what, there.sha256[:_DIGITS], found.sha256[:_DIGITS]),)
    return ()


def _another(what: str, there: object, here: object) -> str:
    return f"the profile was proved with another {what}: {shown(there)} there, {shown(here)} here"
