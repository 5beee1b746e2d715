"""One run of a whole program: started by hz-launch, timed by hyperfine where that is installed.

hz-launch proves which library provides malloc, measures the memory of the whole process tree, and
ends what takes too long or too much. It gives the time as well, if there is no hyperfine.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hztune import artifacts, process
from hztune.errors import HztuneError, UsageError
from hztune.measure.program import OUTPUT_BYTES, Program
from hztune.measure.proof import Fault
from hztune.measure.watch import Look, Watcher, watching
from hztune.process import signal_name
from hztune.samples import Status

_LAUNCH_SCHEMA = 1
_HYPERFINE_SCHEMA = 2
_HYPERFINE_WARNING = "Warning: Ignoring non-zero exit code."
_GRACE_S = 30.0
_VERSION_S = 10.0
_UNIT_S = {"second": 1.0, "s": 1.0, "millisecond": 1e-3, "ms": 1e-3, "nanosecond": 1e-9, "ns": 1e-9}
_STATUSES: dict[str, Status] = {
    "crash": "crash",
    "hang": "hang",
    "oom": "oom",
    "rejected": "rejected",
    "wrong_allocator": "wrong_allocator",
    "failed": "failed",
    "interrupted": "failed",
}


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
        idle_kb: Memory of its processes some time after the load, KiB; 0: not asked for.
        seen: What is wrong with one of its processes, as it was found while it ran.
    """

    fault: Fault | None
    pid: int
    wall_s: float
    cpu_ns: int
    rss_peak_kb: int
    library: str
    stdout: str
    stderr: str
    idle_kb: int = 0
    seen: Fault | None = None


@cache
def hyperfine() -> Path | None:
    """Returns the hyperfine that times programs here; None: there is none, hz-launch does it."""
    path = shutil.which("hyperfine")
    if path is None:
        return None
    done = process.run([path, "--version"], deadline_s=_VERSION_S)
    return Path(path) if done.ok and re.match(r"hyperfine \d+\.\d+", done.stdout) else None


def timer_name() -> str:
    """Returns what times whole programs here, for reports."""
    return "hyperfine" if hyperfine() else "hz-launch"


def time_once(
    program: Program,
    seed: int,
    base: Mapping[str, str],
    changes: Mapping[str, str],
    timeout_s: float,
    look: Look,
) -> Run:
    """Runs the program once.

    Args:
        program: What to run.
        seed: Of the block.
        base: The environment of the helpers.
        changes: What the program gets beyond it.
        timeout_s: It is ended after that time.
        look: Judges every process of the program that lives long enough to be looked at.

    Raises:
        UsageError: The program cannot be started at all.
    """
    with tempfile.TemporaryDirectory(prefix="hztune-") as folder:
        export = Path(folder, "times.json")
        report = os.memfd_create("hz-launch")
        try:
            launched = launch_command(program, seed, changes, timeout_s, report)
            with (
                process.Child(
                    _timed(launched, export),
                    env=base,
                    output_limit=OUTPUT_BYTES,
                    keep_stdout=program.reads_output,
                    pass_fds=(report,),
                ) as child,
                watching(child.pid, look, helpers()) as watcher,
            ):
                done = child.finish(timeout_s + _GRACE_S)
            told = os.pread(report, os.fstat(report).st_size, 0)
        finally:
            os.close(report)
        return _run(program, done, told, export, watcher)


def launch_command(
    program: Program, seed: int, changes: Mapping[str, str], timeout_s: float, report: int
) -> list[str]:
    """Returns the command that starts the program."""
    words = [str(artifacts.launch()), "--json-fd", str(report)]
    words += ["--timeout-ms", str(round(1e3 * timeout_s))]
    if program.rss_limit_mb:
        words += ["--rss-limit-mb", str(program.rss_limit_mb)]
    for name, value in changes.items():
        words += ["--env", f"{name}={value}"]
    return [*words, "--", *program.command(seed)]


