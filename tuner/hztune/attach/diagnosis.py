"""A process that runs, in words: what its allocator holds, what is set, what would help.

Of a process that takes requests the allocator itself tells; of any other one only what can be seen
from outside is told, and how to start it so that it tells more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hztune import allocator
from hztune.allocator import live
from hztune.attach.outside import Process, SeenMemory
from hztune.attach.questions import Holding, Statistics, statistics_of
from hztune.errors import HztuneError, UsageError
from hztune.params import Value

_MIB = 1 << 20
_LITTLE_BYTES = 16 * _MIB
_LITTLE_SHARE = 0.2
"""An allocator that holds less than both of these beyond what is live is not worth a setting."""

_WORTH_TELLING = 0.1
"""The least share of what is held beyond what is live that gets a sentence."""


@dataclass(frozen=True, slots=True)
class InEffect:
    """One setting of the process's allocator.

    Attributes:
        name: Of the parameter.
        value: What it is.
        is_effective: The process itself tells; else its variables ask for it.
        is_default: It is the allocator's own default.
    """

    name: str
    value: Value
    is_effective: bool
    is_default: bool


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found about a process.

    Attributes:
        pid: The process.
        name: As the system calls it.
        provider: The file that gives it malloc; "": it shows none, as static programs and Go's do.
        allocator: That allocator's name; "": hztune does not know it.
        memory: As the kernel counts it.
        parts: Its allocators by their own account; none where it takes no requests.
        settings: Of the allocator behind malloc, as far as they can be known.
        advice: What would help, a sentence each.
        remarks: What could not be known, and why, a sentence each.
    """

    pid: int
    name: str
    provider: str
    allocator: str
    memory: SeenMemory
    parts: tuple[Holding, ...]
    settings: tuple[InEffect, ...]
    advice: tuple[str, ...]
    remarks: tuple[str, ...]


def diagnose(pid: int) -> Diagnosis:
    """Looks at a process, and asks it where it takes requests.

    Raises:
        UsageError: There is none, or it may not be looked at.
    """
    process = Process.of(pid)
    memory = process.memory()
    remarks: list[str] = []
    running = _looked_at(pid, remarks)
    found = _asked(process, remarks)
    settings = tuple(_settings(running, found, remarks)) if running is not None else ()
    return Diagnosis(
        pid=pid,
        name=process.name,
        provider=str(running.provider) if running is not None else "",
        allocator=running.allocator if running is not None else "",
        memory=found.memory if found is not None else memory,
        parts=found.parts if found is not None else (),
        settings=settings,
        advice=tuple(advice_for(found)) if found is not None else (),
        remarks=tuple(remarks),
    )


def _looked_at(pid: int, remarks: list[str]) -> live.Running | None:
    """What gives it malloc; None and a remark where nothing shows."""
    try:
        return live.look(pid)
    except UsageError as error:
        remarks.append(str(error))
        return None


def _asked(process: Process, remarks: list[str]) -> Statistics | None:
    """What the process itself tells; None and a remark where it tells nothing."""
    try:
        return statistics_of(process)
    except HztuneError as error:
        remarks.append(f"{error}; from outside, live bytes and fragmentation cannot be known")
        return None


def _settings(
    running: live.Running, found: Statistics | None, remarks: list[str]
) -> Iterator[InEffect]:
    """What the process tells of its settings, and of the others what its variables ask for.

    An hz tells all of them, whatever its version is.
    """
    main = found.main if found is not None else None
    told = main.settings if main is not None and main.allocator == running.allocator else {}
    if not running.allocator:
        remarks.append(f"hztune does not know the allocator of {running.provider}")
        return
    known: dict[str, live.SettingRead] = {}
    try:
        adapter = allocator.get(running.allocator)
        installed = adapter.installed()
        defaults = {knob.name: knob.default for knob in adapter.knobs(installed)}
        if running.allocator != "hz" or not told:
            known = live.settings(running, adapter, installed)
    except HztuneError as error:
        remarks.append(f"the settings of {running.allocator} cannot be known: {error}")
        return
    known |= {name: live.SettingRead(value, is_effective=True) for name, value in told.items()}
    for name, read in known.items():
        yield InEffect(name, read.value, read.is_effective, read.value == defaults.get(name))


# ---- what would help ---------------------------------------------------------------------------


