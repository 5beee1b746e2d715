"""Whole programs by turns: all arms alive at once, each going on while the others stand still.

They share the CPU, so that whatever slows it slows all of them alike: a second by turns is worth
dozens of seconds by runs. Only a program that is busy with itself can be measured so; see
`measure.examine`. hz-alternate conducts; the protocol stands in core/bench/alternate.h.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hztune import artifacts
from hztune.allocator import live
from hztune.arguments import option_words
from hztune.blocks import Arm, Status
from hztune.errors import HztuneError
from hztune.files import scratch_folder
from hztune.measure.identity import Fault
from hztune.measure.launch import STOPPED, Run, Unit, report_of, run_of
from hztune.measure.program import OUTPUT_BYTES, TOO_MUCH, hook
from hztune.measure.scope import freezer
from hztune.measure.server import (
    LAST_WORDS_S,
    OF_SERVER,
    answers,
    ended_by_itself,
    ended_when_told,
    with_port_and_dir,
)
from hztune.measure.watch import Holdings, Watcher, watching
from hztune.measure.whole import MEMORY_SHARE, SEEDS, Part, RunExecutor
from hztune.process import Child
from hztune.store import Evidence

BY_TURNS = "by_turns"  # the fact of an outcome that its runs were measured by turns

_STALL_S = 120.0
_STOP_S = 5.0
_PAUSE_S = 0.02

_BUSY = 0.1  # share of a server's CPU time above which a process does a part of its work

_MOST = 0.5  # share of a server's CPU time that the processes must have used that are looked at

_FAULTS = {
    "stopped": STOPPED,
    "interrupted": Fault("failed", "it was interrupted"),
    "failed": Fault("failed", "its server ended under load"),
}


@dataclass(frozen=True, slots=True)
class Pace:
    """How units alternate: the length of a turn, and the CPU of all of them; None: any."""

    turn_ms: float
    cpu: int | None


@dataclass(frozen=True, slots=True)
class NumberReading:
    # whether the program's own number counts the time that it stood still as if it had worked; it
    # is then corrected
    counts_standing: bool = False
    # whether a second is one of the server's own CPU time, not one of the unit's
    per_server_cpu: bool = False

    def rate(self, told: float, run: Run) -> float:
        counted_s = run.alive_s if self.counts_standing else run.wall_s
        return told * counted_s / (run.server_cpu_ns * 1e-9 if self.per_server_cpu else run.wall_s)


class AlternateExecutor(RunExecutor):
    pace = Pace(turn_ms=10.0, cpu=None)  # how they alternate
    reading = NumberReading()  # how a run's speed is read

    def fits(self, arms: int) -> bool:
        most_kb = MEMORY_SHARE * self.memory_mb * 1024
        return not self.memory_mb or arms * self.control_kb <= most_kb

    def try_out(
        self,
        control: Arm,
        copies: int,
        *,
        runs: int = 1,
        limit_s: float | None = None,
        holdings: Holdings | None = None,
    ) -> tuple[list[Run], Fault | None]:
        """Runs copies of the control, uncounted, at today's pace; what they showed, first fault."""
        parts, rng = self._parts_of([control] * copies), random.Random(self._seed)
        found = self._runs(parts, runs, rng, limit_s, holdings)
        rates = (self._rate(parts[index], run) for index, run in found)
        faults = [part.fault for part in parts if part.fault]
        faults = faults or [rate for rate in rates if isinstance(rate, Fault)]
        return [run for _, run in found], faults[0] if faults else None

    def _play(self, parts: list[Part], rounds: int, number: int, rng: random.Random) -> float:
        program = self.program
        runs = 1 if program.prepare or program.cleanup or program.service else rounds
        for first in range(0, rounds, runs):
            for index, run in without_strangers(self._runs(parts, runs, rng)):
                self._count(index, parts[index], first + run.number, run)
        return 0.0

    def _runs(
        self,
        parts: Sequence[Part],
        runs: int,
        rng: random.Random,
        limit_s: float | None = None,
        holdings: Holdings | None = None,
    ) -> list[tuple[int, Run]]:
        seed, units, found = rng.randrange(SEEDS), dict[int, Unit](), list[tuple[int, Run]]()
        limit_s = limit_s or self.limit_s()
        with ExitStack() as stack:
            for index, part in enumerate(parts):
                if part.fault is None:
                    own = self._own(part, beside=len(parts))
                    program = stack.enter_context(with_port_and_dir(own))
                    hook("--prepare", program.prepare, self.identity.base)
                    stack.callback(hook, "--cleanup", program.cleanup, self.identity.base)
                    units[index] = self._unit(part, program, seed, rng, limit_s)
            if units:
                numbers = [*units]
                played = take_turns([*units.values()], self.pace, runs=runs, holdings=holdings)
                found += [(numbers[number], run) for number, run in played]
        return found

    def _count(self, index: int, part: Part, number: int, run: Run) -> None:
        run = self._noted(part, run)
        rate = part.fault or self._rate(part, run)
        if isinstance(rate, Fault):
            part.fault = rate
            return
        place, rate = (number, run.position, run.start_ns), self.reading.rate(rate, run)
        evidence = Evidence(cpu_ns=run.cpu_ns, rss_kb=run.rss_peak_kb)
        self._enter(index, part, run, place, rate, evidence)
        part.facts = {**part.facts, BY_TURNS: 1}


