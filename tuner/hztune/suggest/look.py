"""A look at a program: run as it is for a few seconds, and once more with its calls recorded.

It is ended when the time is over, by SIGTERM and then for good, with all that it started. What is
read of it while it lives: memory, threads, ports, mapped files, and which file gives it malloc. The
recording has a run of its own, since it takes time and memory.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import Any

from hztune import artifacts
from hztune.allocator import inside, live, loaded_program
from hztune.allocator.live import Running
from hztune.errors import HztuneError
from hztune.measure.identity import AllocatorIdentity, Fault, user_settings
from hztune.measure.insides import mapped_files
from hztune.measure.launch import Launch, Run, Unit, launched
from hztune.measure.program import Program, hook
from hztune.measure.server import (
    answers,
    serve_once,
    under_load,
    with_port_and_dir,
)
from hztune.measure.watch import (
    MemoryWatch,
    alongside,
    ports_of,
    tree_cpu_ns,
    tree_faults,
    tree_memory,
)
from hztune.progress import Reporter
from hztune.recordings import cut_trace, recorder_command, trace_info
from hztune.rests import RestPlan
from hztune.scratch import scratch_folder

_PAUSE_S = 0.01
_END_S = 2.0  # what a program has to end after SIGTERM
_TRACE_S = 60.0  # what the recorder has to make a trace of what it recorded
_LOAD_GRACE_S = 5.0
_REST_S = 1.0  # after the load of a server, until its memory is read
_PRELOAD = "LD_PRELOAD"
_PAGE_KB = 4


@dataclass(frozen=True, slots=True)
class Calls:
    """What a program (of a server: its load) asked of its allocator, in the busiest process."""

    allocations: int
    seconds: float  # from the first call to the last one
    sizes: tuple[tuple[int, int], ...]  # (most bytes, allocations of at most so many), in order
    threads: int  # that called
    frees: int
    frees_by_others: int  # by another thread than the one that allocated the block
    peak_kb: int  # most that was allocated at one time
    is_part: bool  # whether the program went on when the recording ended

    @classmethod
    def of(cls, told: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> Calls:
        """From what `trace_info` tells of a recording, without what came before a load."""
        start = before or {"sizes": (), "ends": 0, "ends_by_others": 0}
        earlier = dict(start["sizes"])
        sizes = tuple((most, count - earlier.get(most, 0)) for most, count in told["sizes"])
        return cls(
            allocations=sum(count for _, count in sizes),
            seconds=told["duration_ns"] * 1e-9,
            sizes=sizes,
            threads=told["threads"],
            frees=told["ends"] - start["ends"],
            frees_by_others=told["ends_by_others"] - start["ends_by_others"],
            peak_kb=told["peak_bytes"] // 1024,
            is_part=told["is_part"],
        )

    @property
    def by_others(self) -> float:
        return self.frees_by_others / self.frees if self.frees else 0.0


@dataclass(slots=True)
class Sight:
    """What was seen of a program; memory is without mapped files."""

    wall_s: float = 0.0  # how long it was looked at; of a server, its load
    ended: bool = False  # whether it (of a server, its load) ended by itself meanwhile
    cpu_s: float = 0.0  # CPU time that it took meanwhile
    delay_s: float = 0.0  # for which its first thread waited for a CPU that others had
    life_cpu_s: float = 0.0  # from its start to its end; of a server, under its load
    processes: int = 1  # most that lived at one time
    threads: int = 1  # the same, in all processes together
    faults: int = 0  # page faults without a disk; of a server, under its load
    peak_kb: int = 0  # most memory that was resident at one time
    end_kb: int = 0  # what was when the look ended; of a server, a moment after its load
    before_kb: int = 0  # of a server: what was before its load; 0: it is none
    allocator: str = ""  # that provides its malloc; "": not known
    provider: str = ""  # the file that does; "": not seen
    inside: tuple[str, ...] = ()  # allocators with names of their own in its files
    obstacle: str = ""  # why no allocator can be put under it, in one sentence; "": one can
    gains_rights: bool = False  # whether that is since it gains rights when it starts
    is_of_go: bool = False  # whether that is since Go's own runtime gives it all its memory
    dropped: tuple[str, ...] = ()  # programs that it started without the variables it was given
    ports: tuple[str, ...] = ()  # on which it listened at the end ("the port 6379")
    calls: Calls | None = None  # what it asked of its allocator; None: not seen
    unseen: str = ""  # why not, in one sentence

    @property
    def cpus(self) -> float:
        """CPUs that it kept busy, in the time in which others did not keep it from them."""
        own_s = self.wall_s - self.delay_s
        return self.cpu_s / own_s if own_s > 0 else 0.0

    @property
    def allocations_per_cpu_s(self) -> float:
        """Allocations in a second of its CPU time as it is, not recorded; 0: not known."""
        if self.calls is None:
            return 0.0
        is_whole = self.ended or self.before_kb
        cpu_s = self.life_cpu_s if is_whole else self.calls.seconds * self.cpus
        return self.calls.allocations / cpu_s if cpu_s > 0 else 0.0

    @property
    def faults_again(self) -> int:
        """Page faults beyond one for each page that was new: of memory that was taken again."""
        return max(0, self.faults - max(0, self.peak_kb - self.before_kb) // _PAGE_KB)

    @property
    def malloc_kb(self) -> int:
        """What of the peak may be its allocator's: at most twice its blocks.

        The rest is memory that it maps for itself, such as the heap of a JVM.
        """
        return min(self.peak_kb, 2 * self.calls.peak_kb) if self.calls else self.peak_kb

    @property
    def spare(self) -> float:
        """The share of the peak that is its allocator's and in no block; a tenth if not seen."""
        if self.calls is None or not self.peak_kb:
            return 0.1
        return max(0, self.malloc_kb - self.calls.peak_kb) / self.peak_kb


