"""A run of a program behind hz-launch: how it is started, watched, timed, and told of afterwards.

hz-launch proves which library provides malloc, measures the memory of the whole process tree, and
ends what takes too long or too much. hztune itself looks at the processes while they live. Whole
runs are timed by hyperfine where that is installed, else by hz-launch. A program that rests says so
on stdout, by a line that matches an expression of the user's, and goes on when it gets a line on
stdin.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from hztune import artifacts, process
from hztune.allocator.base import tables
from hztune.arguments import option_words
from hztune.blocks import Status
from hztune.errors import HztuneError, UsageError
from hztune.files import scratch_folder
from hztune.measure.identity import Fault
from hztune.measure.program import OUTPUT_BYTES, TOO_MUCH, Program
from hztune.measure.scope import entered, is_out_of_memory
from hztune.measure.watch import Look, MemoryWatch, Watcher, watching
from hztune.process import last_words, signal_name
from hztune.rests import Rested, RestPlan

GRACE_S = 30.0  # what hz-launch has to end a program that takes too long

_LAUNCHER = "hz-launch: "  # how the reason begins for which a program could not be started

_LOST: dict[str, Any] = dict.fromkeys(
    ("signal", "pid", "wall_ns", "delay_ns", "cpu_s", "rss_tree_peak_kb", "processes", "left"), 0
) | {"status": "lost", "code": 1, "allocator": None}
"""Stands for the report of a hz-launch that ended before it could report."""

STOPPED = Fault(
    "hang", "it stopped itself (by SIGSTOP or a signal like it), and nothing lets it go on"
)
NOT_ENDED = Fault("hang", "hz-launch did not end it")
ENDED_AT_REST = Fault("failed", "it ended while it rested")
_ENDINGS = {  # what a report's status means where that is none of `Status`
    "ok": None,
    "stopped": STOPPED,
    "lost": Fault(
        "failed", "hz-launch, which measures it, was killed, perhaps by the program itself"
    ),
}

_HYPERFINE_WARNING = "Warning: Ignoring non-zero exit code.\n"
_NOT_UTF8 = re.compile("[\udc80-\udcff]")  # how Python holds bytes of a file name that are no UTF-8
_VERSION_S = 10.0


@dataclass(frozen=True, slots=True)
class Unit:
    program: Program  # what to run, in its place; its limit of memory is the unit's
    # the environment of hztune's own programs, and of what stands around the program
    base: Mapping[str, str]
    changes: Mapping[str, str]  # the variables that the program gets beyond it
    look: Look  # judges every process of it that lives long enough to be looked at
    limit_s: float  # a run is ended when its own time is longer; of a server, its load's
    seed: int = 0  # of the block

    @property
    def words(self) -> list[str]:
        program = self.program
        path = program.input.path if program.input else None
        words = option_words(rss_limit_mb=program.rss_limit_mb or None, input=path)
        for name, value in self.changes.items():
            words += ["--env", f"{name}={value}"]
        return [*words, "--", *program.command(self.seed)]

    def overtime(self, stderr: str = "") -> Fault:
        why = _with_last_line(f"it did not end within {self.limit_s:.3g} s", stderr)
        more = "; --timeout gives a run more, in a study up to --budget"
        return Fault("hang", why + (more if self.limit_s >= self.program.timeout_s else ""))


@dataclass(frozen=True, slots=True)
class Run:
    """What one run showed; memory and CPU time are those of all its processes together."""

    fault: Fault | None  # why it does not count
    pid: int = 0  # 0: it could not be started
    wall_s: float = 0.0
    cpu_ns: int = 0
    rss_peak_kb: int = 0
    library: str = ""  # the file that provided its malloc; "": that was not seen
    stdout: str = ""  # what it printed, if that matters
    stderr: str = ""
    seen: Fault | None = None  # what is wrong with one of its processes, as it was found meanwhile
    server_cpu_ns: int = 0  # of `cpu_ns`, what a server took under its load
    was_told: bool = False  # whether a server's load was told to end
    rested: Rested | None = None  # its rounds of load and rest
    left: int = 0  # processes that it had started and that outlived it; they were ended
    # by turns, where `wall_s` is the time that its own turns took
    number: int = 0  # from 0
    position: int = 0  # its place in the first of its rounds
    start_ns: int = 0  # when it began, CLOCK_MONOTONIC nanoseconds
    passed: Mapping[str, int] = field(default_factory=dict)  # on the machine meanwhile
    alive_s: float = 0.0  # from then to its end, the turns of others included, seconds
    turns: int = 0  # how many it had
    awake: int = 0  # at the end of how many of them a thread ran or wanted to
    beside: int = 0  # the same of threads that are not the first of their process
    threads: int = 0  # most that one of its processes had
    delay_s: float = 0.0  # seconds in which its first thread wanted a CPU and had none
    processes: int = 0  # most that it had at one time
    busy_threads: float = 0.0  # how many threads of its server shared the work; 0: it is no server

    @property
    def own_s(self) -> float:
        """Its time without what other programs took of it, as far as that is known, seconds."""
        if self.threads > 1 or self.processes != 1:
            return self.wall_s
        return max(1e-9, min(self.wall_s, self.cpu_ns * 1e-9), self.wall_s - self.delay_s)


@dataclass(slots=True)
class Launch:
    """A program while it runs behind hz-launch; its report is there in the end."""

    unit: Unit
    child: process.Child
    _watcher: Watcher
    report: bytes = b""
    out_of_memory: bool = False

    def run(self, done: process.Finished) -> tuple[Run, str]:
        program = self.unit.program
        told = report_of(program, self.report, done.stderr, done.code)
        run = run_of(told, self._watcher, done.stdout, done.stderr)
        if self.out_of_memory and program.quota is not None:
            why = f"the kernel ended it for want of memory, in {program.quota.text}"
            return replace(run, fault=Fault("oom", why)), "oom"
        if told["status"] == "hang":
            run = replace(run, fault=self.unit.overtime(done.stderr))
        return run, told["status"]


@contextmanager
def launched(
    unit: Unit,
    *,
    more_s: float = 0.0,
    timer: list[str] | None = None,
    keep_stdout: bool = False,
    takes_lines: bool = False,
) -> Iterator[Launch]:
    """Runs a program, `more_s` beyond its limit at most; `timer` takes the command as one word."""
    unit = replace(unit, limit_s=unit.limit_s + more_s)
    own = [Path(timer[0]).resolve()] if timer else []
    report = os.memfd_create("hz-launch")
    try:
        with entered(unit.program.quota) as groups:
            words = [str(artifacts.launch()), "--json-fd", str(report)]
            words += [word for each in groups for word in ("--join", str(each / "cgroup.procs"))]
            words += ["--timeout-ms", str(round(1e3 * unit.limit_s)), *unit.words]
            if timer:
                words = [*timer, shlex.join(words)]
            with (
                process.Child(
                    words,
                    env=unit.base,
                    stdin=None if takes_lines else b"",
                    output_limit=OUTPUT_BYTES,
                    keep_stdout=keep_stdout,
                    pass_fds=(report,),
                ) as child,
                watching(child.pid, unit.look, own) as watcher,
            ):
                launch = Launch(unit, child, watcher)
                yield launch
                launch.report = os.pread(report, os.fstat(report).st_size, 0)
                launch.out_of_memory = is_out_of_memory(unit.program.quota, groups)
    finally:
        os.close(report)


def run_of(told: Mapping[str, Any], watcher: Watcher, stdout: str, stderr: str) -> Run:
    """A run; where it ended before it was looked at, its library is hz-launch's guess."""
    if (word := told["status"]) in _ENDINGS:
        fault = _ENDINGS[word]
    else:
        status: Status = "failed" if word == "interrupted" else word
        fault = ending_fault(status, told["signal"], told["code"], stderr)
    return Run(
        fault=fault,
        pid=told["pid"],
        wall_s=told["wall_ns"] * 1e-9,
        cpu_ns=round(told["cpu_s"] * 1e9),
        rss_peak_kb=told["rss_tree_peak_kb"],
        library=watcher.library or str((told["allocator"] or {"path": ""})["path"]),
        stdout=stdout,
        stderr=stderr,
        seen=watcher.fault,
        left=told["left"],
    )


