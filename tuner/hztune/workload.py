"""The workloads: what hz-bench says it has, and one of them chosen with its parameters.

hz-bench owns every fact (names, parameters, ranges, settings, what a trace holds); this file only
asks, and refuses what it does not know before anything is started.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Literal, TypeVar

from msgspec import convert

from hztune import artifacts, process
from hztune.arguments import key_value, listed, option_words, split_workload, workload_name
from hztune.errors import HztuneError, UsageError, did_you_mean
from hztune.files import sha256_of
from hztune.params import Param, Value, parse
from hztune.quota import Quota
from hztune.rests import RestPlan
from hztune.schema import as_word

Goal = Literal["throughput", "p99", "kept"]
"""What is made better: operations a second, the time that 99 of 100 calls keep to, or the memory
that stays when the load has ended."""

METRICS: dict[Goal, str] = {"throughput": "ops_per_s", "p99": "p99_ns", "kept": "kept_kb"}
"""How a profile calls it."""

TRACE = "trace:"  # stands before the file where a trace is named

_WITH_DIGEST = re.compile(r"(?P<path>.+)@(?P<digest>[0-9a-f]{12})")
_TRACE_DEADLINE_S = 120.0
_DIGITS = 12
_LIST_DEADLINE_S = 20.0
_CHECK_DEADLINE_S = 60.0
_USAGE_STATUS = 2
_MAX_THREADS = 4096

_MOST_CALLS_ANYWHERE = 200_000
"""Of a round of a trace: a block of turns has many such rounds, and may begin and end within one.
Turns of a longer trace are whole rounds."""

_MOST_CALLS_IN_TURNS = 8_000_000
"""Of a round of a trace. A longer one is measured by runs: turns of more than a second see another
machine each."""

_CALLS_A_SECOND = 8e6  # rounds of a trace in a run are counted with this speed; most are faster


@dataclass(frozen=True, slots=True)
class NamedSetting:
    """A published combination of parameters, chosen as WORKLOAD@NAME."""

    name: str
    doc: str
    values: tuple[tuple[str, Value], ...]


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    doc: str
    source: str  # where the shape comes from
    min_threads: int  # fewest threads it works with
    steady: bool  # every second is like the other, so that turns can measure it
    params: tuple[Param, ...]
    settings: tuple[NamedSetting, ...]
    file: bool  # it replays a file, and is named NAME:FILE

    @property
    def text(self) -> str:
        return f"{self.name}:FILE" if self.file else self.name

    def param(self, name: str) -> Param:
        """The parameter called `name`; "-" and "_" are the same; else UsageError."""
        return _one(self.params, name, f"parameter of {self.name}")


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A trace that was opened and is whole."""

    path: Path
    digest: str  # the beginning of its SHA-256
    threads: int
    calls: int  # of the allocator in one round
    timed: bool  # whether it has times, so that a pace can be kept

    @property
    def name(self) -> str:
        return as_word(TRACE + self.path.name)


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """A workload with everything chosen that makes its requests what they are, except the seed."""

    name: str
    setting: str  # "": the workload's own defaults; of a trace its digest
    params: tuple[tuple[str, Value], ...]
    threads: int
    steady: bool = True  # whether turns can measure it
    goal: Goal = "throughput"  # what is measured of it
    trace: TraceFile | None = field(default=None, compare=False)  # what is replayed; None: nothing
    rest: RestPlan | None = None  # None: it is not looked at while it rests
    quota: Quota | None = None  # of each of its runs; None: it has the machine

    @classmethod
    def from_text(
        cls, text: str, overrides: Sequence[str] = (), threads: int | None = None
    ) -> WorkloadSpec:
        """The specification that a command line describes; UsageError: it is not legal.

        `text`: "remote", or "remote@main" with a named setting; or "trace:FILE". `overrides`:
        "KEY=VALUE" for each parameter that shall differ from the setting. `threads`: None: as many
        as this process may use CPUs, or as the workload needs.
        """
        if is_trace(text):
            return _of_trace(find_trace(text), overrides, threads)
        name, setting = split_workload(text)
        workload = find(name)
        if workload.file:
            raise UsageError(f"{name} replays a file: write {workload.text}")
        if setting is not None:
            _one(workload.settings, setting, f"setting of {name}")
        chosen = dict(_override(workload, each) for each in overrides)
        if threads is None:
            threads = max(workload.min_threads, len(os.sched_getaffinity(0)))
        if not workload.min_threads <= threads <= _MAX_THREADS:
            least = f"--threads {threads}: {name} takes from {workload.min_threads}"
            raise UsageError(f"{least} to {_MAX_THREADS} threads")
        params = tuple(chosen.items())
        return cls(workload.name, setting or "", params, threads, workload.steady)

    @property
    def label(self) -> str:
        setting = f"@{self.setting}" if self.setting else ""
        words = [self.name + setting, *(f"{key}={value}" for key, value in self.params)]
        goal = [f"by {self.goal}"] if self.goal != "throughput" else []
        rest = [f"({self.rest.text})"] if self.rest is not None else []
        within = [f"in {self.quota.text}"] if self.quota is not None else []
        return " ".join([*words, f"T={self.threads}", *goal, *rest, *within])

    def by(self, goal: Goal) -> WorkloadSpec:
        """The same workload with something else of METRICS measured; else UsageError.

        Latencies take a clock at each call; they and memory at rest are known only when a run ends.
        """
        if goal not in tuple(METRICS):
            raise UsageError(f"there is no objective {goal!r} (legal: {' '.join(METRICS)})")
        made = replace(self, goal=goal, steady=self.steady and goal == "throughput")
        return made.resting(self.rest) if goal == "kept" else made

    def resting(self, plan: RestPlan | None = None) -> WorkloadSpec:
        if self.name.startswith(TRACE):
            raise UsageError(f"{self.label}: memory at rest is not measured of a trace")
        return replace(self, rest=plan or RestPlan(), steady=False)

    def within(self, quota: Quota) -> WorkloadSpec:
        """The same workload in a container, by runs: a quota counts the turns of others as well."""
        return replace(self, quota=quota, steady=False)

    def command(self, seed: int | None = None) -> list[str]:
        """The hz-bench command; the same seed gives the same requests; None: it is left out."""
        words = [str(artifacts.bench()), self._target]
        for key, value in self.params:
            words += [f"--{key}", str(value)]
        rests = self.rest.rounds if self.rest is not None else None
        return words + option_words(
            threads=self.threads, seed=seed, latency=self.goal == "p99", rests=rests
        )

    @property
    def _target(self) -> str:
        if self.trace is not None:
            return TRACE + str(self.trace.path)
        return self.name + (f"@{self.setting}" if self.setting else "")

    def span(self, seconds: float) -> list[str]:
        """The options of a run of about so many seconds; of a trace it is whole rounds."""
        if self.trace is None:
            return ["--seconds", f"{seconds:g}"]
        usual = 1 if _is_paced(self) else round(_CALLS_A_SECOND * seconds / self.trace.calls)
        rounds = _traced(self, "rounds") or usual
        return ["--ops", str(self.trace.calls * max(1, rounds))]

    @property
    def round_s(self) -> float:
        """Seconds of a round, about, where turns are whole rounds; 0: they end anywhere."""
        calls = self.trace.calls if self.trace is not None else 0
        return calls / _CALLS_A_SECOND if calls > _MOST_CALLS_ANYWHERE else 0.0

    def check(self) -> None:
        """Runs one operation of it, since only hz-bench knows which parameters go together.

        UsageError: hz-bench refuses them, in its own words. HztuneError: it cannot run here.
        """
        if _is_paced(self) and self.goal == "throughput":
            raise UsageError(
                f"{self.label}: a pace says how fast it is, so that no configuration is faster; "
                "leave it out, or tune with --objective p99"
            )
        command = [*self.command(seed=1), "--ops", "1"]
        done = process.run(command, deadline_s=_CHECK_DEADLINE_S)
        if done.code == _USAGE_STATUS:
            words = done.stderr.strip().splitlines() or ["hz-bench refuses it"]
            raise UsageError(words[-1].removeprefix("hz-bench: "))
        if not done.ok:
            raise HztuneError(f"workload {self.label} cannot run here: hz-bench {done.describe()}")