def without_strangers(runs: Sequence[tuple[int, Run]]) -> list[tuple[int, Run]]:
    """Runs without the time that other programs of the machine took from their turns.

    That is known of the first thread of a process alone, so it is done only where no run of the
    block had more: runs that are compared are treated alike.
    """
    if any(run.threads > 1 or run.processes > 1 for _, run in runs):
        return [*runs]
    return [(index, replace(run, wall_s=run.own_s)) for index, run in runs]


# ---- hz-alternate --------------------------------------------------------------------------------


def take_turns(
    units: Sequence[Unit], pace: Pace, *, runs: int = 1, holdings: Holdings | None = None
) -> Iterator[tuple[int, Run]]:
    """Runs units of a block by turns; yields each run with its unit's number, as it ends."""
    with scratch_folder() as made, ExitStack() as stack:
        folder = made if any(unit.program.reads_output for unit in units) else None
        freezers = [stack.enter_context(freezer()) for _ in units]
        words = _command(units, freezers, pace, runs, folder)
        with Child(words, env=units[0].base, stdin=None) as child:
            playing = [_Playing(number, unit, holdings) for number, unit in enumerate(units)]
            try:
                for line in child.lines(_STALL_S + len(units) * units[0].limit_s):
                    event = json.loads(line)
                    one, what = playing[int(event.get("unit", 0))], event["event"]
                    is_load = one.unit.program.service is not None and not event.get("service")
                    if what == "start" and not is_load:
                        one.began(event)
                    elif what in ("serve", "rest"):
                        child.send(one.serve() if what == "serve" else one.rest())
                    elif what == "run" and is_load:  # it is not looked at
                        unseen = Watcher(lambda running: None)
                        one.loads.append(_run(one.unit, event, unseen, folder))
                    elif what == "run":
                        yield one.number, _run(one.unit, event, one.seen(), folder)
                    elif what == "service":
                        yield from ((one.number, run) for run in one.runs(event))
            finally:
                for one in playing:
                    one.seen()
            ended = child.finish(_STOP_S)
        if not ended.ok:
            raise HztuneError(f"hz-alternate {ended.describe()}")


def _command(
    units: Sequence[Unit],
    freezers: Sequence[Path | None],
    pace: Pace,
    runs: int,
    folder: Path | None,
) -> list[str]:
    words = option_words(
        seed=units[0].seed,
        runs=runs,
        turn_ms=pace.turn_ms,
        timeout_ms=round(1e3 * units[0].limit_s),
        cpu=pace.cpu,
        span_ms=round(1e3 * max(unit.program.span_s for unit in units)) or None,
        keep_stdout=folder,
        keep_bytes=OUTPUT_BYTES if folder else None,
    )
    for number, (unit, group) in enumerate(zip(units, freezers, strict=True)):
        words += option_words(unit=number, freezer=group)
        own, service = unit.words, unit.program.service
        if service is not None:
            words += option_words(own_network=unit.program.has_network, service=len(own)) + own
            own = ["--", "/bin/sh", "-c", service.load]
        words += ["--main", str(len(own)), *own]
    return [str(artifacts.alternate()), *words]


def _run(unit: Unit, event: Mapping[str, Any], watcher: Watcher, folder: Path | None) -> Run:
    """A run as hz-alternate tells of it; what it printed is forgotten then."""
    stdout, program, stderr = "", unit.program, event["stderr"]
    if program.reads_output and folder is not None:
        path = folder / f"{event['unit']}.{event['run']}"
        stdout = path.read_text(encoding="utf-8", errors="replace")
        path.unlink()
    result = report_of(program, (event["result"] or "").encode(), stderr)
    run, how = run_of(result, watcher, stdout, stderr), event["ended_as"]
    fault, was_told = run.fault, False
    if event["asked"] and ended_when_told(result["code"] or -result["signal"]):
        fault, was_told = None, True
    if how is not None:
        fault = unit.overtime(stderr) if how == "hang" else _FAULTS[how]
    elif fault is None and program.reads_output and event["stdout_bytes"] > OUTPUT_BYTES:
        fault = TOO_MUCH
    return replace(
        run,
        fault=fault,
        was_told=was_told,
        wall_s=max(1, event["active_ns"]) * 1e-9,
        server_cpu_ns=event.get("service_cpu_ns", 0),
        number=event["run"],
        alive_s=event["alive_ns"] * 1e-9,
        delay_s=max(0, result["delay_ns"] - event["delay_before_ns"]) * 1e-9,
        processes=result["processes"],
        **{name: event[name] for name in _AS_TOLD},
    )


