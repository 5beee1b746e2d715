"""Which targets are looked at while they rest: where something that was asked needs it.

What the user asked for; every mistake in it is found before anything is written.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypedDict, TypeVar

from hztune import artifacts, trace_file
from hztune.allocator import Installed, inside, loaded_program
from hztune.arguments import SPARSE, listed
from hztune.errors import UsageError
from hztune.files import sha256_of
from hztune.measure import insides
from hztune.measure.executors import refuse_mixture
from hztune.measure.identity import user_settings
from hztune.measure.program import OPEN, Program
from hztune.measure.scope import entered
from hztune.profile import MOST_SEED, MOST_TERM_DAYS, TERM_DAYS
from hztune.quota import LEAST_MEMORY_KB, Quota
from hztune.rests import DEFAULT_IDLE_S, MemoryKind, RestPlan, weighed_memory
from hztune.space import AnySpace
from hztune.study.calibration import PANEL_LEAST_S, PANEL_SHARE, Division
from hztune.study.limits import OF_LOAD, LossLimit, MemoryLimit, memory_limit
from hztune.tune.candidates import AllocatorChoice, TuneTarget, asks_inside, candidates
from hztune.workload import Goal, WorkloadSpec


def needs_rest(objective: Goal, others: Mapping[str, object]) -> bool:
    """Whether an objective, a limit or a front needs memory at rest."""
    weighed = weighed_memory(str(others.get("pareto", "")))
    return objective == "kept" or weighed == "kept" or bool(others.get("max_kept"))


def resting_plan(
    idle_s: float, rounds: int | None, objective: Goal, others: Mapping[str, object]
) -> RestPlan | None:
    """The rounds of load and rest of a workload; None: it is not looked at while it rests.

    Args:
        idle_s: Seconds of rest; 0: nothing was said.
        rounds: How many; None: nothing was said.
        objective: What is made better.
        others: Further fields of the request.

    Raises:
        UsageError: A number is not legal.
    """
    if not (idle_s or rounds is not None or needs_rest(objective, others)):
        return None
    return RestPlan(idle_s or DEFAULT_IDLE_S, 1 if rounds is None else rounds)


def resting_program(program: Program, objective: Goal, others: Mapping[str, object]) -> Program:
    """A program of the user's, which is looked at while it rests where that is needed.

    Raises:
        UsageError: Nothing says when it rests.
    """
    if not needs_rest(objective, others):
        return program
    return replace(program.resting(), seeks_kept=objective == "kept")


DEFAULT_BUDGET_S = 180.0
DEFAULT_MAX_LOSS = "5%"
"""What the pairs of a proof can show of a configuration that loses nothing; see `LossLimit`."""

LEAST_STUDY_S = 20.0
MOST_STUDY_S = 7 * 86400.0

LOOK_SHARE = 0.1
"""Most of a budget for the runs that show which allocators are inside of programs."""

_Limit = TypeVar("_Limit", MemoryLimit, LossLimit)
_MANY_THREADS = 1024
"""Stands for the threads of a program that decides for itself: ranges are not narrowed by it."""


class RequestOptions(TypedDict, total=False):
    """The fields of TuneRequest that `api.request` hands on as they are."""

    space: str
    trials: int | None
    seed: int
    resume: bool
    max_rss: str
    max_kept: str
    max_loss: str
    pareto: str
    panel: bool | None
    smallest_memory: bool
    prove_on: Program | None
    term_days: int
    command: tuple[str, ...]
    allow_keeping: bool
    on: str
    sampler: str


@dataclass(frozen=True, slots=True)
class TuneRequest:
    """One study.

    Attributes:
        workload: A built-in workload to measure; None: a program of the user's.
        program: That program; None: a workload.
        allocator: Whose configuration is sought: a name, several with commas, or `any`.
        space: Name or path of the search space; "" for the allocator's own.
        budget_s: Seconds that the whole study may take.
        trials: Most configurations to search; None: as many as there is time for.
        seed: Of everything that is chosen at random.
        out: The results directory; None: a new one under hztune-results/.
        resume: Whether to go on with the study that is there.
        max_rss: Memory limit as written, "1.10x" or "512M"; "" for none.
        max_kept: The same of what is kept at rest.
        beside: Further workloads that the same profile is for.
        max_loss: What each of several workloads may lose, as written: "5%"; where memory at rest is
            made less, what the speed of the load may.
        pareto: The two objectives of a front, as written: "throughput,rss"; "" for speed alone.
        more: Further programs that the same profile is for, each with a name.
        prove_on: The program of the trace that is searched on: what is found is proved on it.
        panel: Whether the winner is examined on other workloads; None: a workload's is, if there is
            time for it.
        smallest_memory: Whether the smallest memory is sought that the default and the winner
            survive.
        term_days: Days after which the profile should be measured again.
        command: The words that asked for it, to be kept beside the profile; () keeps none.
        allow_keeping: Whether settings are tried with which freed memory is never returned.
        on: The scheduler of a Dask cluster that measures, "tcp://HOST:8786"; "": this machine does.
        sampler: What proposes configurations: sparse, tpe, random, cmaes, or "module:Class".
    """

    workload: WorkloadSpec | None = None
    program: Program | None = None
    allocator: str = "hz"
    space: str = ""
    budget_s: float = DEFAULT_BUDGET_S
    trials: int | None = None
    seed: int = 1
    out: Path | None = None
    resume: bool = False
    max_rss: str = ""
    max_kept: str = ""
    beside: tuple[WorkloadSpec, ...] = ()
    max_loss: str = DEFAULT_MAX_LOSS
    pareto: str = ""
    panel: bool | None = None
    more: tuple[Program, ...] = ()
    smallest_memory: bool = False
    prove_on: Program | None = None
    term_days: int = TERM_DAYS
    command: tuple[str, ...] = ()
    allow_keeping: bool = False
    on: str = ""
    sampler: str = SPARSE

    @property
    def workloads(self) -> tuple[WorkloadSpec, ...]:
        """The built-in workloads that are measured."""
        return (self.workload, *self.beside) if self.workload is not None else ()

    @property
    def programs(self) -> tuple[Program, ...]:
        """The user's programs that are measured."""
        return (self.program, *self.more) if self.program is not None else ()

    @property
    def seeks_kept(self) -> bool:
        """Whether what stays at rest is made less, and not the speed better."""
        if self.workload is not None:
            return self.workload.goal == "kept"
        return self.program is not None and self.program.seeks_kept

    @property
    def weighed(self) -> MemoryKind:
        """Which memory is weighed beside speed."""
        return weighed_memory(self.pareto)

    @property
    def needs_rest(self) -> bool:
        """Whether something that was asked needs memory at rest."""
        return self.seeks_kept or self.weighed == "kept" or bool(self.max_kept)

    @property
    def rest(self) -> RestPlan | None:
        """The rounds of load and rest; None: nothing is looked at while it rests."""
        rests = [*(each.rest for each in self.workloads), *(each.rest for each in self.programs)]
        return rests[0] if rests else None

    @property
    def quota(self) -> Quota | None:
        """The container in which everything is measured; None: there is none."""
        quotas = [*(each.quota for each in self.workloads), *(each.quota for each in self.programs)]
        return quotas[0] if quotas else None

    @property
    def allocators(self) -> tuple[str, ...]:
        """The allocators that were named, each once."""
        return tuple(dict.fromkeys(listed(self.allocator)))

    @property
    def label(self) -> str:
        """What is measured, in words."""
        targets = self.workloads or self.programs
        return ", ".join(target.label for target in targets)

    @property
    def division(self) -> Division:
        """How the budget is divided."""
        is_workload = self.workload is not None
        wants_panel = self.panel if self.panel is not None else is_workload and not self.on
        return Division.of(
            self.budget_s,
            panel=wants_panel and not self.pareto,
            smallest=self.smallest_memory,
            program=self.prove_on is not None,
        )

    @property
    def name(self) -> str:
        """What is measured, in one word."""
        names = [spec.name for spec in self.workloads] or [each.label for each in self.programs]
        return "+".join(names)

    @property
    def threads(self) -> int:
        """Threads of the workload; 0: the program decides."""
        return self.workload.threads if self.workload else 0


