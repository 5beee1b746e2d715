"""A look at a program: run as it is for a few seconds, and once more with its calls recorded.

It is ended when the time is over, with all that it started. The recording has a run of its own,
since it takes time and memory.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hztune.allocator import inside, live, loaded_program
from hztune.errors import HztuneError
from hztune.files import scratch_folder
from hztune.measure.identity import AllocatorIdentity, user_settings
from hztune.measure.insides import mapped_files
from hztune.measure.launch import Launch, Run, Unit, launched
from hztune.measure.program import Program, hook
from hztune.measure.server import answers, serve_once, under_load, with_port_and_dir
from hztune.measure.watch import MemoryWatch, ports_of, tree_cpu_ns, tree_faults, tree_memory
from hztune.progress import Reporter
from hztune.recordings import changed_trace, recorder_command, trace_info
from hztune.rests import RestPlan

_PAUSE_S = 0.01
_END_S = 2.0  # what a program has to end after SIGTERM
_TRACE_S = 60.0  # what the recorder has to make a trace of what it recorded
_LOAD_GRACE_S = 5.0
_REST_S = 1.0  # after the load of a server, until its memory is read
_PAGE_KB = 4


@dataclass(slots=True)
class Sight:
    """Memory is without mapped files. Of a server, time, faults and calls are those of its load."""

    wall_s: float = 0.0  # how long it was looked at
    ended: bool = False  # whether it, or the load, ended by itself meanwhile
    cpu_s: float = 0.0
    processes: int = 1  # most that lived at one time
    faults: int = 0  # page faults without a disk
    peak_kb: int = 0  # most memory that was resident at one time
    end_kb: int = 0  # what was when the look ended; of a server, a moment after its load
    before_kb: int = 0  # of a server: what was before its load; 0: it is none
    allocator: str = ""  # that provides its malloc; "": not known
    provider: str = ""  # the file that does; "": not seen
    inside: tuple[str, ...] = ()  # allocators with names of their own in its files
    obstacle: str = ""  # why no allocator can be put under it, in one sentence; "": one can
    ports: tuple[str, ...] = ()  # on which it listened at the end ("the port 6379")
    unseen: str = "nothing was recorded"  # why its calls were not seen; "": they were
    # what its busiest process asked of its allocator
    allocations: int = 0
    sizes: tuple[tuple[int, int], ...] = ()  # (most bytes, allocations of at most so many)
    callers: int = 0  # threads
    frees: int = 0
    frees_by_others: int = 0  # by another thread than the one that allocated the block
    blocks_kb: int = 0  # most that was allocated at one time

    def enter(self, told: Mapping[str, Any], before: Mapping[str, Any] | None) -> None:
        """Takes what `trace_info` tells of a recording, without what came before a load."""
        start = before or {"sizes": (), "ends": 0, "ends_by_others": 0}
        earlier = dict(start["sizes"])
        self.sizes = tuple((most, count - earlier.get(most, 0)) for most, count in told["sizes"])
        self.allocations, self.unseen = sum(count for _, count in self.sizes), ""
        self.callers, self.blocks_kb = told["threads"], told["peak_bytes"] // 1024
        self.frees = told["ends"] - start["ends"]
        self.frees_by_others = told["ends_by_others"] - start["ends_by_others"]

    @property
    def cpus(self) -> float:
        return self.cpu_s / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def allocations_per_cpu_s(self) -> float:
        """Allocations in a second of its CPU time as it is, not recorded."""
        return self.allocations / self.cpu_s if self.cpu_s > 0 else 0.0

    @property
    def by_others(self) -> float:
        return self.frees_by_others / self.frees if self.frees else 0.0

    @property
    def faults_again(self) -> int:
        """Page faults beyond one for each page that was new: of memory that was taken again."""
        return max(0, self.faults - max(0, self.peak_kb - self.before_kb) // _PAGE_KB)

    @property
    def malloc_kb(self) -> int:
        """At most twice its blocks; the rest of the peak, it maps for itself, as a JVM its heap."""
        return self.peak_kb if self.unseen else min(self.peak_kb, 2 * self.blocks_kb)

    @property
    def spare(self) -> float:
        """The share of the peak that is its allocator's and in no block; a tenth if not seen."""
        if self.unseen or not self.peak_kb:
            return 0.1
        return max(0, self.malloc_kb - self.blocks_kb) / self.peak_kb


