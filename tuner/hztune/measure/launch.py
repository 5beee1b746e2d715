"""A run of a program behind hz-launch: how it is started, watched, and told of afterwards.

hz-launch proves which library provides malloc, measures the memory of the whole process tree, and
ends what takes too long or too much. hztune itself looks at the processes while they live.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hztune import artifacts, process
from hztune.blocks import Status
from hztune.errors import HztuneError, UsageError
from hztune.measure.ending import ending_fault, with_last_line
from hztune.measure.identity import Fault
from hztune.measure.program import OUTPUT_BYTES, Program
from hztune.measure.scope import Scope, entered
from hztune.measure.watch import Look, Watcher, watching
from hztune.rests import Rested

Wrap = Callable[[list[str]], list[str]]
"""Puts another program before a command, such as one that times it."""

_SCHEMA = 1
_STATUSES: dict[str, Status] = {
    "crash": "crash",
    "hang": "hang",
    "stopped": "hang",
    "oom": "oom",
    "rejected": "rejected",
    "wrong_allocator": "wrong_allocator",
    "failed": "failed",
    "interrupted": "failed",
}
_LAUNCHER = "hz-launch: "
"""How the reason begins for which a program could not be started."""

_LOST: dict[str, Any] = {
    "schema": _SCHEMA,
    "status": "lost",
    "signal": 0,
    "code": 1,
    "pid": 0,
    "wall_ns": 0,
    "delay_ns": 0,
    "cpu_s": 0.0,
    "rss_tree_peak_kb": 0,
    "processes": 0,
    "left": 0,
    "allocator": None,
}
"""What stands for the report of a hz-launch that ended before it could report."""


STOPPED = Fault(
    "hang", "it stopped itself (by SIGSTOP or a signal like it), and nothing lets it go on"
)
_LOST_MEASURER = Fault(
    "failed", "hz-launch, which measures it, was killed, perhaps by the program itself"
)


def overtime(program: Program, limit_s: float, stderr: str = "") -> Fault:
    """Returns why a run does not count that was ended for its length.

    Args:
        program: What ran.
        limit_s: What it was given; a larger --timeout gives it more only where that is the limit.
        stderr: What it printed; the last line may tell what it waits for.
    """
    why = with_last_line(f"it did not end within {limit_s:.3g} s", stderr)
    more = "; --timeout gives a run more, in a study up to --budget"
    return Fault("hang", why + (more if limit_s >= program.timeout_s else ""))


@dataclass(frozen=True, slots=True)
class Run:
    """What one run showed.

    Attributes:
        fault: Why it does not count; None: it ended well.
        pid: Its process; 0 when it could not be started.
        wall_s: Its time, seconds.
        cpu_ns: CPU time of all its processes, nanoseconds.
        rss_peak_kb: Peak memory of all its processes together, KiB.
        library: The file that provided its malloc; "" when that was not seen.
        stdout: What it printed, if that matters.
        stderr: What it printed there.
        seen: What is wrong with one of its processes, as it was found while it ran.
        server_cpu_ns: Of `cpu_ns`, what a server took under its load, nanoseconds; 0: it is none.
        was_told: Whether a server's load was told to end.
        rested: Its rounds of load and rest; None: it was not looked at.
        left: Processes that it had started and that outlived it; they were ended.
    """

    fault: Fault | None
    pid: int = 0
    wall_s: float = 0.0
    cpu_ns: int = 0
    rss_peak_kb: int = 0
    library: str = ""
    stdout: str = ""
    stderr: str = ""
    seen: Fault | None = None
    server_cpu_ns: int = 0
    was_told: bool = False
    rested: Rested | None = None
    left: int = 0


@dataclass(slots=True)
class Launch:
    """A program while it runs behind hz-launch.

    Attributes:
        program: What runs.
        child: The process of hz-launch, or of what was put before it.
        report: What hz-launch said in the end, as JSON.
        limit_s: hz-launch ends the program after that time.
        scope: Where the program lives.
        out_of_memory: Whether the kernel ended one of its processes for want of memory.
    """

    program: Program
    child: process.Child
    _watcher: Watcher
    limit_s: float
    report: bytes = b""
    scope: Scope = field(default_factory=Scope)
    out_of_memory: bool = False

    def run(self, done: process.Finished) -> tuple[Run, str]:
        """Returns the run once it is over, and hz-launch's word for how it ended.

        Args:
            done: How the child ended.

        Raises:
            UsageError: The program could not be started at all.
        """
        told = report_of(self.program, self.report, done.stderr, done.code)
        run = run_of(told, self._watcher, done.stdout, done.stderr)
        if self.out_of_memory and self.program.quota is not None:
            why = f"the kernel ended it for want of memory, in {self.program.quota.text}"
            return replace(run, fault=Fault("oom", why)), "oom"
        if told["status"] == "hang":
            run = replace(run, fault=overtime(self.program, self.limit_s, done.stderr))
        return run, told["status"]


@contextmanager
def launched(
    program: Program,
    seed: int,
    base: Mapping[str, str],
    changes: Mapping[str, str],
    limit_s: float,
    look: Look,
    *,
    wrap: Wrap = list,
    helpers: Collection[Path] = (),
    keep_stdout: bool = False,
    takes_lines: bool = False,
) -> Iterator[Launch]:
    """Runs a program for as long as the context lasts.

    Args:
        program: What to run.
        seed: Of the block.
        base: The environment of hztune's own programs.
        changes: What the program gets beyond it.
        limit_s: hz-launch ends the program after that time.
        look: Judges every process of the program that lives long enough to be looked at.
        wrap: Puts something before hz-launch.
        helpers: What `wrap` puts there; it is not looked at.
        keep_stdout: Whether what the program prints is kept.
        takes_lines: Whether lines can be sent to it; else its stdin is empty.
    """
    own = own_programs(*helpers)
    report = os.memfd_create("hz-launch")
    try:
        with (
            entered(program.quota) as scope,
            process.Child(
                [*scope.wrap, *wrap(_command(program, seed, changes, limit_s, report, scope))],
                env=base,
                stdin=None if takes_lines else b"",
                output_limit=OUTPUT_BYTES,
                keep_stdout=keep_stdout,
                pass_fds=(report,),
            ) as child,
            watching(child.pid, look, own) as watcher,
        ):
            launch = Launch(program, child, watcher, limit_s, scope=scope)
            yield launch
            launch.report = os.pread(report, os.fstat(report).st_size, 0)
            launch.out_of_memory = scope.is_out_of_memory(_signal_of(launch.report))
    finally:
        os.close(report)


def _command(
    program: Program,
    seed: int,
    changes: Mapping[str, str],
    timeout_s: float,
    report: int,
    scope: Scope,
) -> list[str]:
    """Returns the command that starts the program."""
    words = [str(artifacts.launch()), "--json-fd", str(report)]
    words += [word for door in scope.doors for word in ("--join", str(door))]
    words += ["--timeout-ms", str(round(1e3 * timeout_s))]
    return [*words, *launch_words(program, seed, changes)]


def _signal_of(report: bytes) -> int:
    """The signal that ended a program, as hz-launch reports it; 0: none did.

    Where there is no report hz-launch was killed, and the program with it.
    """
    return int(json.loads(report)["signal"]) if report else signal.SIGKILL


def own_programs(*others: Path) -> tuple[Path, ...]:
    """Returns the programs of hztune's own in a tree, of which no allocator is expected."""
    return (artifacts.launch().resolve(), *others)


