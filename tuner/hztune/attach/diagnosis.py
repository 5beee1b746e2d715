"""A process that runs, in words: what its allocator holds, what is set, what would help.

Of a process that takes requests the allocator itself tells; of any other one only what can be seen
from outside is told, and how to start it so that it tells more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from hztune import allocator
from hztune.allocator import live
from hztune.attach.outside import Process, SeenMemory
from hztune.attach.questions import Holding, Statistics, statistics_of
from hztune.errors import HztuneError, UsageError
from hztune.machine import group_limit
from hztune.params import Value
from hztune.progress import mib

_LITTLE_BYTES = 16 << 20
_LITTLE_SHARE = 0.2
"""An allocator that holds less than both of these beyond what is live is not worth a setting."""

_WORTH_TELLING = 0.1
"""The least share of what is held beyond what is live that gets a sentence."""


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


def diagnose(pid: int) -> Diagnosis:
    """What a process's allocator holds, what is set, and what would help, in words.

    Raises:
        UsageError: There is none, or it may not be looked at.
    """
    process = Process.of(pid)
    memory, remarks = process.memory(), []
    running, found = None, None
    try:
        running = live.look(pid)
    except UsageError as error:
        remarks.append(str(error))
    try:
        found = statistics_of(process)
    except HztuneError as error:
        remarks.append(f"{error}; from outside, live bytes and fragmentation cannot be known")
    if found is not None and not found.parts:
        remarks.append("the agent does not know the allocator of this process, or what it holds")
    settings = tuple(_settings(running, found, remarks)) if running is not None else ()
    return Diagnosis(
        pid=pid,
        name=process.name,
        provider=str(running.provider) if running is not None else "",
        allocator=running.allocator if running is not None else "",
        memory=found.memory if found is not None else memory,
        limit=group_limit(str(pid)),
        parts=found.parts if found is not None else (),
        settings=settings,
        advice=tuple(advice_for(found)) if found is not None else (),
        remarks=tuple(remarks),
    )


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
    asked: Mapping[str, Value] = {}
    try:
        adapter = allocator.get(running.allocator)
        installed = adapter.installed()
        defaults = {knob.name: knob.default for knob in adapter.knobs(installed)}
        asked = adapter.requested(running.environment or {}, installed)
        if running.allocator != "hz" or not told:
            known = live.settings(running, adapter, installed)
    except HztuneError as error:
        remarks.append(f"the settings of {running.allocator} cannot be known: {error}")
        return
    known |= {name: live.SettingRead(value, is_effective=True) for name, value in told.items()}
    for name, read in known.items():
        is_default = read.value == defaults.get(name)
        yield InEffect(name, read.value, read.is_effective, is_default, name in asked)


# ---- what would help ---------------------------------------------------------------------------


def advice_for(found: Statistics) -> Iterator[str]:
    """Yields what would help a process, a sentence each, by what its allocator tells."""
    main = found.main
    if main is None:
        return
    if main.live_bytes is None or main.held_bytes is None:
        yield (
            f"{main.allocator} does not count live bytes, so the unused part of what it holds is "
            "not known"
        )
        yield from _by_allocator(found, main)
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
    yield from _of_hz(found, main, beyond) if main.allocator == "hz" else _by_allocator(found, main)
    yield (
        "only a measurement finds the best setting for this program, and its cost in speed: "
        "`hztune --objective kept -- COMMAND`"
    )


def _of_hz(found: Statistics, main: Holding, beyond: int) -> Iterator[str]:
    """Where the bytes wait, the largest part first."""
    pages, cached = found.free_page_bytes, main.cached_bytes or 0
    between = max(0, beyond - cached - pages)
    stay = f"{mib(pages)} are unused pages, which stay for decay_ms ({main.settings['decay_ms']})"
    if found.has_rest_worker or main.settings["background_period_us"] != 0:
        stay += f": `hztune set --pid {found.pid} decay_ms=0` returns them at once"
    else:
        stay += (
            ", and longer while the program rests, as hz has no background thread there (rest_ms): "
            f"`hztune set --pid {found.pid} background_period_us=65536` starts one"
        )
    told = [
        (pages, stay),
        (
            cached,
            f"{mib(cached)} are in the caches of {len(found.threads)} threads: `hztune set --pid "
            f"{found.pid} thread_cache_share=50` lets them grow less (now "
            f"{main.settings['thread_cache_share']}); the cache of a resting thread stays",
        ),
        (
            between,
            f"{mib(between)} are between live blocks: fragmentation, which ends when these are "
            "freed, too",
        ),
    ]
    for size, sentence in sorted(told, key=lambda each: -each[0]):
        if size >= _WORTH_TELLING * beyond:
            yield sentence


_Advice = tuple[str, Callable[[Statistics, Holding], bool], str]

_BY_ALLOCATOR: tuple[_Advice, ...] = (
    ("jemalloc", lambda _, main: main.settings.get("dirty_decay_ms") not in (0, None),
     "unused pages stay for dirty_decay_ms ({main.settings[dirty_decay_ms]}), and longer while the "
     "program rests: start it with MALLOC_CONF=background_thread:true,dirty_decay_ms:1000,"
     "muzzy_decay_ms:0"),
    ("jemalloc", lambda found, main: found.thread_count > 2 and "narenas" in main.settings,
     "{found.thread_count} threads use up to {main.settings[narenas]} arenas, each of which has "
     "its own pages: MALLOC_CONF=narenas:2"),
    ("glibc", lambda found, _: found.thread_count > 2,
     "each of {found.thread_count} threads may have its own arena: start it with "
     "GLIBC_TUNABLES=glibc.malloc.arena_max=2"),
    ("glibc", lambda *_: True,
     "glibc returns only what is free at the end of an arena; the rest needs a call of "
     "malloc_trim(0), for example when the program rests"),
    ("tcmalloc", lambda *_: True,
     "free pages stay: start it with TCMALLOC_AGGRESSIVE_DECOMMIT=t"),
    ("tcmalloc", lambda _, main: (main.cached_bytes or 0) > _LITTLE_BYTES,
     "{cached} are in the caches of threads: start it with "
     "TCMALLOC_MAX_TOTAL_THREAD_CACHE_BYTES=4194304"),
    ("mimalloc", lambda *_: True,
     "unused pages stay for a while: start it with MIMALLOC_{purge}_DELAY=0 (`hztune trim` reaches "
     "little of mimalloc, in which each thread must return its own memory)"),
)  # fmt: skip
"""What to say of each allocator, and when."""


def _by_allocator(found: Statistics, main: Holding) -> Iterator[str]:
    is_old = main.version.startswith(("2.0.", "2.1.0", "2.1.1"))
    words = {"cached": mib(main.cached_bytes or 0), "purge": "DECOMMIT" if is_old else "PURGE"}
    for name, is_due, sentence in _BY_ALLOCATOR:
        if name == main.allocator and is_due(found, main):
            yield sentence.format(found=found, main=main, **words)