@dataclass
class _Look:
    seconds: float  # after which it is ended
    trace: Path | None = None  # what the recorder writes; None: it is not recorded
    sight: Sight = field(default_factory=Sight)
    dropped: set[str] = field(default_factory=set)
    ready_s: float = 0.0  # of a server: until it answered
    load_ns: int = 0  # when its load began
    _files_kb: int = 0

    def once(self, program: Program) -> Run:
        base, sight, launches = AllocatorIdentity().base, self.sight, list[Launch]()
        is_served = program.service is not None
        grace_s = _LOAD_GRACE_S if is_served else _END_S + _TRACE_S
        here = replace(program, span_s=self.seconds) if is_served else program
        unit = Unit(here, base, user_settings(), self._judge, self.seconds + grace_s)

        def follow(launch: Launch) -> Run:
            launches.append(launch)
            with self._followed(launch):
                return self._serve(unit, launch) if is_served else self._alone(launch)

        hook("--prepare", program.prepare, base)
        if is_served:
            most_s = program.ready_s + self.seconds + _LOAD_GRACE_S + _REST_S + _TRACE_S
            run = serve_once(unit, use=follow, most_s=most_s)
        else:
            with launched(unit) as launch:
                follow(launch)
                self._end(launch)
                done = launch.child.stop(_END_S)
            run, _ = launch.run(done)
        hook("--cleanup", program.cleanup, base)
        report = json.loads(launches[0].report)
        sight.processes, sight.provider = report["processes"], run.library
        sight.peak_kb = max(sight.peak_kb, run.rss_peak_kb - self._files_kb)
        sight.end_kb = sight.end_kb or run.rss_peak_kb
        if not is_served:
            sight.faults, sight.delay_s = report["minor_faults"], 1e-9 * report["delay_ns"]
            sight.life_cpu_s = 1e-9 * run.cpu_ns
            if sight.ended:
                sight.wall_s, sight.cpu_s = run.wall_s, sight.life_cpu_s
        return run

    def _alone(self, launch: Launch) -> Run:
        began = time.monotonic()
        self.sight.ended = launch.child.wait(self.seconds)
        self.sight.wall_s = time.monotonic() - began
        self.sight.cpu_s = 1e-9 * tree_cpu_ns(launch.child.pid)
        self._await_trace(launch)
        return Run(None)

    def _end(self, launch: Launch) -> None:
        for pid in live.descendants(launch.child.pid):
            with suppress(OSError):
                os.kill(pid, signal.SIGTERM)
        launch.child.wait(_END_S)

    def _serve(self, unit: Unit, launch: Launch) -> Run:
        """Waits until a server answers, puts it under load, and lets it rest for a moment."""
        server, sight, began = launch.child, self.sight, time.monotonic()
        if (fault := answers(unit.program, unit.base, server.wait, server.pid)) is not None:
            return Run(fault)
        self.ready_s = time.monotonic() - began
        before_ns, before = tree_cpu_ns(server.pid), tree_faults(server.pid)
        sight.before_kb = max(1, tree_memory(server.pid)[0])
        self.load_ns = time.monotonic_ns()
        used = under_load(server, unit)
        if used.fault is not None and used.fault.status == "hang":
            used = Run(None, wall_s=unit.limit_s, was_told=True)
        sight.wall_s, sight.ended = used.wall_s, not used.was_told
        sight.cpu_s = sight.life_cpu_s = 1e-9 * (tree_cpu_ns(server.pid) - before_ns)
        sight.faults = max(0, tree_faults(server.pid) - before)
        if used.fault is None:
            server.wait(_REST_S)
            self._await_trace(launch)
        return used

    def _await_trace(self, launch: Launch) -> None:
        """Waits until the recorder has made the trace; it does when its time is over."""
        deadline = time.monotonic() + _TRACE_S
        while self.trace and time.monotonic() < deadline and not launch.child.wait(_PAUSE_S):
            if self.trace.exists() and not Path(f"{self.trace}.recording").exists():
                return

    def _judge(self, running: Running) -> Fault | None:
        """Notes a process that was started without what it was given; nothing is a fault here."""
        given = running.environment
        is_judged = self.trace and given is not None and running.program != artifacts.record()
        if is_judged and str(artifacts.recorder()) not in (given or {}).get(_PRELOAD, ""):
            self.dropped.add(running.program.name)
        return None

    @contextmanager
    def _followed(self, launch: Launch) -> Iterator[None]:
        """Looks at memory and threads as long as the block lasts, and at ports when it ends."""
        root, sight, page_kb = launch.child.pid, self.sight, os.sysconf("SC_PAGE_SIZE") // 1024
        watch = MemoryWatch(root, RestPlan())

        def follow(ended: Event) -> None:
            while not ended.wait(_PAUSE_S):
                threads = files_kb = 0
                for pid in live.descendants(root):
                    with suppress(OSError):
                        threads += len(os.listdir(f"/proc/{pid}/task"))
                        files_kb += int(Path(f"/proc/{pid}/statm").read_text().split()[2]) * page_kb
                sight.threads = max(sight.threads, threads)
                self._files_kb = max(self._files_kb, files_kb)

        with watch.watching(), alongside(follow, "look"):
            yield
        held_kb = [kb for _, kb, _ in watch.points] or [0]
        sight.peak_kb, sight.end_kb = max(held_kb), held_kb[-1]
        found = (port for pid in live.descendants(root) for port in ports_of(pid))
        sight.ports = tuple(sorted(set(found)))


