"""What can be asked of a process that takes requests, and what the answers mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from msgspec import Meta, Struct

from hztune import schema
from hztune.attach import channel
from hztune.attach.outside import Process, SeenMemory
from hztune.errors import UsageError
from hztune.params import Value

_Count = Annotated[int, Meta(ge=0)]
_Path = Annotated[str, Meta(pattern=r"\A[^\x00-\x1f\x7f]{0,4096}\Z")]


@dataclass(frozen=True, slots=True)
class Holding:
    """One allocator in a process, by its own account; None: it does not say.

    `held_bytes` is what it has of the system's memory. Of hz the kernel counts that; of the others
    it is at most what the kernel counts of the whole process, as some of them still count what they
    have given back. `cached_bytes` is what of that waits in the caches of threads.
    """

    allocator: str
    version: str
    live_bytes: int | None
    held_bytes: int | None
    cached_bytes: int | None
    settings: Mapping[str, Value]

    @property
    def ratio(self) -> float | None:
        """What it holds for each byte that the program has; None: it cannot be known."""
        if not self.live_bytes or self.held_bytes is None:
            return None
        return self.held_bytes / self.live_bytes


@dataclass(frozen=True, slots=True)
class SizeClass:
    """The blocks of one size: those in use, those that wait, and all that were ever cut."""

    block_bytes: _Count
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

    `parts` are its allocators, the one behind malloc first. All that follows it is hz's alone:
    `free_page_bytes` are unused pages that are still in memory, and go when their time comes;
    `threads_left_out` counts those that the answer had no room for; `has_rest_worker`: a worker
    returns unused pages while the program rests; `counters` have counted since its start.
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

    @property
    def main(self) -> Holding | None:
        """The allocator behind malloc; None: the agent knows none of what is there."""
        return self.parts[0] if self.parts else None


@dataclass(frozen=True, slots=True)
class Changed:
    """The parameters that were named, before a change and after it."""

    before: Mapping[str, Value]
    after: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Trimmed:
    """Which allocators gave back what they did not need, and the memory before and after."""

    allocators: tuple[str, ...]
    before: SeenMemory
    after: SeenMemory


# ---- what a process answers ----------------------------------------------------------------------


class _Class(Struct):
    bytes: _Count
    live: _Count
    free: _Count
    cut: _Count


class _Memory(Struct):
    live_bytes: _Count
    cached_bytes: _Count
    free_bytes: _Count
    classes: list[_Class]


class _Stats(Struct):
    version: schema.VersionText
    config: dict[str, schema.Setting]
    memory: _Memory
    counters: dict[str, int]


class _Arena(Struct):
    first: _Count
    bytes: _Count


class _OfHz(Struct):
    stats: _Stats
    arena: _Arena
    threads: tuple[ThreadCaches, ...]
    threads_left_out: _Count
    rest_worker: bool = False


class _Part(Struct):
    allocator: schema.Word
    version: _Path
    settings: dict[str, schema.Setting]
    live_bytes: _Count | None = None
    held_bytes: _Count | None = None
    cached_bytes: _Count | None = None


class _OfAgent(Struct):
    provider: _Path
    parts: list[_Part]


class _Named(Struct):
    allocator: schema.Word
    trimmed: tuple[schema.Word, ...] = ()


class _Config(Struct):
    config: dict[str, schema.Setting]


def process_statistics(pid: int) -> Statistics:
    """What a process holds, by its allocator's own account; it must take requests.

    Raises:
        UsageError: There is none, or it takes no requests.
        HztuneError: It did not answer in time, or ended.
    """
    return statistics_of(Process.of(pid))


def statistics_of(process: Process) -> Statistics:
    """The same of a process that was found."""
    answer = channel.ask_process(process, "stats")
    if schema.judged(answer, _Named).allocator == "hz":
        return _of_hz(process, schema.judged(answer, _OfHz))
    told, memory = schema.judged(answer, _OfAgent), process.memory()
    most = memory.anonymous_bytes - memory.lazy_bytes + memory.swapped_bytes
    parts = [
        Holding(
            part.allocator,
            part.version.partition("-")[0],
            part.live_bytes,
            None if part.held_bytes is None else min(part.held_bytes, most),
            part.cached_bytes,
            part.settings,
        )
        for part in told.parts
    ]
    file = told.provider.rpartition("/")[2]
    parts.sort(key=lambda part: {"glibc": "libc"}.get(part.allocator, part.allocator) not in file)
    return Statistics(process.pid, process.name, process.thread_count(), memory, tuple(parts))


def _of_hz(process: Process, told: _OfHz) -> Statistics:
    memory, first = told.stats.memory, told.arena.first
    held_bytes = process.resident_between(first, first + told.arena.bytes)
    hz = Holding(
        "hz", told.stats.version, memory.live_bytes, held_bytes, memory.cached_bytes,
        told.stats.config,
    )  # fmt: skip
    return Statistics(
        process.pid,
        process.name,
        process.thread_count(),
        process.memory(),
        (hz,),
        free_page_bytes=memory.free_bytes,
        classes=tuple(SizeClass(one.bytes, one.live, one.free, one.cut) for one in memory.classes),
        threads=told.threads,
        threads_left_out=told.threads_left_out,
        has_rest_worker=told.rest_worker,
        counters=told.stats.counters,
    )


def trim_process(pid: int) -> Trimmed:
    """Has a process give back what it does not need.

    Raises:
        UsageError: There is none, or it takes no requests.
        HztuneError: It did not answer in time, or ended.
    """
    process = Process.of(pid)
    before = process.memory()
    told = schema.judged(channel.ask_process(process, "trim"), _Named)
    trimmed = ("hz",) if told.allocator == "hz" else told.trimmed
    return Trimmed(trimmed, before, process.memory())


def change_process(pid: int, settings: Mapping[str, str]) -> Changed:
    """Changes parameters of hz in a process, all or none: {"decay_ms": "0"}.

    Raises:
        UsageError: There is none, it takes no requests, or refuses the change.
        HztuneError: It did not answer in time, or ended.
    """
    process = Process.of(pid)
    if not settings:
        raise UsageError("nothing is to be set; give NAME=VALUE, such as decay_ms=0")
    for name, value in settings.items():
        if "\n" in name + value or "=" in name:
            raise UsageError(f"{name}={value!r} is no setting; legal is NAME=VALUE on one line")
    before: dict[str, Any] = channel.ask_process(process, "stats")
    if schema.judged(before, _Named).allocator != "hz":
        channel.ask_process(process, "set")  # it says why not
    was = schema.judged(before, _OfHz).stats.config
    answer = channel.ask_process(process, "set", *(f"{n}={v}" for n, v in settings.items()))
    now = schema.judged(answer, _Config).config
    names = [name for name in now if name in settings]
    return Changed({name: was[name] for name in names}, {name: now[name] for name in names})