# ---- traces: known again by name and content, and never by path ----------------------------------


def is_trace(text: str) -> bool:
    return text.startswith(TRACE)


def find_trace(text: str) -> TraceFile:
    """The trace of "trace:FILE", or "trace:FILE@DIGEST" as results have it; else UsageError."""
    words = text.removeprefix(TRACE)
    if not words:
        raise UsageError(f"{TRACE} names no file; write trace:FILE, the file of `hztune record`")
    path, digest = Path(words), ""
    match = _WITH_DIGEST.fullmatch(words)
    if match and not path.exists():
        path, digest = Path(match["path"]), match["digest"]
    if digest and not path.exists():
        raise UsageError(
            f"the trace {path.name} (SHA-256 {digest}...) is not here: run this in the folder that "
            "has it; for `hztune verify`, name it with --trace FILE"
        )
    if not path.is_file():
        what = "is no trace: it is no file" if path.exists() else "is not there"
        raise UsageError(f"{str(path)!r} {what}; name the file of `hztune record`")
    about = path.stat()
    found = _opened(path.resolve(), about.st_size, about.st_mtime_ns)
    if digest not in ("", found.digest):
        raise UsageError(
            f"{str(path)!r} is another trace than the one that is asked for: its SHA-256 begins "
            f"with {found.digest}, and {digest} is asked for"
        )
    return found