_AS_TOLD = ("position", "start_ns", "turns", "awake", "beside", "threads")


class _Playing:
    """One unit, as far as it has come: what is seen of its run, and its server, if it has one."""

    def __init__(self, number: int, unit: Unit, holdings: Holdings | None) -> None:
        self.number, self.unit, self.loads = number, unit, list[Run]()
        self._holdings = holdings
        self._watcher, self._watched = Watcher(unit.look), ExitStack()
        self._fault: Fault | None = None
        self._pid = self._program_pid = 0
        self._before: Mapping[tuple[int, int], int] = {}
        self._after: Mapping[tuple[int, int], int] = {}

    def began(self, event: Mapping[str, Any]) -> None:
        self._pid, self._program_pid = event["pid"], event["program_pid"]
        self._watcher = self._watched.enter_context(watching(self._pid, self.unit.look, ()))
        if self._holdings is not None:
            self._watched.enter_context(self._holdings.watching(self.number, self._pid))

    def seen(self) -> Watcher:
        self._watched.close()
        return self._watcher

    def serve(self) -> str:
        self._fault = answers(self.unit.program, self.unit.base, self._has_ended, self._pid)
        self._before = _thread_cpu_ns(self._pid)
        return "drop" if self._fault else "ready"

    def rest(self) -> str:
        """Notes what its threads worked, once a server whose load failed has had time to end."""
        if any(one.fault is not None and one.fault.status != "hang" for one in self.loads):
            deadline = time.monotonic() + LAST_WORDS_S
            while not self._has_ended(_PAUSE_S) and time.monotonic() < deadline:
                continue
        self._after = _thread_cpu_ns(self._pid)
        return "on"

    def runs(self, event: Mapping[str, Any]) -> Iterator[Run]:
        """Yields its runs; a load's wait for a CPU says nothing, as the server had it meanwhile."""
        stderr, program = event["stderr"], self.unit.program
        told = report_of(program, (event["result"] or "").encode(), stderr)
        run = run_of(told, self.seen(), "", stderr)
        fault = ended_by_itself(run) if event["ended_as"] is None else self._fault
        run = replace(run, fault=fault, cpu_ns=0)
        for load in self.loads:
            yield together(run, load, self._busy_threads(load.server_cpu_ns, load.threads))
        if not self.loads:
            yield run

    def _busy_threads(self, all_ns: int, most: int) -> float:
        """How many threads of one process shared its work: 2 where two did half each."""
        used: dict[int, list[int]] = defaultdict(list)
        for (pid, thread), ns in self._after.items():
            used[pid].append(ns - self._before.get((pid, thread), 0))
        busy = [each for each in used.values() if sum(each) > _BUSY * max(0, all_ns)]
        if not busy or sum(map(sum, busy)) < _MOST * all_ns:
            return float(most)
        return max(sum(each) ** 2 / sum(ns**2 for ns in each) for each in busy)

    def _has_ended(self, seconds: float) -> bool:
        time.sleep(seconds)
        return not Path("/proc", str(self._program_pid)).exists()


def together(server: Run, load: Run, busy_threads: float) -> Run:
    """The run of a unit: the server's memory and allocator, the load's time and output."""
    fault = None
    if load.fault is not None:
        status: Status = "hang" if load.fault.status == "hang" else "failed"
        fault = Fault(status, f"--load: {load.fault.detail}")
    server_ns = max(0, load.server_cpu_ns)
    return replace(
        load,
        fault=server.fault or fault,
        cpu_ns=server_ns + load.cpu_ns,
        server_cpu_ns=server_ns,
        delay_s=0.0,
        busy_threads=busy_threads,
        **{name: getattr(server, name) for name in OF_SERVER},
    )


def _thread_cpu_ns(launcher: int) -> dict[tuple[int, int], int]:
    used = {}
    for pid in live.descendants(launcher):
        with contextlib.suppress(OSError):
            for task in Path("/proc", str(pid), "task").iterdir():
                with contextlib.suppress(OSError):
                    used[pid, int(task.name)] = int((task / "schedstat").read_text().split()[0])
    return used
