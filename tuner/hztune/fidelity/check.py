"""One check of a trace: measure, judge, and write the verdict beside the trace.

The measuring is that of `hztune compare`, with three rows: the program, its trace as studies
measure it, and single rounds of the trace, whose peak memory is that of one run of the program.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from hztune import allocator, files, process
from hztune.allocator import loaded_program
from hztune.compare import contenders
from hztune.compare.conduct import compare
from hztune.compare.contenders import Contender
from hztune.compare.match import LEAST_BUDGET_S, MOST_BUDGET_S, Measured, now
from hztune.errors import HztuneError, StoppedByUser, UsageError
from hztune.fidelity.agreement import (
    LEAST_CONTENDERS,
    About,
    Judgement,
    Measurements,
    judged_fidelity,
)
from hztune.fidelity.readings import Readings, readings_of
from hztune.fidelity.second_recording import strange
from hztune.measure.program import Program, bench_program, hook
from hztune.progress import Reporter
from hztune.scratch import scratch_folder
from hztune.strictjson import ascii_text
from hztune.trace import recording, sidecar, tool
from hztune.trace.sidecar import TraceCheck
from hztune.trace_file import PREFIX, TraceFile
from hztune.workload import WorkloadSpec

USUAL = ("glibc", "hz", "jemalloc", "mimalloc", "tcmalloc")
SLOWED = ("glibc:tcache_count=0", "jemalloc:tcache=false")
"""Settings with which each call takes longer: what a program shows of them is the allocator's."""

CHECK_PAIRS = 8

PROGRAM_PART = 0.4
"""Part of the time that the program has."""

SINGLE_PART = 0.6
"""Part of the trace's time that single rounds have."""

LEAST_CHECK_S = 5.0
"""With less, a row would not have LEAST_BUDGET_S."""

_MIB = float(1 << 20)
_PAGE = 4096


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be checked.

    Attributes:
        trace: The trace.
        program: Its program, or server.
        sides: Under what both are measured, the first one the control.
        pairs: Blocks of fresh processes for each of the two; None: CHECK_PAIRS.
        budget_s: Seconds for both.
        seed: Of every random choice.
        again: Whether the program is recorded a second time.
        out: A directory for every sample; None: none.
    """

    trace: TraceFile
    program: Program
    sides: tuple[Contender, ...]
    pairs: int | None
    budget_s: float
    seed: int
    again: bool
    out: Path | None


def sides_of(texts: Sequence[str], program: Program) -> tuple[Contender, ...]:
    """Returns under what program and trace are measured.

    Args:
        texts: As of `hztune compare`; (): every allocator that is here, and two slow settings.
        program: Where it is linked with one of them, that is the control.

    Raises:
        UsageError: There are too few, or one of them cannot be.
    """
    found = (
        contenders.parse(texts) if texts else _usual(loaded_program.inspect(program.argv[0]).linked)
    )
    different = len({(side.arm, side.sha256) for side in found})
    if different < LEAST_CONTENDERS:
        raise UsageError(
            f"{different} allocators and settings are too few to check a trace; {LEAST_CONTENDERS} "
            "different ones are needed (glibc hz jemalloc jemalloc:tcache=false)"
        )
    return found


def _usual(linked: str) -> tuple[Contender, ...]:
    """Every allocator that is here; glibc's not where the program is linked with another one."""
    texts = []
    for text in (*USUAL, *SLOWED):
        name = text.partition(":")[0]
        with contextlib.suppress(UsageError):
            allocator.get(name).installed()
            texts += [] if linked and name == "glibc" else [text]
    return contenders.parse(sorted(texts, key=lambda text: text != linked))


def check_fidelity(asked: Asked, reporter: Reporter) -> TraceCheck:
    """Measures program and trace, judges them, and writes the verdict beside the trace.

    Raises:
        UsageError: Something that was asked for is not legal; nothing was measured.
        StoppedByUser: The user asked to stop; nothing is judged.
        HztuneError: Too few allocators run the program and its trace.
    """
    if not LEAST_CHECK_S <= asked.budget_s <= MOST_BUDGET_S:
        raise UsageError(
            f"--budget is {asked.budget_s:g} s; legal is from {LEAST_CHECK_S:g} s to 7 days"
        )
    sidecar.require_place(asked.trace.path)
    told = tool.describe(asked.trace.path)
    shape = None
    if asked.again and asked.program.service is None:
        reporter.say("recording the program a second time")
        shape = strange(told, recorded_again(asked.program, has_touch=told["has_touch"]))
    budget_s = PROGRAM_PART * asked.budget_s
    names = [side.name for side in asked.sides]
    program = _compared(asked, asked.program, asked.pairs, budget_s, "program", reporter)
    _ran([failures for _, failures in _readings(program, asked, told["is_part"])], names)
    rows = [*program, *of_trace(asked, asked.budget_s - budget_s, reporter)]
    seen, names = _common(_readings(rows, asked, told["is_part"]), names, reporter)
    about = About(tuple(names), told["peak_bytes"] / _MIB, shape)
    made = verdict(asked, judged_fidelity(seen, about), about, seen)
    sidecar.write(made, asked.trace.path)
    return made