def launch_words(program: Program, seed: int, changes: Mapping[str, str]) -> list[str]:
    """Returns the words behind hz-launch that tell of a program; arguments as of `launched`."""
    words = ["--rss-limit-mb", str(program.rss_limit_mb)] if program.rss_limit_mb else []
    words += ["--input", program.input.path] if program.input else []
    for name, value in changes.items():
        words += ["--env", f"{name}={value}"]
    return [*words, "--", *program.command(seed)]


def run_of(told: Mapping[str, Any], watcher: Watcher, stdout: str, stderr: str) -> Run:
    """Returns a run from what hz-launch reports of it, what was seen, and what it printed."""
    return Run(
        fault=_fault(told, stderr),
        pid=told["pid"],
        wall_s=told["wall_ns"] * 1e-9,
        cpu_ns=round(told["cpu_s"] * 1e9),
        rss_peak_kb=told["rss_tree_peak_kb"],
        library=watcher.library or _provider(told),
        stdout=stdout,
        stderr=stderr,
        seen=watcher.fault,
        left=told["left"],
    )


def report_of(program: Program, told: bytes, stderr: str, code: int = 0) -> dict[str, Any]:
    """Returns what hz-launch reports; _LOST if something, such as the program itself, killed it.

    Args:
        program: What was run.
        told: The report; empty where there is none.
        stderr: What all of them wrote.
        code: How what was started ended, as `process.Finished` has it.

    Raises:
        UsageError: The program could not be started.
    """
    if code < 0:  # hz-launch was killed, or what was put before it
        return _LOST
    if not told:
        if reason := _reason(stderr, code):
            raise UsageError(f"cannot run {program.argv[0]}: {reason}")
        return _LOST
    report: dict[str, Any] = json.loads(told)
    if report.get("schema") != _SCHEMA:
        raise HztuneError(
            f"hz-launch reports schema {report.get('schema')}, not {_SCHEMA}; "
            "hz-launch and hztune are of different versions: reinstall hztune"
        )
    return report


def _provider(launch: Mapping[str, Any]) -> str:
    """Returns the library that hz-launch saw, which does not know in which order symbols are found.

    It sees programs that are over before this process has looked.
    """
    return str((launch["allocator"] or {"path": ""})["path"])


def _reason(stderr: str, code: int) -> str:
    """Why a program could not be started; "" where hz-launch was killed instead."""
    said = [line for line in stderr.splitlines() if line.startswith(_LAUNCHER)]
    if said:
        return said[-1].removeprefix(_LAUNCHER)
    return (process.last_words(stderr) or "it gave no reason") if code > 0 else ""


def _fault(launch: Mapping[str, Any], stderr: str) -> Fault | None:
    """Returns why a run does not count."""
    if launch["status"] == "ok":
        return None
    if launch["status"] == "stopped":
        return STOPPED
    if launch["status"] == "lost":
        return _LOST_MEASURER
    return ending_fault(_STATUSES[launch["status"]], launch["signal"], launch["code"], stderr)
