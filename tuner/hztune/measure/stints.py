"""Several programs alive at once, which hz-alternate lets go on by turns: units, and their stints.

A stint is one run of one unit, with the time that its turns took. The protocol stands in
core/bench/alternate.h.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hztune import artifacts
from hztune.errors import HztuneError
from hztune.measure.identity import Fault
from hztune.measure.launch import (
    STOPPED,
    Run,
    launch_words,
    overtime,
    own_programs,
    report_of,
    run_of,
)
from hztune.measure.program import OUTPUT_BYTES, Program
from hztune.measure.scope import freezer
from hztune.measure.segments import swept
from hztune.measure.served import Server, load_words, together
from hztune.measure.server import ended_when_told
from hztune.measure.watch import Look, Watcher, watching
from hztune.process import Child
from hztune.scratch import scratch_folder

_STALL_S = 120.0
_STOP_S = 5.0
_FAULTS = {
    "stopped": STOPPED,
    "interrupted": Fault("failed", "it was interrupted"),
    "failed": Fault("failed", "its server ended under load"),
}
_NO_WATCHER = Watcher(lambda running: None, ())
"""What was seen of a load: it is not looked at."""

_TOO_MUCH = Fault("bad_output", f"it printed more than {OUTPUT_BYTES >> 20} MiB")


@dataclass(frozen=True, slots=True)
class Pace:
    """How units alternate.

    Attributes:
        turn_ms: Length of a turn.
        cpu: The CPU on which all of them stay; None: any.
    """

    turn_ms: float
    cpu: int | None


@dataclass(frozen=True, slots=True)
class Unit:
    """What is run beside others.

    Attributes:
        program: What to run; its limit of memory is the unit's.
        changes: The variables that it gets.
        look: Judges every process of it that lives long enough to be looked at.
    """

    program: Program
    changes: Mapping[str, str]
    look: Look


@dataclass(frozen=True, slots=True)
class Stint:
    """One run of a unit by turns.

    Attributes:
        unit: Its number.
        number: Of the run, from 0.
        position: Its place in the first of its rounds.
        start_ns: When it began, CLOCK_MONOTONIC nanoseconds.
        alive_s: From then to its end, the turns of others included, seconds.
        run: What it showed; `run.wall_s` is the time that its own turns took.
        turns: How many it had.
        awake: At the end of how many of them a thread ran or wanted to.
        beside: The same of threads that are not the first of their process.
        threads: Most that one of its processes had.
        delay_s: Seconds in which its first thread wanted a CPU and had none.
        processes: Most that it had at one time.
        busy_threads: How many threads of its server shared the work; 0: it is no server.
    """

    unit: int
    number: int
    position: int
    start_ns: int
    alive_s: float
    run: Run
    turns: int
    awake: int
    beside: int
    threads: int
    delay_s: float
    processes: int
    busy_threads: float = 0.0

    @property
    def own_s(self) -> float:
        """Its time without what other programs took of it, as far as that is known, seconds."""
        if self.threads > 1 or self.processes != 1:
            return self.run.wall_s
        worked_s = min(self.run.wall_s, self.run.cpu_ns * 1e-9)
        return max(1e-9, worked_s, self.run.wall_s - self.delay_s)


Met = Callable[[int, int], "AbstractContextManager[object] | None"]
"""Told of each unit that has begun a run, and of its hz-launch; what it gives lasts for the run."""


def nothing_met(unit: int, pid: int) -> None:
    """Lets units begin without looking at them."""


def take_turns(
    units: Sequence[Unit],
    base: Mapping[str, str],
    pace: Pace,
    *,
    runs: int = 1,
    seed: int,
    limit_s: float,
    met: Met = nothing_met,
) -> Iterator[Stint]:
    """Runs units by turns and yields each of their runs as soon as it has ended.

    A unit that fails has no further runs.

    Args:
        units: What to run.
        base: The environment of hztune's own programs.
        pace: How they alternate.
        runs: Of each unit, one after the other.
        seed: Of the order, and of the block.
        limit_s: A run is ended when its own time is longer.
        met: Told of each run that begins.

    Raises:
        UsageError: A program cannot be started at all.
        HztuneError: hz-alternate failed.
    """
    with scratch_folder() as made, ExitStack() as stack:
        folder = made if any(unit.program.reads_output for unit in units) else None
        freezers = [stack.enter_context(freezer()) for _ in units]
        words = _command(units, freezers, pace, runs, seed, limit_s, folder)
        watched = _Watched(units, met)
        loads: dict[int, list[Stint]] = defaultdict(list)
        with swept() as pids, Child(words, env=base, stdin=None) as child:
            servers = [Server(unit.program, base, pids) for unit in units]
            try:
                for line in child.lines(_STALL_S + len(units) * limit_s):
                    event = json.loads(line)
                    number, what = int(event.get("unit", 0)), event["event"]
                    program, server = units[number].program, servers[number]
                    if what == "start" and (event["service"] or program.service is None):
                        server.began(event)
                        watched.begin(number, event["pid"])
                    elif what in ("serve", "rest"):
                        told = [load.run for load in loads[number]]
                        child.send(server.serve() if what == "serve" else server.rest(told))
                    elif what == "run" and program.service is not None:
                        loads[number].append(_stint(program, event, _NO_WATCHER, folder, limit_s))
                    elif what == "run":
                        watcher = watched.end(number)
                        yield _stint(program, event, watcher, folder, limit_s)
                    elif what == "service":
                        run = server.run(event, watched.end(number))
                        yield from _served(number, server, run, loads[number])
            finally:
                watched.end_all()
            ended = child.finish(_STOP_S)
        if not ended.ok:
            raise HztuneError(f"hz-alternate {ended.describe()}")


def _served(number: int, server: Server, run: Run, loads: Sequence[Stint]) -> Iterator[Stint]:
    """Yields the runs of a unit with a server, once that has ended; one, where it never served.

    How long the load's first thread wanted a CPU says nothing: the server had it meanwhile.
    """
    for load in loads:
        threads = server.busy_threads(load.run.server_cpu_ns, load.threads)
        whole = together(run, load.run)
        yield replace(load, run=whole, delay_s=0.0, busy_threads=threads)
    if not loads:
        yield Stint(number, 0, 0, 0, 0.0, run, 0, 0, 0, 0, 0.0, 0)


def _command(
    units: Sequence[Unit],
    freezers: Sequence[Path | None],
    pace: Pace,
    runs: int,
    seed: int,
    limit_s: float,
    folder: Path | None,
) -> list[str]:
    """Returns the command; a unit is named by its index."""
    words = [str(artifacts.alternate()), "--seed", str(seed), "--runs", str(runs)]
    words += ["--turn-ms", f"{pace.turn_ms:g}", "--timeout-ms", str(round(1e3 * limit_s))]
    if any(unit.program.service for unit in units):
        words += ["--rest"]
    if pace.cpu is not None:
        words += ["--cpu", str(pace.cpu)]
    if span_s := max(unit.program.span_s for unit in units):
        words += ["--span-ms", str(round(1e3 * span_s))]
    if folder is not None:
        words += ["--keep-stdout", str(folder), "--keep-bytes", str(OUTPUT_BYTES)]
    for number, (unit, group) in enumerate(zip(units, freezers, strict=True)):
        own = launch_words(unit.program, seed, unit.changes)
        words += ["--unit", str(number)]
        words += ["--freezer", str(group)] if group else []
        if unit.program.service is not None:
            words += ["--own-network"] if unit.program.has_network else []
            words += ["--service", str(len(own)), *own]
            own = load_words(unit.program)
        words += ["--main", str(len(own)), *own]
    return words


class _Watched:
    """Looks at the processes of each unit while they live."""

    def __init__(self, units: Sequence[Unit], met: Met) -> None:
        self._units = units
        self._met = met
        self._open: dict[int, list[AbstractContextManager[Any]]] = {}
        self._watchers: dict[int, Watcher] = {}

    def begin(self, number: int, pid: int) -> None:
        """A run of a unit has begun; `pid` is its hz-launch."""
        watcher = watching(pid, self._units[number].look, own_programs())
        self._open[number] = [watcher]
        self._watchers[number] = watcher.__enter__()
        if (other := self._met(number, pid)) is not None:
            self._open[number].append(other)
            other.__enter__()

    def end(self, number: int) -> Watcher:
        """The run has ended; returns what was seen of it."""
        for each in self._open.pop(number, []):
            each.__exit__(None, None, None)
        return self._watchers.pop(number)

    def end_all(self) -> None:
        """Looks at nothing any more."""
        for number in [*self._open]:
            self.end(number)


def _stint(
    program: Program,
    event: Mapping[str, Any],
    watcher: Watcher,
    folder: Path | None,
    limit_s: float,
) -> Stint:
    """Returns a run as hz-alternate tells of it."""
    stdout = _printed(folder, event) if program.reads_output else ""
    told = json.dumps(event["result"]).encode() if event["result"] else b""
    result = report_of(program, told, event["stderr"])
    run = replace(
        run_of(result, watcher, stdout, event["stderr"]),
        wall_s=max(1, event["active_ns"]) * 1e-9,
        server_cpu_ns=event.get("service_cpu_ns", 0),
    )
    if event["asked"] and ended_when_told(result["code"] or -result["signal"]):
        run = replace(run, fault=None, was_told=True)
    if event["ended_as"] == "hang":
        run = replace(run, fault=overtime(program, limit_s, event["stderr"]))
    elif event["ended_as"] is not None:
        run = replace(run, fault=_FAULTS[event["ended_as"]])
    elif run.fault is None and program.reads_output and event["stdout_bytes"] > OUTPUT_BYTES:
        run = replace(run, fault=_TOO_MUCH)
    return Stint(
        unit=int(event["unit"]),
        number=event["run"],
        position=event["position"],
        start_ns=event["start_ns"],
        alive_s=event["alive_ns"] * 1e-9,
        run=run,
        turns=event["turns"],
        awake=event["awake"],
        beside=event["beside"],
        threads=event["threads"],
        delay_s=max(0, result["delay_ns"] - event["delay_before_ns"]) * 1e-9,
        processes=result["processes"],
    )


def _printed(folder: Path | None, event: Mapping[str, Any]) -> str:
    """Returns what a run printed, and forgets it."""
    if folder is None:
        return ""
    path = folder / f"{event['unit']}.{event['run']}"
    text = path.read_text(encoding="utf-8", errors="replace")
    path.unlink()
    return text