def of_trace(asked: Asked, budget_s: float, reporter: Reporter) -> list[Measured]:
    """Measures the trace: round after round, as studies do, and single rounds, as programs are.

    A single round is measured by its time, from the start of hz-bench to its end: by turns of
    milliseconds, which are not as noisy as turns of whole rounds, and with pages as cold as the
    program's. That hz-bench reads the trace before takes the same time under every allocator.
    """
    name = f"{PREFIX}{asked.trace.path}"
    whole, once = WorkloadSpec.from_text(name), WorkloadSpec.from_text(name, ["rounds=1"])
    single = replace(bench_program(once), rate=None, name=f"{asked.trace.name}, one round")
    whole_s = (1.0 - SINGLE_PART) * budget_s
    return [
        *_compared(asked, whole, asked.pairs, whole_s, "trace", reporter),
        *_compared(asked, single, asked.pairs, budget_s - whole_s, "single", reporter),
    ]


def _compared(
    asked: Asked,
    row: Program | WorkloadSpec,
    pairs: int | None,
    budget_s: float,
    folder: str,
    reporter: Reporter,
) -> tuple[Measured, ...]:
    """Measures one row under all contenders.

    Raises:
        StoppedByUser: The user asked to stop.
    """
    out = asked.out / folder if asked.out is not None else None
    seconds = max(LEAST_BUDGET_S, budget_s)
    found = compare(
        asked.sides, [row], pairs or CHECK_PAIRS, seconds, asked.seed, None, out, reporter
    )
    if found.stopped:
        raise StoppedByUser("interrupted; nothing is judged on a part of the measurements")
    return found.rows


def verdict(asked: Asked, judged: Judgement, about: About, seen: Measurements) -> TraceCheck:
    """The verdict as it is kept."""
    return TraceCheck(
        trace_sha256=files.sha256_of(asked.trace.path),
        answer=judged.answer,
        why=judged.why,
        program=ascii_text(asked.program.label),
        contenders=about.names,
        points=judged.points,
        share=judged.share,
        created=now(),
        measured=json.dumps(
            {**asdict(seen), "live_mb": about.live_mb, "strange": about.strange}, allow_nan=False
        ),
    )


def _readings(
    rows: Sequence[Measured], asked: Asked, is_part: bool
) -> list[tuple[Readings, tuple[str, ...]]]:
    """What each row showed; seconds only where a round of the trace is a run of the program."""
    is_comparable = not is_part and asked.program.rate is None and asked.program.service is None
    found = []
    for row, work in zip(rows, (1, asked.trace.calls, 1), strict=False):
        rates = [block.control.ops_per_s for block in row.blocks if block.control.ok]
        seconds = work / median(rates) if rates and is_comparable else 0.0
        found.append(readings_of(row.blocks, seconds))
    return found


def _ran(rows: Sequence[Sequence[str]], names: Sequence[str]) -> list[str]:
    """How each contender failed in any of the rows, from how it failed in each; "": it did not.

    Raises:
        HztuneError: Too few ran all of them.
    """
    failures = [next(filter(None, each), "") for each in zip(*rows, strict=True)]
    ran = failures.count("")
    if ran < LEAST_CONTENDERS or failures[0]:
        what = "the program runs" if len(rows) == 1 else "the program and its trace run together"
        first = next(i for i, failure in enumerate(failures) if failure)
        raise HztuneError(
            f"{what} under {ran} of {len(names)} allocators and settings; {LEAST_CONTENDERS} are "
            f"needed, {names[0]} among them (under {names[first]}: {failures[first]})"
        )
    return failures


def _common(
    rows: Sequence[tuple[Readings, tuple[str, ...]]], names: Sequence[str], reporter: Reporter
) -> tuple[Measurements, list[str]]:
    """The same of the contenders that run all rows, and their names.

    Raises:
        HztuneError: They are too few.
    """
    failures = _ran([failures for _, failures in rows], names)
    kept = [i for i in range(len(names)) if not failures[i]]
    for i, name in enumerate(names):
        if i not in kept:
            reporter.say(f"left out: {name} ({failures[i]})")
    program, trace, single = (found.only(kept) for found, _ in rows)
    return Measurements(program, trace, single), [names[i] for i in kept]


# ---- a second recording --------------------------------------------------------------------------


def recorded_again(program: Program, *, has_touch: bool) -> dict[str, Any]:
    """Records the program once more, and returns what `hztune trace info` tells of that.

    Args:
        program: What is recorded.
        has_touch: Whether to note what is touched, of blocks of a page and more.

    Raises:
        HztuneError: Nothing was recorded.
    """
    with scratch_folder() as folder:
        path = folder / "again.trace"
        touch = _PAGE if has_touch else None
        command = recording.recorder_command(path, program.argv, touch_bytes=touch)
        hook("--prepare", program.prepare, os.environ)
        done = process.run(command, deadline_s=program.timeout_s, keep_stdout=False)
        hook("--cleanup", program.cleanup, os.environ)
        if not path.exists():
            raise HztuneError(f"the program cannot be recorded: it {done.describe()}")
        return tool.describe(path)