@dataclass(frozen=True, slots=True)
class Task:
    """A request that can be carried out here.

    Attributes:
        request: What was asked.
        candidates: The allocators and what may be proposed for them.
        limit: The memory limit, if any.
        remarks: What the user should know of the target before it is measured.
        max_loss: What each of several workloads may lose; None: there is one only.
        judged_s: Seconds that the judging of a program took, with the run that shows which
            allocators are inside; 0 for a workload.
    """

    request: TuneRequest
    candidates: AllocatorChoice
    limit: MemoryLimit | None
    remarks: tuple[str, ...] = ()
    max_loss: LossLimit | None = None
    judged_s: float = 0.0

    @property
    def space(self) -> AnySpace:
        """What may be proposed."""
        return self.candidates.space

    @property
    def limits(self) -> tuple[tuple[str, str], ...]:
        """The limits by name, as they were written."""
        memory = tuple((f"max_{each.memory}", each.text) for each in _each(self.limit))
        if self.max_loss is None:
            return memory
        return (*memory, (OF_LOAD if self.max_loss.of_load else "max_loss", self.max_loss.text))

    @property
    def identity(self) -> dict[str, str]:
        """What makes two studies the same one: samples of another must not be mixed in."""
        request = self.request
        return {
            "workload": _target_identity(request),
            "program": " ".join(sha256_of(path)[:16] for path in _program_files(request)),
            **self.candidates.identity,
            "space": self.space.fingerprint(),
            "limit": ", ".join(f"{name} {text}" for name, text in self.limits) or "none",
            "seed": str(request.seed),
            **({"proved on": _proved_on(request.prove_on)} if request.prove_on else {}),
            **({"objectives": request.pareto} if request.pareto else {}),
            **({"sampler": request.sampler} if request.sampler != SPARSE else {}),
            **({} if request.panel is None else {"panel": "on" if request.panel else "off"}),
            **self._today,
        }

    @property
    def _today(self) -> dict[str, str]:
        """What identifies the unchanged program, where that is the control: its settings."""
        if self.space.holds(self.space.control):
            return {}
        return {"unchanged": _hashed(sorted(user_settings().items()))}