@cache
def _opened(path: Path, size: int, mtime_ns: int) -> TraceFile:
    """Lets hz-bench open a file; what was found holds for as long as the file is not written."""
    command = [str(artifacts.bench()), TRACE + str(path), "--list"]
    done = process.run(command, deadline_s=_TRACE_DEADLINE_S)
    if not done.ok:
        words = done.stderr.strip().splitlines() or ["it gave no reason"]
        raise UsageError(words[-1].removeprefix("hz-bench: "))
    (row,) = json.loads(done.stdout)["workloads"]
    digest = sha256_of(path)[:_DIGITS]
    return TraceFile(path, digest, row["threads"], row["calls"], row["timed"])


# ---- by name -------------------------------------------------------------------------------------


_Row = TypeVar("_Row", Param, NamedSetting, Workload)


@cache
def listing() -> tuple[Workload, ...]:
    """Every workload of the installed hz-bench; else HztuneError."""
    done = process.run([str(artifacts.bench()), "--list"], deadline_s=_LIST_DEADLINE_S)
    if not done.ok:
        raise HztuneError(f"hz-bench --list {done.describe()}; reinstall hztune")
    rows = json.loads(done.stdout)["workloads"]
    for setting in (setting for row in rows for setting in row["settings"]):
        setting["values"] = [*setting["values"].items()]
    return convert(rows, tuple[Workload, ...])


def find(name: str) -> Workload:
    return _one(listing(), name, "workload")


def workloads_named(
    text: str, overrides: Sequence[str] = (), threads: int | None = None
) -> tuple[WorkloadSpec, ...]:
    """The workloads of "larson,remote@main", all with one number of threads.

    "KEY=VALUE" is for those that have such a parameter; one has it at least. Without `threads` they
    have as many as this process may use CPUs, or as the neediest of them needs.
    """
    specs = specs_named(listed(text), overrides, threads)
    most = max((spec.threads for spec in specs if spec.trace is None), default=0)
    return tuple(replace(spec, threads=most) if spec.trace is None else spec for spec in specs)


def specs_named(
    names: Sequence[str], overrides: Sequence[str], threads: int | None
) -> tuple[WorkloadSpec, ...]:
    """Each with the overrides that it takes; UsageError: no workload takes one of them."""
    for override in overrides:
        if not any(takes(name, override) for name in names):
            WorkloadSpec.from_text(names[0], [override])  # says what it has instead
    return tuple(
        WorkloadSpec.from_text(name, [each for each in overrides if takes(name, each)], threads)
        for name in names
    )


def goal_of(metric: str) -> Goal:
    for goal, name in METRICS.items():
        if name == metric:
            return goal
    legal = " ".join(METRICS.values())
    raise UsageError(f"workloads are not measured by {metric!r} (legal: {legal})")


def takes(name: str, override: str) -> bool:
    """Whether a workload ("remote@main") has the parameter of KEY=VALUE."""
    key = _plain(override.partition("=")[0])
    return key in {_plain(each.name) for each in find(workload_name(name)).params}


def _override(workload: Workload, text: str) -> tuple[str, Value]:
    key, value = key_value(text, "-p")
    param = workload.param(key)
    return param.name, parse(param, value)


def _of_trace(trace: TraceFile, overrides: Sequence[str], threads: int | None) -> WorkloadSpec:
    if threads not in (None, trace.threads):
        counted = f"{trace.threads} thread{'s' * (trace.threads != 1)}"
        told = f"--threads {threads}: {trace.path.name} has {counted}, and each is replayed by "
        raise UsageError(f"{told}one; leave the option out")
    params = tuple(dict(_override(find("trace"), each) for each in overrides).items())
    spec = WorkloadSpec(trace.name, trace.digest, params, trace.threads, trace=trace)
    if _is_paced(spec) and not trace.timed:
        raise UsageError(f"-p pace: {trace.path.name} was recorded without times")
    is_whole = trace.calls > _MOST_CALLS_IN_TURNS or _is_paced(spec) or _traced(spec, "rounds") > 0
    return replace(spec, steady=not is_whole)


def _is_paced(spec: WorkloadSpec) -> bool:
    """Whether a trace is replayed at a pace, and not as fast as possible."""
    return _traced(spec, "pace") != 0


def _traced(spec: WorkloadSpec, name: str) -> int:
    """A parameter of a trace; 0: it is left alone, or this is no trace."""
    return int(dict(spec.params).get(name, 0)) if spec.trace is not None else 0


def _plain(name: str) -> str:
    return name.replace("-", "_")


def _one(rows: Sequence[_Row], name: str, what: str) -> _Row:
    for row in rows:
        if _plain(row.name) == _plain(name):
            return row
    names = [row.text if isinstance(row, Workload) else row.name for row in rows]
    hint, legal = did_you_mean(name, names), " ".join(names) or "it has none"
    raise UsageError(f"there is no {what} {name!r}{hint} (legal: {legal})")
