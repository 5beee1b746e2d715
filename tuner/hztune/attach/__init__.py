"""Processes that run: what their allocators hold, what may be changed in them, what would help.

A process answers when it was started on hz with HZ_CONTROL=1, or with the agent (libhz-agent.so)
preloaded; `channel` asks. Of any other one only what the kernel tells is told, and how to start it
so that it tells more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from hztune import allocator, schema
from hztune.allocator import live
from hztune.attach import channel
from hztune.attach.channel import Process, SeenMemory
from hztune.errors import HztuneError, UsageError
from hztune.machine import group_limit
from hztune.params import Value
from hztune.progress import mib
from hztune.templates import rendered

#: An allocator that holds less than both of these beyond what is live is not worth a setting.
_LITTLE_BYTES, _LITTLE_SHARE = 16 << 20, 0.2
_ADVISED = {"background_period_us", "decay_ms", "thread_cache_share"}  # settings of every hz
_WORTH_TELLING = 0.1  # least share of what is held beyond what is live that gets a sentence

_Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Path = Annotated[str, Meta(pattern=r"\A[^\x00-\x1f\x7f]{0,4096}\Z")]


@dataclass(frozen=True, slots=True)
class Holding:
    """One allocator in a process, by its own account; None: it does not say.

    `held_bytes` is what it has of the system's memory. Of hz the kernel counts that; of the others
    it is at most what the kernel counts of the whole process, as some of them still count what they
    have given back. `cached_bytes` is what of that waits in the caches of threads. `levers` may
    change while it runs.
    """

    allocator: schema.Word
    version: _Path
    settings: dict[str, schema.Setting]
    live_bytes: _Count | None = None
    held_bytes: _Count | None = None
    cached_bytes: _Count | None = None
    levers: dict[str, schema.Setting] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """What it holds for each byte that the program has; None: it cannot be known."""
        if not self.live_bytes or self.held_bytes is None:
            return None
        return self.held_bytes / self.live_bytes


@dataclass(frozen=True, slots=True)
class SizeClass:
    """The blocks of one size: those in use, those that wait, and all that were ever cut."""

    bytes: _Count
    live: _Count
    free: _Count
    cut: _Count


@dataclass(frozen=True, slots=True)
class ThreadCaches:
    """The free blocks that one thread keeps for itself; `thread` is the system's number."""

    thread: _Count
    cached_blocks: _Count
    cached_bytes: _Count


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a process holds.

    `parts` are its allocators, the one behind malloc first; `is_governed`: a governor has a lease
    on their levers. All else is hz's alone: `free_page_bytes` are unused pages that are still in
    memory, and go when their time comes; `threads_left_out` counts those that the answer had no
    room for; `has_rest_worker`: a worker returns unused pages while the program rests; `counters`
    have counted since its start.
    """

    pid: int
    name: str
    thread_count: int
    memory: SeenMemory
    parts: tuple[Holding, ...]
    free_page_bytes: int = 0
    classes: tuple[SizeClass, ...] = ()
    threads: tuple[ThreadCaches, ...] = ()
    threads_left_out: int = 0
    has_rest_worker: bool = False
    counters: Mapping[str, int] = field(default_factory=dict)
    is_governed: bool = False


@dataclass(frozen=True, slots=True)
class Changed:
    process: Process
    before: Mapping[str, Value]
    after: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Trimmed:
    """Which allocators gave back what they did not need, and the memory before and after."""

    process: Process
    allocators: tuple[str, ...]
    before: SeenMemory
    after: SeenMemory


@dataclass(frozen=True, slots=True)
class InEffect:
    """One setting of the process's allocator.

    `is_effective`: the process itself tells it, else its variables ask for it; `is_default`: it is
    the allocator's own default; `is_asked`: its variables ask for it.
    """

    name: str
    value: Value
    is_effective: bool
    is_default: bool
    is_asked: bool


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found about a process.

    `provider` is the file that gives it malloc ("": it shows none, as static programs and Go's do),
    `allocator` that allocator's name ("": hztune does not know it). `limit` is the most bytes that
    its control group may take, and what it takes. `parts` are its allocators by their own account;
    none where it takes no requests. `advice` says what would help, `remarks` what could not be
    known, a sentence each.
    """

    pid: int
    name: str
    provider: str
    allocator: str
    memory: SeenMemory
    limit: tuple[int, int] | None
    parts: tuple[Holding, ...]
    settings: tuple[InEffect, ...]
    advice: tuple[str, ...]
    remarks: tuple[str, ...]


# ---- what a process answers ----------------------------------------------------------------------


class _Memory(Struct):
    live_bytes: _Count
    cached_bytes: _Count
    free_bytes: _Count
    classes: tuple[SizeClass, ...]


class _Stats(Struct):
    version: schema.VersionText
    config: dict[str, schema.Setting]
    memory: _Memory
    counters: dict[str, _Count]

    def __post_init__(self) -> None:
        if missing := _ADVISED - self.config.keys():
            raise ValueError(f"Object has no {min(missing)}")