def understand(request: TuneRequest, *, look: bool = True) -> Task:
    """Judges a request; a session carries out what comes of it.

    Args:
        request: What was asked.
        look: Whether a program may be run once, to see which allocators are inside.

    Raises:
        UsageError: Something in it does not exist, is not legal, or cannot be tuned.
    """
    started = time.monotonic()
    if (request.workload is None) == (request.program is None):
        raise UsageError("give a workload (--workload NAME) or a program (-- PROGRAM), one of them")
    if not LEAST_STUDY_S <= request.budget_s <= MOST_STUDY_S:
        raise UsageError(
            f"--budget is {request.budget_s:g} s; legal is from {LEAST_STUDY_S:g}s to 7 days: "
            "less leaves no time to prove anything"
        )
    if request.trials is not None and request.trials < 1:
        raise UsageError(f"--trials is {request.trials}; legal is a number from 1 on")
    if not 0 <= request.seed <= MOST_SEED:
        raise UsageError(f"--seed is {request.seed}; legal is a number from 0 to {MOST_SEED}")
    if not 1 <= request.term_days <= MOST_TERM_DAYS:
        raise UsageError(
            f"--term is {request.term_days}; legal is a number of days from 1 to {MOST_TERM_DAYS}"
        )
    if request.resume and request.out is None:
        raise UsageError("--resume needs the directory to go on with: give it with --out DIR")
    if request.sampler != SPARSE:
        from hztune.study.proposer import sampler_named

        sampler_named(request.sampler, request.seed)
    limit = _memory_limit(request)
    _refuse_no_rest(request)
    _refuse_other_objectives(request)
    _refuse_panel(request)
    _refuse_prove_on(request)
    _refuse_elsewhere(request)
    if look and request.smallest_memory:
        _require_container(request)
    target, remarks = _target(request, look)
    target = replace(
        target,
        rests=request.needs_rest,
        keeping=request.allow_keeping,
        settings=user_settings(),
    )
    found = candidates(request.allocators, request.space, target)
    max_loss = _max_loss(request)
    judged_s = time.monotonic() - started if request.program is not None else 0.0
    return Task(request, found, limit, remarks, max_loss, judged_s)


def _memory_limit(request: TuneRequest) -> MemoryLimit | None:
    """The memory limits as one; None: there are none."""
    for option, text in (("--max-rss", request.max_rss), ("--max-kept", request.max_kept)):
        if text:
            _read(option, MemoryLimit.of, text)
    return memory_limit({"max_rss": request.max_rss, "max_kept": request.max_kept})


def _each(limit: MemoryLimit | None) -> Iterator[MemoryLimit]:
    if limit is not None:
        yield from limit.all()


