"""What can be asked of a process that takes requests, and what the answers mean."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from hztune.attach import channel
from hztune.attach.outside import Process, SeenMemory
from hztune.errors import UsageError
from hztune.params import Value
from hztune.strictjson import VERSION, Fields

_MOST = 1 << 63
_PATH = re.compile(r"[^\x00-\x1f\x7f]{0,4096}")


@dataclass(frozen=True, slots=True)
class Holding:
    """One allocator in a process, by its own account.

    Attributes:
        allocator: Its name.
        version: Its version.
        live_bytes: What the program has of it; None: it does not count that.
        held_bytes: What it has of the system's memory; None: it does not say. Of hz the kernel
            counts that; of the others it is at most what the kernel counts of the whole process, as
            some of them still count what they have given back.
        cached_bytes: What of that waits in the caches of threads; None: it does not say.
        settings: What is in effect of its settings, as far as it tells them.
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
    """The blocks of one size.

    Attributes:
        block_bytes: The size.
        live: Blocks that the program has.
        free: Blocks that wait to be used again.
        cut: Both, and those of them that were never used.
    """

    block_bytes: int
    live: int
    free: int
    cut: int


@dataclass(frozen=True, slots=True)
class ThreadCaches:
    """What one thread keeps for itself.

    Attributes:
        thread: Its number, as the system has it.
        cached_blocks: Free blocks in its caches.
        cached_bytes: Their bytes.
    """

    thread: int
    cached_blocks: int
    cached_bytes: int


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a process holds.

    Attributes:
        pid: The process.
        name: As the system calls it.
        thread_count: How many threads it has.
        memory: As the kernel counts it.
        parts: Its allocators; the one behind malloc is first.
        free_page_bytes: Of hz: unused pages that are still in memory, and go when their time comes.
        classes: Of hz: the blocks, by size.
        threads: Of hz: what each thread keeps.
        threads_left_out: Further threads that the answer had no room for.
        has_rest_worker: Of hz: a worker returns unused pages while the program rests.
        counters: Of hz: what it has done since its start; of others empty.
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
    """What a change did.

    Attributes:
        before: The parameters that were named, as they were.
        after: The same, as they are.
    """

    before: Mapping[str, Value]
    after: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Trimmed:
    """What a trim did.

    Attributes:
        allocators: Which allocators gave back what they did not need.
        before: The memory before.
        after: The memory after.
    """

    allocators: tuple[str, ...]
    before: SeenMemory
    after: SeenMemory


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
    if answer.text("allocator") == "hz":
        return _of_hz(process, answer)
    memory = process.memory()
    most = memory.anonymous_bytes - memory.lazy_bytes + memory.swapped_bytes
    return Statistics(
        process.pid, process.name, process.thread_count(), memory, _parts(answer, most)
    )


def trim_process(pid: int) -> Trimmed:
    """Has a process give back what it does not need.

    Raises:
        UsageError: There is none, or it takes no requests.
        HztuneError: It did not answer in time, or ended.
    """
    process = Process.of(pid)
    before = process.memory()
    answer = channel.ask_process(process, "trim")
    is_hz = answer.text("allocator") == "hz"
    trimmed = ("hz",) if is_hz else tuple(str(each) for each in answer.items("trimmed"))
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
    before = channel.ask_process(process, "stats")
    if before.text("allocator") != "hz":
        channel.ask_process(process, "set")  # it says why not
    was = _config(before.child("stats"))
    now = _config(channel.ask_process(process, "set", *(f"{n}={v}" for n, v in settings.items())))
    names = [name for name in now if name in settings]
    return Changed({name: was[name] for name in names}, {name: now[name] for name in names})


def _config(answer: Fields) -> dict[str, Value]:
    return dict(answer.child("config").values())


def _of_hz(process: Process, answer: Fields) -> Statistics:
    stats = answer.child("stats")
    memory = stats.child("memory")
    arena = answer.child("arena")
    first = _count(arena, "first")
    hz = Holding(
        allocator="hz",
        version=stats.text("version", VERSION),
        live_bytes=_count(memory, "live_bytes"),
        held_bytes=process.resident_between(first, first + _count(arena, "bytes")),
        cached_bytes=_count(memory, "cached_bytes"),
        settings=_config(stats),
    )
    counters = stats.child("counters")
    return Statistics(
        pid=process.pid,
        name=process.name,
        thread_count=process.thread_count(),
        memory=process.memory(),
        parts=(hz,),
        free_page_bytes=_count(memory, "free_bytes"),
        classes=tuple(
            SizeClass(*(_count(one, key) for key in ("bytes", "live", "free", "cut")))
            for one in memory.children("classes")
        ),
        threads=tuple(
            ThreadCaches(*(_count(one, key) for key in ("thread", "cached_blocks", "cached_bytes")))
            for one in answer.children("threads")
        ),
        threads_left_out=_count(answer, "threads_left_out"),
        has_rest_worker=answer.has("rest_worker") and answer.truth("rest_worker"),
        counters={name: int(value) for name, value in counters.values()},
    )


def _parts(answer: Fields, most_bytes: int) -> tuple[Holding, ...]:
    """The parts in the order of the agent; the one behind malloc first."""
    provider = answer.text("provider", _PATH)
    parts = [
        Holding(
            allocator=one.text("allocator"),
            version=one.text("version", _PATH).partition("-")[0],
            live_bytes=_count_or_none(one, "live_bytes"),
            held_bytes=None
            if (held := _count_or_none(one, "held_bytes")) is None
            else min(held, most_bytes),
            cached_bytes=_count_or_none(one, "cached_bytes"),
            settings=dict(one.child("settings").values()),
        )
        for one in answer.children("parts")
    ]
    return tuple(sorted(parts, key=lambda part: not _stands_in(part.allocator, provider)))


def _stands_in(allocator: str, provider: str) -> bool:
    """Whether an allocator is the one of a file, by the file's name."""
    return ("libc" if allocator == "glibc" else allocator) in provider.rpartition("/")[2]


def _count(fields: Fields, key: str) -> int:
    return fields.whole(key, 0, _MOST)


def _count_or_none(fields: Fields, key: str) -> int | None:
    return _count(fields, key) if fields.has(key) else None