def report_of(program: Program, told: bytes, stderr: str, code: int = 0) -> dict[str, Any]:
    """What hz-launch reports; _LOST: it was killed; UsageError: the program did not start."""
    if code < 0:  # hz-launch was killed, or what was put before it
        return _LOST
    if not told:
        said = [line for line in stderr.splitlines() if line.startswith(_LAUNCHER)]
        if not said and code == 0:
            return _LOST
        reason = said[-1].removeprefix(_LAUNCHER) if said else last_words(stderr)
        raise UsageError(f"cannot run {program.argv[0]}: {reason or 'it gave no reason'}")
    report: dict[str, Any] = json.loads(told)
    return report


def ending_fault(status: Status, signal: int, code: int, stderr: str) -> Fault:
    """Why a process that ended badly does not count; one whose allocator refused did not crash."""
    stderr = _without_chatter(stderr)
    for name, table in tables().items() if status == "crash" else ():
        if table.refusal and (said := re.search(table.refusal, stderr, re.M)):
            return Fault("rejected", f"{name} refuses it: {said['why']}")
    end = f"ended by {signal_name(signal)}" if signal else f"exit status {code}"
    return Fault(status, _with_last_line(end, stderr))


def _with_last_line(told: str, stderr: str) -> str:
    said = last_words(_without_chatter(stderr))
    return f"{told}: {said}" if said else told