def _timed(launched: list[str], export: Path) -> list[str]:
    """Returns the command that times it, for every version of hyperfine from 1.13 on."""
    path = hyperfine()
    if path is None:
        return launched
    options = ["-N", "--runs", "1", "--ignore-failure", "--style", "none", "--output", "inherit"]
    return [str(path), *options, "--export-json", str(export), "--", shlex.join(launched)]


def helpers() -> tuple[Path, ...]:
    """Returns the programs that stand between hztune and the target."""
    timers = [path.resolve() for path in (hyperfine(),) if path]
    return (artifacts.launch().resolve(), *timers)


def _run(
    program: Program, done: process.Finished, told: bytes, export: Path, watcher: Watcher
) -> Run:
    """Returns the run from what hz-launch and the timer say."""
    if done.timed_out:
        return Run(Fault("hang", "hz-launch did not end it"), 0, 0.0, 0, 0, "", "", done.stderr)
    launch = launch_report(program, done, told)
    wall_s = _hyperfine_s(export) if export.exists() else launch["wall_ns"] * 1e-9
    fault = fault_of(launch, done.stderr)
    if fault is None and done.truncated:
        fault = Fault("bad_output", f"it printed more than {OUTPUT_BYTES >> 20} MiB")
    return Run(
        fault=fault,
        pid=launch["pid"],
        wall_s=wall_s,
        cpu_ns=round(launch["cpu_s"] * 1e9),
        rss_peak_kb=launch["rss_tree_peak_kb"],
        library=watcher.library or provider_of(launch),
        stdout=done.stdout,
        stderr=done.stderr,
        seen=watcher.fault,
    )


def launch_report(program: Program, done: process.Finished, told: bytes) -> dict[str, Any]:
    """Returns what hz-launch reports; if it reports nothing, it could not start the program."""
    if not told:
        last = done.stderr.strip().splitlines()[-1:] or ["it gave no reason"]
        reason = last[0].removeprefix("hz-launch: ")
        raise UsageError(f"cannot run {program.argv[0]}: {reason}")
    report: dict[str, Any] = json.loads(told)
    if report.get("schema") != _LAUNCH_SCHEMA:
        raise HztuneError(
            f"hz-launch reports schema {report.get('schema')}, not {_LAUNCH_SCHEMA}; "
            "hz-launch and hztune are of different versions: reinstall hztune"
        )
    return report


def provider_of(launch: Mapping[str, Any]) -> str:
    """Returns the library that hz-launch saw, which does not know in which order symbols are found.

    It sees programs that are over before anybody else has looked.
    """
    return str((launch["allocator"] or {"path": ""})["path"])


def fault_of(launch: Mapping[str, Any], stderr: str) -> Fault | None:
    """Returns why a run does not count."""
    if launch["status"] == "ok":
        return None
    if launch["signal"]:
        end = f"ended by {signal_name(launch['signal'])}"
    else:
        end = f"exit status {launch['code']}"
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    words = [line for line in lines if line != _HYPERFINE_WARNING][-1:]
    return Fault(_STATUSES[launch["status"]], ": ".join([end, *words]))


def _hyperfine_s(export: Path) -> float:
    """Returns the time of the one run in hyperfine's JSON, seconds.

    Version 1 has no schema number and `times`; version 2 has `measurements` with units.

    Raises:
        HztuneError: A version of the format that is not known.
    """
    document = json.loads(export.read_text(encoding="utf-8"))
    schema = document.get("schema_version", 1)
    result = document["results"][0]
    if schema == 1:
        return float(result["times"][0])
    if schema == _HYPERFINE_SCHEMA:
        time = result["measurements"][0]["time_wall_clock"]
        return float(time["value"]) * _UNIT_S[time["unit"]]
    raise HztuneError(
        f"hyperfine exports schema {schema}, and hztune knows 1 and {_HYPERFINE_SCHEMA}; "
        "install hyperfine from your distribution, or none: hz-launch then times"
    )