def advice_for(found: Statistics) -> Iterator[str]:
    """Yields what would help a process, a sentence each, by what its allocator tells."""
    main = found.main
    if main is None:
        return
    if main.live_bytes is None or main.held_bytes is None:
        yield (
            f"{main.allocator} does not count what the program has, so how much of what it holds "
            "only waits to be used again cannot be known"
        )
        yield from _BY_ALLOCATOR[main.allocator](found, main)
        return
    beyond = main.held_bytes - main.live_bytes
    if beyond < max(_LITTLE_BYTES, _LITTLE_SHARE * main.live_bytes):
        yield (
            f"{main.allocator} holds {_mib(max(0, beyond))} beyond what the program has: no "
            "setting would give much back"
        )
        return
    yield (
        f"{main.allocator} holds {_mib(beyond)} beyond what the program has; `hztune trim --pid "
        f"{found.pid}` returns what of it only waits to be used again"
    )
    yield from _BY_ALLOCATOR.get(main.allocator, _nothing)(found, main)
    yield (
        "which setting is best for this program, and what it costs in speed, only a measurement "
        "tells: `hztune --objective kept -- COMMAND`"
    )


def _nothing(found: Statistics, main: Holding) -> Iterator[str]:
    yield from ()


def _of_hz(found: Statistics, main: Holding) -> Iterator[str]:
    """Where the bytes wait, the largest part first."""
    live_bytes, cached = main.live_bytes or 0, main.cached_bytes or 0
    free_pages = found.free_page_bytes
    beyond = max(0, (main.held_bytes or 0) - live_bytes)
    between = max(0, beyond - cached - free_pages)
    told = [
        (free_pages, _free_pages(found, main)),
        (
            cached,
            f"{_mib(cached)} wait in the caches of {len(found.threads)} threads: `hztune set --pid "
            f"{found.pid} thread_cache_share=50` lets them grow less (now "
            f"{main.settings['thread_cache_share']}); a thread that rests keeps what it has",
        ),
        (
            between,
            f"{_mib(between)} lie between blocks that are in use: that is fragmentation, and goes "
            "when their neighbours are freed, too",
        ),
    ]
    for size, sentence in sorted(told, key=lambda each: -each[0]):
        if size >= _WORTH_TELLING * beyond:
            yield sentence


def _free_pages(found: Statistics, main: Holding) -> str:
    """How long they stay: a program that rests returns nothing without a worker."""
    how = (
        f"{_mib(found.free_page_bytes)} are unused pages, which stay for decay_ms "
        f"({main.settings['decay_ms']})"
    )
    if not found.has_rest_worker and main.settings["background_period_us"] == 0:
        return (
            f"{how}, and longer while the program rests, as it has no worker (rest_ms): `hztune "
            f"set --pid {found.pid} background_period_us=65536` starts one that returns them"
        )
    return f"{how}: `hztune set --pid {found.pid} decay_ms=0` returns them at once"


def _of_jemalloc(found: Statistics, main: Holding) -> Iterator[str]:
    if main.settings.get("dirty_decay_ms") not in (0, None):
        yield (
            f"unused pages stay for dirty_decay_ms ({main.settings['dirty_decay_ms']}), and longer "
            "while the program rests: start it with MALLOC_CONF=background_thread:true,"
            "dirty_decay_ms:1000,muzzy_decay_ms:0"
        )
    if found.thread_count > 2 and "narenas" in main.settings:
        yield (
            f"{found.thread_count} threads use up to {main.settings['narenas']} arenas, each of "
            "which keeps pages of its own: MALLOC_CONF=narenas:2"
        )


def _of_glibc(found: Statistics, main: Holding) -> Iterator[str]:
    if found.thread_count > 2:
        yield (
            f"each of {found.thread_count} threads may have an arena that keeps memory of its own: "
            "start it with GLIBC_TUNABLES=glibc.malloc.arena_max=2"
        )
    yield (
        "glibc returns only what is free at the end of an arena, unless it is told to trim: a "
        "program can call malloc_trim(0) when it rests"
    )


def _of_tcmalloc(found: Statistics, main: Holding) -> Iterator[str]:
    yield "free pages stay: start it with TCMALLOC_AGGRESSIVE_DECOMMIT=t"
    if main.cached_bytes and main.cached_bytes > _LITTLE_BYTES:
        yield (
            f"{_mib(main.cached_bytes)} wait in the caches of threads: start it with "
            "TCMALLOC_MAX_TOTAL_THREAD_CACHE_BYTES=4194304"
        )


def _of_mimalloc(found: Statistics, main: Holding) -> Iterator[str]:
    name = "DECOMMIT" if main.version.startswith(("2.0.", "2.1.0", "2.1.1")) else "PURGE"
    yield (
        f"unused pages stay for a while: start it with MIMALLOC_{name}_DELAY=0 (`hztune trim` "
        "reaches little of mimalloc, in which only a thread itself gives back what it has)"
    )


_BY_ALLOCATOR: dict[str, Callable[[Statistics, Holding], Iterator[str]]] = {
    "hz": _of_hz,
    "jemalloc": _of_jemalloc,
    "glibc": _of_glibc,
    "tcmalloc": _of_tcmalloc,
    "mimalloc": _of_mimalloc,
}


def _mib(size: int) -> str:
    return f"{size / _MIB:.1f} MiB"