def _refuse_no_rest(request: TuneRequest) -> None:
    """Sees to it that memory at rest can be read where it is needed.

    Raises:
        UsageError: There is no rest.
    """
    rests = [each.rest for each in request.workloads] or [each.rest for each in request.programs]
    if request.needs_rest and None in rests:
        raise UsageError(
            "--objective kept, --max-kept and --pareto throughput,kept read memory at rest, and "
            "nothing says how long it rests: give idle_s and rounds"
        )
    if request.seeks_kept and len(rests) > 1:
        raise UsageError("--objective kept is of one workload or program; tune for each alone")


def _require_container(request: TuneRequest) -> None:
    """Sees to it that the smallest memory can be sought, which comes when all else is measured.

    Raises:
        UsageError: There is no right to hold a run to a container.
    """
    try:
        with entered(Quota(request.quota.cpus if request.quota else None, LEAST_MEMORY_KB)):
            pass
    except UsageError as error:
        raise UsageError(f"--smallest-memory: {str(error).partition(': ')[2]}") from None


def _refuse_other_objectives(request: TuneRequest) -> None:
    """Sees to it that a front is one of what is made better, and of memory.

    Raises:
        UsageError: It is of something else.
    """
    if request.pareto and request.seeks_kept:
        raise UsageError(
            f"--pareto {request.pareto!r} and --objective kept exclude each other; a front of "
            "speed and memory at rest is --pareto throughput,kept"
        )
    goal = request.workload.goal if request.workload is not None else "throughput"
    if request.pareto and request.pareto not in (f"{goal},rss", f"{goal},kept"):
        raise UsageError(
            f"--pareto {request.pareto!r}: legal is {goal},rss, the speed that is sought and "
            f"peak memory, or {goal},kept, with memory at rest (and p99,rss or p99,kept beside "
            "--objective p99)"
        )


def _refuse_panel(request: TuneRequest) -> None:
    """Sees to it that a panel that was asked for can be had.

    Raises:
        UsageError: The study proves a front, or has no time for it.
    """
    if request.panel and request.pareto:
        raise UsageError("--panel is for one winner, and --pareto proves several; leave one out")
    if request.panel and not request.division.panel_s:
        raise UsageError(
            f"--panel has {100 * PANEL_SHARE:.0f} % of --budget, and needs {PANEL_LEAST_S:g} s of "
            f"it; legal with it is a budget from {math.ceil(PANEL_LEAST_S / PANEL_SHARE)}s on"
        )


def _refuse_elsewhere(request: TuneRequest) -> None:
    """Sees to it that a cluster can measure what is asked.

    Raises:
        UsageError: It cannot.
    """
    several = len(request.workloads) + len(request.programs) > 1
    here = {
        "--panel": request.panel,
        "--prove-on": request.prove_on,
        "--smallest-memory": request.smallest_memory,
        "several workloads or commands": several,
        "--server, --prepare or --cleanup": any(each.is_surrounded for each in request.programs),
    }
    if request.on and (given := [name for name, is_given in here.items() if is_given]):
        raise UsageError(f"{given[0]} and --on exclude each other: leave one out")


def _refuse_prove_on(request: TuneRequest) -> None:
    """Sees to it that what is found on one trace can be proved on its program.

    Raises:
        UsageError: It cannot.
    """
    program = request.prove_on
    if program is None:
        return
    if len(request.workloads) != 1 or not trace_file.is_trace(request.workloads[0].name):
        raise UsageError(
            "--prove-on is for one trace: hztune --workload trace:FILE --prove-on -- ./program"
        )
    others = {"--pareto": request.pareto, "--max-rss": request.max_rss}
    if given := [name for name, value in others.items() if value]:
        raise UsageError(f"--prove-on proves the speed of one winner; leave {given[0]} out")
    if request.workloads[0].goal != "throughput":
        raise UsageError("--prove-on proves the time of a program; leave --objective p99 out")
    if program.is_open:
        raise UsageError(f"--prove-on: give the program itself, not {OPEN}")
    if (obstacle := loaded_program.inspect(program.argv[0]).obstacle()) is not None:
        raise UsageError(f"--prove-on: {obstacle}")


def _read(option: str, parse: Callable[[str], _Limit], text: str) -> _Limit:
    """A limit, or an error that names the option it was given with."""
    try:
        return parse(text)
    except UsageError as error:
        raise UsageError(f"{option} {error}") from None


