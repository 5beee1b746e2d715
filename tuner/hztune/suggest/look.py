"""A look at a program: run as it is for a few seconds, and once more with its calls recorded.

It is ended when the time is over, by SIGTERM and then for good, with all that it started. What is
read of it while it lives: memory, threads, ports, mapped files, and which file gives it malloc. The
recording has a run of its own, since it takes time and memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Event

from hztune import artifacts
from hztune.allocator import inside, live, loaded_program
from hztune.allocator.live import Running
from hztune.errors import HztuneError
from hztune.measure.identity import AllocatorIdentity, Fault, user_settings
from hztune.measure.insides import mapped_files
from hztune.measure.launch import Launch, Run, Unit, launched
from hztune.measure.program import Program, hook
from hztune.measure.rest import MemoryWatch, tree_memory
from hztune.measure.server import (
    answers,
    serve_once,
    tree_cpu_ns,
    tree_faults,
    under_load,
    with_port_and_dir,
)
from hztune.measure.watch import alongside, ports_of
from hztune.progress import Reporter
from hztune.rests import RestPlan
from hztune.scratch import scratch_folder
from hztune.suggest.sight import Calls, Sight
from hztune.trace import recording, tool

_PAUSE_S = 0.01
_PORTS_EVERY = 10
"""Looks at threads for one at ports."""

_END_S = 2.0
"""What a program has to end after SIGTERM."""

_TRACE_S = 60.0
"""What the recorder has to make a trace of what it recorded."""

_LOAD_GRACE_S = 5.0
_REST_S = 1.0
"""After the load of a server, until its memory is read."""

_PRELOAD = "LD_PRELOAD"


@dataclass
class _Run:
    """One run while it is looked at, and what came of it.

    Attributes:
        seconds: After which it is ended.
        trace: What the recorder writes; None: it is not recorded.
    """

    seconds: float
    trace: Path | None = None
    wall_s: float = 0.0
    cpu_s: float = 0.0
    ready_s: float = 0.0
    delay_s: float = 0.0
    ended: bool = False
    threads: int = 0
    processes: int = 0
    looks: int = 0
    faults: int = 0
    before_kb: int = 0
    files_kb: int = 0
    load_ns: int = 0
    points: tuple[tuple[int, int, int], ...] = ()
    ports: set[str] = field(default_factory=set)
    dropped: set[str] = field(default_factory=set)
    launch: Launch | None = None
    run: Run = field(default_factory=lambda: Run(None))

    # ---- what runs -------------------------------------------------------------------------------

    def once(self, program: Program) -> None:
        """Runs a program, in its place, to its end or to the end of the time."""
        base = AllocatorIdentity().base
        hook("--prepare", program.prepare, base)
        if program.service is None:
            limit_s = self.seconds + _END_S + _TRACE_S
            self._alone(Unit(program, base, user_settings(), self._judge, limit_s))
        else:
            most_s = program.ready_s + self.seconds + _LOAD_GRACE_S + _REST_S + _TRACE_S
            limit_s, program = self.seconds + _LOAD_GRACE_S, replace(program, span_s=self.seconds)
            unit = Unit(program, base, user_settings(), self._judge, limit_s)
            self.run = serve_once(unit, use=partial(self._serve, unit), most_s=most_s)
        hook("--cleanup", program.cleanup, base)
        assert self.launch is not None, "it was started"
        told = json.loads(self.launch.report)
        self.processes = max(self.processes, told["processes"])
        if program.service is None:
            self.faults, self.delay_s = told["minor_faults"], 1e-9 * told["delay_ns"]

    def _alone(self, unit: Unit) -> None:
        with launched(unit) as launch:
            self.launch = launch
            with self._followed(launch):
                began = time.monotonic()
                self.ended = launch.child.wait(self.seconds)
                self.wall_s = time.monotonic() - began
                self.cpu_s = 1e-9 * tree_cpu_ns(launch.child.pid)
                self._await_trace(launch)
            if not self.ended:
                for pid in live.descendants(launch.child.pid):
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGTERM)
                launch.child.wait(_END_S)
            done = launch.child.stop(_END_S)
        self.run, _ = launch.run(done)
        if self.ended:
            self.wall_s, self.cpu_s = self.run.wall_s, 1e-9 * self.run.cpu_ns

    def _serve(self, unit: Unit, launch: Launch) -> Run:
        """Waits until a server answers, puts it under load, and lets it rest for a moment."""
        self.launch, server = launch, launch.child
        with self._followed(launch):
            began = time.monotonic()
            if (fault := answers(unit.program, unit.base, server.wait, server.pid)) is not None:
                return Run(fault)
            self.ready_s = time.monotonic() - began
            before_ns, before = tree_cpu_ns(server.pid), tree_faults(server.pid)
            self.before_kb = max(1, tree_memory(server.pid).resident_kb)
            self.load_ns = time.monotonic_ns()
            used = under_load(server, unit)
            if used.fault is not None and used.fault.status == "hang":
                used = Run(None, wall_s=unit.limit_s, was_told=True)
            self.wall_s, self.ended = used.wall_s, not used.was_told
            self.cpu_s = 1e-9 * (tree_cpu_ns(server.pid) - before_ns)
            self.faults = max(0, tree_faults(server.pid) - before)
            if used.fault is None:
                server.wait(_REST_S)
                self._await_trace(launch)
        return used

    def _await_trace(self, launch: Launch) -> None:
        """Waits until the recorder has made the trace; it does when its time is over."""
        if self.trace is None:
            return
        deadline = time.monotonic() + _TRACE_S
        log = Path(f"{self.trace}.recording")
        while time.monotonic() < deadline and not launch.child.wait(_PAUSE_S):
            if self.trace.exists() and not log.exists():
                return

    # ---- what is seen ----------------------------------------------------------------------------

    def _judge(self, running: Running) -> Fault | None:
        """Notes a process that was started without what it was given; nothing is a fault here."""
        given = running.environment
        if self.trace is None or given is None or running.program == artifacts.record():
            return None
        if str(artifacts.recorder()) not in given.get(_PRELOAD, ""):
            self.dropped.add(running.program.name)
        return None

    @contextmanager
    def _followed(self, launch: Launch) -> Iterator[None]:
        """Looks at memory, threads and ports as long as the block lasts."""
        watch = MemoryWatch(launch.child.pid, RestPlan())

        def follow(ended: Event) -> None:
            while not ended.wait(_PAUSE_S):
                self._count(launch.child.pid)

        with watch.watching(), alongside(follow, "look"):
            yield
        self.points = tuple(watch.points)

    def _count(self, launcher: int) -> None:
        pids = live.descendants(launcher)
        threads, files_kb, self.looks = 0, 0, self.looks + 1
        for pid in pids:
            with contextlib.suppress(OSError):
                threads += len(os.listdir(f"/proc/{pid}/task"))
                shared_pages = int(Path(f"/proc/{pid}/statm").read_text().split()[2])
                files_kb += shared_pages * os.sysconf("SC_PAGE_SIZE") // 1024
            if self.looks % _PORTS_EVERY == 0:
                self.ports |= ports_of(pid)
        self.files_kb = max(self.files_kb, files_kb)
        self.threads, self.processes = max(self.threads, threads), max(self.processes, len(pids))


# ---- all together --------------------------------------------------------------------------------


def looked_at(program: Program, seconds: float, reporter: Reporter) -> Sight:
    """Looks at a program.

    Args:
        program: What is looked at; of a server, under its load.
        seconds: For each of the two runs.
        reporter: Is told what begins.

    Raises:
        UsageError: There is no such program, or it cannot be started.
        HztuneError: It fails by itself, so that nothing can be measured of it.
    """
    found = loaded_program.inspect(program.argv[0])
    reporter.say(f"{program.label}: a look for {seconds:g} s at most, as it is")
    seen = _Run(seconds)
    with with_port_and_dir(program) as here, mapped_files() as files:
        seen.once(here)
    fault = seen.run.fault
    if fault is not None and (program.service is not None or seen.ended):
        raise HztuneError(
            f"{program.label} fails by itself, so that nothing can be measured of it: "
            f"{fault.detail}"
        )
    reporter.say(f"{program.label}: another one, with its calls recorded")
    calls, unseen, dropped = _calls(program, seen, seconds)
    provider, libraries = seen.run.library, loaded_program.libraries(found.program)
    is_own = not provider or Path(provider) == found.program
    parts = inside.parts_of([found.program, *libraries, *files])
    points = seen.points or ((0, seen.run.rss_peak_kb, 0),)
    return Sight(
        wall_s=seen.wall_s,
        ended=seen.ended,
        cpu_s=seen.cpu_s,
        delay_s=seen.delay_s,
        life_cpu_s=seen.cpu_s if seen.before_kb else 1e-9 * seen.run.cpu_ns,
        processes=max(1, seen.processes),
        threads=max(1, seen.threads),
        faults=seen.faults,
        peak_kb=max(seen.run.rss_peak_kb - seen.files_kb, *(kb for _, kb, _ in points)),
        end_kb=points[-1][1],
        before_kb=seen.before_kb,
        allocator=found.inside if is_own else loaded_program.named(Path(provider)),
        provider=provider,
        inside=tuple(part.name for part in parts),
        links=tuple(each.name for each in libraries),
        obstacle=found.obstacle() or "",
        gains_rights=found.gains_rights,
        is_of_go=found.is_of_go,
        dropped=tuple(sorted(dropped)),
        ports=tuple(sorted(seen.ports)),
        calls=calls,
        unseen=unseen,
    )


def _calls(program: Program, seen: _Run, seconds: float) -> tuple[Calls | None, str, set[str]]:
    """What a second, recorded run asks of its allocator; or why that was not seen."""
    span_s = seconds if program.service is None else seen.ready_s + seen.wall_s + _REST_S
    again, told, before = _Run(seconds), None, None
    try:
        with scratch_folder() as folder:
            again.trace = trace = folder / "look.trace"
            words = recording.recorder_command(trace, program.argv, seconds=span_s)
            with with_port_and_dir(replace(program, argv=tuple(words))) as here:
                again.once(here)
            told = tool.trace_info(trace) if trace.exists() else None
            if told and again.load_ns and again.load_ns > told["notes"]["start_ns"]:
                to_s = 1e-9 * (again.load_ns - told["notes"]["start_ns"])
                tool.cut_trace(trace, folder / "before", to_s=to_s)
                before = tool.trace_info(folder / "before")  # what a server called before its load
    except HztuneError as error:
        return None, str(error), again.dropped
    if told is None or not told["calls"]:
        fault = again.run.fault
        unseen = f"the recorded run failed: {fault.detail}" if fault else "it called no allocator"
        if again.dropped:
            names = ", ".join(sorted(again.dropped))
            unseen = f"{names} was started without {_PRELOAD}, by which calls are recorded"
        return None, unseen, again.dropped
    return Calls.of(told, before), "", again.dropped