class _Arena(Struct, frozen=True):
    first: _Count
    bytes: _Count


class _Answer(Struct):
    allocator: schema.Word
    governed: bool = False
    levers: dict[str, schema.Setting] = {}
    trimmed: tuple[schema.Word, ...] = ()
    before: dict[str, schema.Setting] = {}
    after: dict[str, schema.Setting] = {}
    # of the agent
    provider: _Path = ""
    parts: list[Holding] = []
    # of hz
    stats: _Stats | None = None
    arena: _Arena = _Arena(0, 0)
    threads: tuple[ThreadCaches, ...] = ()
    threads_left_out: _Count = 0
    rest_worker: bool = False


def process_statistics(pid: int) -> Statistics:
    """What a process holds, by its allocator's own account; it must take requests.

    UsageError: there is none, or it takes no requests. HztuneError: it did not answer, or ended.
    """
    return statistics_of(Process.of(pid))


def statistics_of(process: Process) -> Statistics:
    told, memory = channel.ask_process(process, _Answer, "stats"), process.memory()
    seen = process.pid, process.name, int(process.status().get("Threads", "0")), memory
    if (stats := told.stats) is not None:
        own, first = stats.memory, told.arena.first
        held = process.resident_between(first, first + told.arena.bytes), own.cached_bytes
        return Statistics(
            *seen,
            (Holding("hz", stats.version, stats.config, own.live_bytes, *held, told.levers),),
            own.free_bytes,
            own.classes,
            told.threads,
            told.threads_left_out,
            told.rest_worker,
            stats.counters,
            told.governed,
        )
    most = memory.anonymous_bytes - memory.lazy_bytes + memory.swapped_bytes
    parts = []
    for part in told.parts:
        held_bytes = None if part.held_bytes is None else min(part.held_bytes, most)
        version = part.version.partition("-")[0]
        parts.append(replace(part, version=version, held_bytes=held_bytes))
    file = told.provider.rpartition("/")[2]
    parts.sort(
        key=lambda part: part.allocator.replace("glibc", "libc").replace("_", "-") not in file
    )
    return Statistics(*seen, tuple(parts), is_governed=told.governed)


def trim_process(pid: int) -> Trimmed:
    """Has a process give back what it does not need.

    UsageError: there is none, or it takes no requests. HztuneError: it did not answer, or ended.
    """
    process = Process.of(pid)
    before = process.memory()
    told = channel.ask_process(process, _Answer, "trim")
    trimmed = ("hz",) if told.allocator == "hz" else told.trimmed
    return Trimmed(process, trimmed, before, process.memory())


def change_process(pid: int, settings: Mapping[str, str]) -> Changed:
    """Changes levers of a process's allocator, all or none: {"decay_ms": "0"}.

    UsageError: there is none, it takes no requests, or refuses the change. HztuneError: it did
    not answer, or ended.
    """
    process = Process.of(pid)
    if not settings:
        raise UsageError("nothing is to be set; give NAME=VALUE, such as decay_ms=0")
    for name, value in settings.items():
        if "\n" in name + value or "=" in name:
            raise UsageError(f"{name}={value!r} is no setting; legal is NAME=VALUE on one line")
    lines = (f"{name}={value}" for name, value in settings.items())
    told = channel.ask_process(process, _Answer, "set", *lines)
    return Changed(process, told.before, told.after)


# ---- in words ------------------------------------------------------------------------------------


def process_text(
    what: Literal["statistics", "diagnosis"], found: Statistics | Diagnosis
) -> list[str]:
    """What a process holds, or what was found about one, for people, a line each."""
    template = Path(__file__).with_name("process.txt")
    return rendered(template, what=what, found=found, resident_parts=_resident_parts)


def _resident_parts(found: Diagnosis) -> list[tuple[str, int]]:
    memory = found.memory
    held = {part.allocator: part.held_bytes for part in found.parts if part.held_bytes}
    parts = {
        "of mapped files": memory.resident_bytes - memory.anonymous_bytes,
        "of stacks and other mappings" if held else "of heaps and stacks": max(
            0, memory.anonymous_bytes - sum(held.values())
        ),
        **{f"held by {name}": size for name, size in held.items()},
    }
    return sorted(parts.items(), key=lambda each: -each[1])


# ---- the doctor ----------------------------------------------------------------------------------


def diagnose(pid: int) -> Diagnosis:
    """What a process's allocator holds, what is set, and what would help, in words.

    UsageError: there is none, or it may not be looked at.
    """
    process, remarks = Process.of(pid), list[str]()
    memory, running, found = process.memory(), None, None
    try:
        running = live.look(pid)
    except UsageError as error:
        remarks.append(str(error))
    try:
        found = statistics_of(process)
    except HztuneError as error:
        remarks.append(f"{error}; from outside, live bytes and fragmentation cannot be known")
    parts = found.parts if found else ()
    if found and not parts:
        remarks.append("the agent does not know the allocator of this process, or what it holds")
    settings = tuple(_settings(running, parts[:1], remarks)) if running else ()
    return Diagnosis(
        pid=pid,
        name=process.name,
        provider=str(running.provider) if running else "",
        allocator=running.allocator if running else "",
        memory=found.memory if found else memory,
        limit=group_limit(str(pid)),
        parts=parts,
        settings=settings,
        advice=tuple(advice_for(found)) if found and parts else (),
        remarks=tuple(remarks),
    )