@dataclass
class _Look:
    seconds: float  # after which it is ended
    trace: Path | None = None  # what the recorder writes; None: it is not recorded
    sight: Sight = field(default_factory=Sight)
    ready_s: float = 0.0  # of a server: until it answered
    load_ns: int = 0  # when its load began

    def once(self, program: Program) -> Run:
        base, sight, launches = AllocatorIdentity().base, self.sight, list[Launch]()
        is_served = program.service is not None
        grace_s = _LOAD_GRACE_S if is_served else _END_S + _TRACE_S
        here = replace(program, span_s=self.seconds) if is_served else program
        unit = Unit(here, base, user_settings(), lambda running: None, self.seconds + grace_s)

        def follow(launch: Launch) -> Run:
            launches.append(launch)
            root, watch = launch.child.pid, MemoryWatch(launch.child.pid, RestPlan())
            with watch.watching():
                run = self._serve(unit, launch) if is_served else self._alone(launch)
            held_kb = [kb for _, kb, _ in watch.points] or [0]
            sight.peak_kb, sight.end_kb = max(held_kb), held_kb[-1]
            found = (port for pid in live.descendants(root) for port in ports_of(pid))
            sight.ports = tuple(sorted(set(found)))
            return run

        hook("--prepare", program.prepare, base)
        if is_served:
            most_s = program.ready_s + self.seconds + _LOAD_GRACE_S + _REST_S + _TRACE_S
            run = serve_once(unit, use=follow, most_s=most_s)
        else:
            with launched(unit) as launch:
                follow(launch)
                done = launch.child.stop(_END_S)
            run, _ = launch.run(done)
        hook("--cleanup", program.cleanup, base)
        report = json.loads(launches[0].report)
        sight.processes, sight.provider = report["processes"], run.library
        if not sight.peak_kb:
            sight.peak_kb = sight.end_kb = run.rss_peak_kb
        if not is_served:
            sight.faults, sight.cpu_s = report["minor_faults"], 1e-9 * run.cpu_ns
            sight.wall_s = run.wall_s if sight.ended else sight.wall_s
        return run

    def _alone(self, launch: Launch) -> Run:
        began = time.monotonic()
        self.sight.ended = launch.child.wait(self.seconds)
        self.sight.wall_s = time.monotonic() - began
        self._await_trace(launch)
        return Run(None)

    def _serve(self, unit: Unit, launch: Launch) -> Run:
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
        sight.cpu_s = 1e-9 * (tree_cpu_ns(server.pid) - before_ns)
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


def looked_at(program: Program, seconds: float, reporter: Reporter) -> Sight:
    """UsageError: it cannot be started. HztuneError: it fails by itself, and cannot be measured."""
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
    _record(program, look)
    is_own = run.library in ("", str(found.program))
    sight.allocator = found.inside if is_own else loaded_program.named(Path(run.library))
    parts = inside.parts_of([found.program, *loaded_program.libraries(found.program), *files])
    sight.inside, sight.obstacle = tuple(part.name for part in parts), found.obstacle or ""
    return sight


def _record(program: Program, seen: _Look) -> None:
    """Adds what a second, recorded run asks of its allocator, or why that was not seen."""
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
                changed_trace("cut", trace, folder / "before", to=to_s)
                before = trace_info(folder / "before")  # what a server called before its load
    except HztuneError as error:
        seen.sight.unseen = str(error)
        return
    if told is not None and told["calls"]:
        seen.sight.enter(told, before)
    elif run.fault:
        seen.sight.unseen = f"the recorded run failed: {run.fault.detail}"
    else:
        seen.sight.unseen = "it called no allocator that its variables reach"