def _max_loss(request: TuneRequest) -> LossLimit | None:
    """What each of several workloads may lose.

    Raises:
        UsageError: It is not legal, there is one only, or they cannot be measured together.
    """
    limit = _read("--max-loss", LossLimit.of, request.max_loss)
    refuse_mixture(request.workloads)
    if request.seeks_kept:
        return LossLimit.of(request.max_loss, of_load=True)
    names = tuple(target.label for target in request.workloads or request.programs)
    if len(names) > 1:
        return replace(limit, workloads=names)
    if request.max_loss != DEFAULT_MAX_LOSS:
        raise UsageError(
            f"--max-loss {request.max_loss} is for several workloads or commands, and for "
            "--objective kept; what is claimed of one alone is a gain, so leave it out"
        )
    return None


def _target(request: TuneRequest, look: bool) -> tuple[TuneTarget, tuple[str, ...]]:
    """What is known of the target, and what is to be said of it.

    Raises:
        UsageError: It does not exist, or no allocator can be put under it and none is inside.
    """
    if request.workload is not None:
        if inside.ANY in request.allocator:
            raise UsageError(
                f"--allocator {request.allocator} is for a program of your own: "
                "hztune --allocator inside -- ./program"
            )
        for spec in request.workloads:
            spec.check()
        found = TuneTarget(request.threads or _MANY_THREADS)
        only = [
            f"{each.trace.name}: --prove-on -- ./program proves on the program what is found here"
            for each in request.workloads
            if each.trace is not None and request.prove_on is None
        ]
        return found, tuple(only)
    look_s = LOOK_SHARE * request.budget_s / len(request.programs) if look else 0.0
    seen = [_program_target(each, request.allocators, look_s) for each in request.programs]
    first, *others = (each for each, _ in seen)
    parts = tuple(part for part in first.inside if all(part in other.inside for other in others))
    provider = next((each.provider for each, _ in seen if each.provider is not None), None)
    obstacle = next((each.obstacle for each, _ in seen if each.obstacle is not None), None)
    remarks = tuple(dict.fromkeys(line for _, lines in seen for line in lines))
    return TuneTarget(_MANY_THREADS, parts, obstacle, provider), remarks


def _program_target(
    program: Program, wanted: Sequence[str], look_s: float
) -> tuple[TuneTarget, tuple[str, ...]]:
    """The same of one program, of which those allocators are wanted.

    Args:
        program: The program.
        wanted: The allocators.
        look_s: Seconds of the run that shows what is inside; 0: it is not run.
    """
    if program.is_open:
        raise UsageError(
            f"{OPEN} stands for the contenders of `hztune compare`; give the program itself"
        )
    found = loaded_program.inspect(program.argv[0])
    if found.gains_rights:
        raise UsageError(str(found.obstacle()))
    parts: tuple[Installed, ...] = ()
    if asks_inside(wanted):
        parts = insides.of_run(program, look_s) if look_s else insides.of_file(program)
    elif found.obstacle() is not None or "glibc" in wanted:
        parts = insides.of_file(program)
    remarks = found.remarks()
    if parts:
        remarks = (*found.of_scripts(), *map(insides.sentence, parts))
    provider = insides.provider_of(program, parts)
    return TuneTarget(_MANY_THREADS, parts, found.obstacle(), provider), remarks


def _target_identity(request: TuneRequest) -> str:
    """What is measured; a program's words may hold secrets, so that only their hash is kept."""
    if request.workload is not None:
        return request.label
    told = [_told(program) for program in request.programs]
    return f"{request.name} {_hashed(told if request.more else told[0])}"


def _proved_on(program: Program) -> str:
    """The same of the program on which the trace's winner is proved, with its file."""
    path = shutil.which(program.argv[0])
    return f"{program.label} {_hashed(_told(program))} {sha256_of(Path(path))[:16] if path else ''}"


def _told(program: Program) -> list[object]:
    """What a program is, as JSON can hold it."""
    around = [program.prepare, program.cleanup, program.check, program.metric]
    around += [program.by] if program.by else []
    around += [program.rest.text, program.rest.says] if program.rest else []
    around += ["kept"] if program.seeks_kept else []
    around += [program.quota.text] if program.quota else []
    around += [f"{program.input.size} bytes on stdin"] if program.input else []
    return [list(program.argv), around, asdict(program.service) if program.service else None]


def _program_files(request: TuneRequest) -> list[Path]:
    """The files that are run: another build of one is another target."""
    if request.program is None:
        return [artifacts.bench()]
    found = [shutil.which(program.argv[0]) for program in request.programs]
    return [Path(path) for path in found if path is not None]  # `understand` saw to it


def _hashed(told: object) -> str:
    """A short hash of values that JSON can hold."""
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]