def _settings(
    running: live.Running, main: tuple[Holding, ...], remarks: list[str]
) -> Iterator[InEffect]:
    """What the process tells of its settings, and what its variables ask for; hz tells all."""
    name = running.allocator
    told = next((part.settings for part in main if part.allocator == name), {})
    if not name:
        remarks.append(f"hztune does not know the allocator of {running.provider}")
        return
    try:
        adapter = allocator.get(name)
        if running.environment is not None:
            adapter.requests(running.environment)  # said even if the library is not installed
        installed = adapter.installed()
        defaults = {knob.name: knob.default for knob in adapter.knobs(installed)}
        asked = adapter.requested(running.environment or {}, installed)
        known = {} if name == "hz" and told else live.settings(running, adapter, installed)
    except HztuneError as error:
        remarks.append(f"the settings of {name} cannot be known: {error}")
        return
    known |= {name: live.SettingRead(value, is_effective=True) for name, value in told.items()}
    for name, read in known.items():
        is_default = read.value == defaults.get(name)
        yield InEffect(name, read.value, read.is_effective, is_default, name in asked)


def advice_for(found: Statistics) -> Iterator[str]:
    """What would help a process of which an allocator is known, by what that tells."""
    main = found.parts[0]
    if main.live_bytes is None or main.held_bytes is None:
        yield (
            f"{main.allocator} does not count live bytes, so the unused part of what it holds is "
            "not known"
        )
        yield from _by_allocator(main)
        return
    beyond = main.held_bytes - main.live_bytes
    if beyond < max(_LITTLE_BYTES, _LITTLE_SHARE * main.live_bytes):
        yield (
            f"{main.allocator} holds only {mib(max(0, beyond))} more than the program uses: no "
            "setting would return much"
        )
        return
    yield (
        f"{main.allocator} holds {mib(beyond)} more than the program uses; `hztune trim --pid "
        f"{found.pid}` returns what can be returned now"
    )
    is_hz = main.allocator == "hz"
    yield from _of_hz(found, main, beyond) if is_hz else _by_allocator(main)
    yield (
        "only a measurement finds the best setting for this program, and its cost in speed: "
        "`hztune --objective kept -- COMMAND`"
    )


def _of_hz(found: Statistics, main: Holding, beyond: int) -> Iterator[str]:
    pages, cached, set_to = found.free_page_bytes, main.cached_bytes or 0, main.settings
    change = f"`hztune set --pid {found.pid}"
    wait = (
        f", and longer while the program rests, as hz has no background thread there (rest_ms): "
        f"{change} background_period_us=65536` starts one"
    )
    if found.has_rest_worker or set_to["background_period_us"] != 0:
        wait = f": {change} decay_ms=0` returns them at once"
    between = max(0, beyond - cached - pages)
    told = {
        f"{mib(pages)} are unused pages, which stay for decay_ms ({set_to['decay_ms']}){wait}": (
            pages
        ),
        f"{mib(cached)} are in the caches of {len(found.threads)} threads: {change} "
        "thread_cache_share=50` lets them grow less (now "
        f"{set_to['thread_cache_share']}); the cache of a resting thread stays": cached,
        f"{mib(between)} are between live blocks: fragmentation, which ends when these are freed, "
        "too": between,
    }
    for sentence in sorted(told, key=lambda each: -told[each]):
        if told[sentence] >= _WORTH_TELLING * beyond:
            yield sentence


_BY_ALLOCATOR = {  # what would help where another allocator holds much
    "jemalloc": (
        "unused pages stay for dirty_decay_ms, and longer while the program rests: start it with "
        "MALLOC_CONF=background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0"
    ),
    "glibc": (
        "each thread may have its own arena, of which only the free end is returned: start it "
        "with GLIBC_TUNABLES=glibc.malloc.arena_max=2, and call malloc_trim(0) when it rests"
    ),
    "tcmalloc": (
        "free pages stay: start it with TCMALLOC_AGGRESSIVE_DECOMMIT=t, and with "
        "TCMALLOC_MAX_TOTAL_THREAD_CACHE_BYTES=4194304 where the caches of threads are large"
    ),
    "mimalloc": (
        "unused pages stay for a while: start it with MIMALLOC_{purge}_DELAY=0 (`hztune trim` "
        "reaches little of mimalloc, in which each thread must return its own memory)"
    ),
}


def _by_allocator(main: Holding) -> Iterator[str]:
    is_old = main.version.startswith(("2.0.", "2.1.0", "2.1.1"))
    if sentence := _BY_ALLOCATOR.get(main.allocator):
        yield sentence.format(purge="DECOMMIT" if is_old else "PURGE")
