"""One run of a whole program: timed by hyperfine where that is installed, else by hz-launch."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from hztune import process
from hztune.errors import HztuneError
from hztune.measure.identity import Fault
from hztune.measure.launch import Run, launched
from hztune.measure.program import OUTPUT_BYTES, Program
from hztune.measure.watch import Look
from hztune.scratch import scratch_folder

_HYPERFINE_SCHEMA = 2
_HYPERFINE_WARNING = "Warning: Ignoring non-zero exit code.\n"
_NOT_UTF8 = re.compile("[\udc80-\udcff]")
"""How Python holds bytes of a file name that are no UTF-8."""
_GRACE_S = 30.0
_VERSION_S = 10.0
_UNIT_S = {"second": 1.0, "s": 1.0, "millisecond": 1e-3, "ms": 1e-3, "nanosecond": 1e-9, "ns": 1e-9}


@cache
def hyperfine() -> Path | None:
    """Returns the hyperfine that times programs here; None: there is none, hz-launch does it."""
    path = shutil.which("hyperfine")
    if path is None:
        return None
    done = process.run([path, "--version"], deadline_s=_VERSION_S)
    return Path(path) if done.ok and re.match(r"hyperfine \d+\.\d+", done.stdout) else None


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
    tool = hyperfine() if _can_be_told([*program.command(seed), *changes.values()]) else None
    with scratch_folder() as folder:
        export = folder / "times.json"
        with launched(
            program,
            seed,
            base,
            changes,
            timeout_s,
            look,
            wrap=lambda words: _timed(tool, words, export) if tool else words,
            helpers=[tool.resolve()] if tool else [],
            keep_stdout=program.reads_output,
        ) as launch:
            done = launch.child.finish(timeout_s + _GRACE_S)
        if done.timed_out:
            return Run(Fault("hang", "hz-launch did not end it"), stderr=done.stderr)
        done = replace(done, stderr=done.stderr.replace(_HYPERFINE_WARNING, ""))
        run, _ = launch.run(done)
        if run.fault is not None:
            return run
        if done.truncated:
            run = replace(
                run, fault=Fault("bad_output", f"it printed more than {OUTPUT_BYTES >> 20} MiB")
            )
        return replace(run, wall_s=_hyperfine_s(export)) if export.exists() else run


def _can_be_told(words: Iterable[str]) -> bool:
    """Whether hyperfine takes these words: its own must be UTF-8, those of a program need not."""
    return not any(_NOT_UTF8.search(word) for word in words)


def _timed(tool: Path, command: list[str], export: Path) -> list[str]:
    """Returns the command that times another, for every version of hyperfine from 1.13 on."""
    options = ["-N", "--runs", "1", "--ignore-failure", "--style", "none", "--output", "inherit"]
    return [str(tool), *options, "--export-json", str(export), "--", shlex.join(command)]


def _hyperfine_s(export: Path) -> float:
    """Returns the time of the one run in hyperfine's JSON, seconds.

    Version 1 has no schema number and `times`; version 2 has `measurements` with units.

    Raises:
        HztuneError: A version of the format that is not known, or none: the disk was full.
    """
    try:
        document = json.loads(export.read_text(encoding="utf-8"))
    except ValueError:
        raise HztuneError(
            f"hyperfine could not write its times to {export.parent}; make room there, or name "
            "another directory for temporary files with TMPDIR"
        ) from None
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