def looked_at(program: Program, seconds: float, reporter: Reporter) -> Sight:
    """Looks at a program in two runs of so many seconds each; of a server, under its load.

    UsageError: it cannot be started. HztuneError: it fails by itself, and cannot be measured.
    """
    found = loaded_program.inspect(program.argv[0])
    reporter.say(f"{program.label}: a look for {seconds:g} s at most, as it is")
    look = _Look(seconds)
    sight = look.sight
    with with_port_and_dir(program) as here, mapped_files() as files:
        run = look.once(here)
    if run.fault is not None and (program.service is not None or sight.ended):
        raise HztuneError(
            f"{program.label} fails by itself, so that nothing can be measured of it: "
            f"{run.fault.detail}"
        )
    reporter.say(f"{program.label}: another one, with its calls recorded")
    sight.calls, sight.unseen, sight.dropped = _calls(program, look)
    is_own = run.library in ("", str(found.program))
    sight.allocator = found.inside if is_own else loaded_program.named(Path(run.library))
    parts = inside.parts_of([found.program, *loaded_program.libraries(found.program), *files])
    sight.inside, sight.obstacle = tuple(part.name for part in parts), found.obstacle or ""
    sight.gains_rights, sight.is_of_go = found.gains_rights, found.is_of_go
    return sight


def _calls(program: Program, seen: _Look) -> tuple[Calls | None, str, tuple[str, ...]]:
    """What a second, recorded run asks of its allocator, or why that was not seen.

    Last come the programs that it started without the recorder.
    """
    again, told, before = _Look(seen.seconds), None, None
    is_served = program.service is not None
    span_s = seen.ready_s + seen.sight.wall_s + _REST_S if is_served else seen.seconds
    try:
        with scratch_folder() as folder:
            again.trace = trace = folder / "look.trace"
            words = recorder_command(trace, program.argv, seconds=span_s)
            with with_port_and_dir(replace(program, argv=tuple(words))) as here:
                run = again.once(here)
            told = trace_info(trace) if trace.exists() else None
            if told and again.load_ns > told["notes"]["start_ns"]:
                to_s = 1e-9 * (again.load_ns - told["notes"]["start_ns"])
                cut_trace(trace, folder / "before", to_s=to_s)
                before = trace_info(folder / "before")  # what a server called before its load
    except HztuneError as error:
        return None, str(error), tuple(sorted(again.dropped))
    dropped = tuple(sorted(again.dropped))
    if told is not None and told["calls"]:
        return Calls.of(told, before), "", dropped
    unseen = "it called no allocator"
    if run.fault:
        unseen = f"the recorded run failed: {run.fault.detail}"
    if dropped:
        names = ", ".join(dropped)
        unseen = f"{names} was started without {_PRELOAD}, by which calls are recorded"
    return None, unseen, dropped