def _without_chatter(stderr: str) -> str:
    for table in tables().values():
        if table.chatter:
            stderr = re.sub(table.chatter, "", stderr, flags=re.M)
    return stderr


# ---- one run, timed ------------------------------------------------------------------------------


@cache
def hyperfine() -> Path | None:
    """The hyperfine 1.x that times programs here; None: there is none, hz-launch does it."""
    path = shutil.which("hyperfine")
    if path is None:
        return None
    done = process.run([path, "--version"], deadline_s=_VERSION_S)
    return Path(path) if done.ok and re.match(r"hyperfine 1\.", done.stdout) else None


def time_once(unit: Unit) -> Run:
    # Words for hyperfine itself must be UTF-8, those of a program need not.
    told = [*unit.program.command(unit.seed), *unit.changes.values()]
    tool = None if any(map(_NOT_UTF8.search, told)) else hyperfine()
    with scratch_folder() as folder:
        export = folder / "times.json"
        options = ["-N", "--runs", "1", "--ignore-failure", "--style", "none"]
        options += ["--output", "inherit", "--export-json", str(export), "--"]
        timer = [str(tool), *options] if tool else None  # for every version from 1.13 on
        with launched(unit, timer=timer, keep_stdout=unit.program.reads_output) as launch:
            done = launch.child.finish(unit.limit_s + GRACE_S)
        if done.timed_out:
            return Run(NOT_ENDED, stderr=done.stderr)
        run, _ = launch.run(replace(done, stderr=done.stderr.replace(_HYPERFINE_WARNING, "")))
        if run.fault is not None:
            return run
        if done.truncated:
            run = replace(run, fault=TOO_MUCH)
        return replace(run, wall_s=_hyperfine_s(export)) if export.exists() else run


def _hyperfine_s(export: Path) -> float:
    try:
        return float(json.loads(export.read_text(encoding="utf-8"))["results"][0]["times"][0])
    except ValueError:
        raise HztuneError(
            f"hyperfine could not write its times to {export.parent}; make room there, or name "
            "another directory for temporary files with TMPDIR"
        ) from None


def rest_once(unit: Unit) -> Run:
    """Runs a program that says when it rests; its time is that of its loads."""
    plan = unit.program.rest
    assert plan is not None, "not a program with rests"
    more_s = plan.rounds * plan.idle_s
    with launched(unit, more_s=more_s, keep_stdout=True, takes_lines=True) as launch:
        watch = MemoryWatch(launch.child.pid, plan)
        with watch.watching():
            printed, fault = _follow(launch.child, plan, watch, unit.limit_s + more_s + GRACE_S)
        done = launch.child.finish(0.0 if fault else GRACE_S)
    if done.timed_out:
        return Run(fault or NOT_ENDED, stderr=done.stderr)
    run, _ = launch.run(done)
    run = replace(run, stdout=printed + done.stdout, fault=run.fault or fault)
    if run.fault is not None:
        return run
    if len(watch.rounds) < plan.rounds:
        times = {0: "never", 1: "once"}.get(len(watch.rounds), f"{len(watch.rounds)} times")
        said = f"it said {times} that it rests (a line on stdout that matches --rests"
        why = f"{said} {plan.says!r}), and --rounds is {plan.rounds}"
        return replace(run, fault=Fault("bad_output", why))
    return replace(run, wall_s=watch.load_s, rested=watch.rested())


def _follow(
    child: process.Child, plan: RestPlan, watch: MemoryWatch, stall_s: float
) -> tuple[str, Fault | None]:
    """Lets a program rest whenever it says so; returns what else it printed, and what is wrong."""
    says, printed, size = re.compile(plan.says), list[str](), 0
    try:
        for line in child.lines(stall_s):
            if says.search(line):
                if len(watch.rounds) < plan.rounds and not watch.rest(child.wait):
                    return "\n".join(printed), ENDED_AT_REST
                child.send("")
                continue
            size += len(line) + 1
            if size > OUTPUT_BYTES:
                return "", TOO_MUCH
            printed.append(line)
    except process.Stalled as error:
        return "\n".join(printed), Fault("hang", str(error))
    return "\n".join([*printed, ""]), None
