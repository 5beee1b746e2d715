"""What the user asked for; every mistake in it is found before anything is written."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from hztune import artifacts
from hztune.allocator import Installed, inside, loaded_program
from hztune.arguments import SPARSE, listed, within
from hztune.errors import UsageError
from hztune.files import sha256_of
from hztune.measure import insides
from hztune.measure.executors import refuse_mixture
from hztune.measure.identity import user_settings
from hztune.measure.program import CALLED, OPEN, Program
from hztune.profile import MOST_SEED, MOST_TERM_DAYS, TERM_DAYS
from hztune.quota import Quota
from hztune.rests import DEFAULT_IDLE_S, MemoryKind, RestPlan, weighed_memory
from hztune.space import AnySpace
from hztune.study.bench import PANEL_LEAST_S, PANEL_SHARE, Budget, Clock
from hztune.study.limits import OF_LOAD, limits_of
from hztune.tuning.candidates import ANY_ALLOCATOR, AllocatorChoice, TuneTarget, candidates
from hztune.workload import Goal, WorkloadSpec, is_trace

DEFAULT_BUDGET_S = 180.0
DEFAULT_MAX_LOSS = "5%"  # what a proof can show of no loss, see `LossLimit`

LEAST_STUDY_S = 20.0
MOST_STUDY_S = 7 * 86400.0

LOOK_SHARE = 0.1  # of a budget, for the runs that show which allocators are inside of programs

_MANY_THREADS = 1024  # of a program that decides for itself: they narrow no range


@dataclass(frozen=True, slots=True)
class TuneRequest:
    workload: WorkloadSpec | None = None  # a built-in one; None: a program of the user's
    program: Program | None = None
    allocator: str = "hz"  # whose configuration is sought: names with commas, or `any`
    space: str = ""  # name or path of the search space; "": the allocator's own
    budget_s: float = DEFAULT_BUDGET_S
    trials: int | None = None  # most configurations to search; None: as time allows
    seed: int = 1  # of everything that is chosen at random
    out: Path | None = None  # None: a new one under hztune-results/
    resume: bool = False  # go on with the study that is there
    max_rss: str = ""  # memory limit as written, "1.10x" or "512M"; "": none
    max_kept: str = ""  # the same of what is kept at rest
    beside: tuple[WorkloadSpec, ...] = ()  # further ones that the same profile is for
    # what each of several workloads may lose; for memory at rest: the speed of the load
    max_loss: str = DEFAULT_MAX_LOSS
    pareto: str = ""  # the objectives of a front, "throughput,rss"; "": speed alone
    panel: bool | None = None  # None: a workload has one, if there is time for it
    more: tuple[Program, ...] = ()  # further ones, each with a name
    prove_on: Program | None = None  # of the trace that is searched on
    term_days: int = TERM_DAYS  # after which the profile should be measured again
    command: tuple[str, ...] = ()  # the words that asked, kept beside the profile; (): none
    allow_keeping: bool = False  # try settings that never return freed memory
    on: str = ""  # a Dask scheduler, "tcp://HOST:8786"; "": this machine measures
    sampler: str = SPARSE  # or one of SAMPLERS, or "module:Class"

    @property
    def workloads(self) -> tuple[WorkloadSpec, ...]:
        return (self.workload, *self.beside) if self.workload is not None else ()

    @property
    def programs(self) -> tuple[Program, ...]:
        return (self.program, *self.more) if self.program is not None else ()

    @property
    def seeks_kept(self) -> bool:
        """Whether what stays at rest is made less, and not the speed better."""
        if self.workload is not None:
            return self.workload.goal == "kept"
        return self.program is not None and self.program.seeks_kept

    @property
    def weighed(self) -> MemoryKind:
        return weighed_memory(self.pareto)

    @property
    def needs_rest(self) -> bool:
        return self.seeks_kept or self.weighed == "kept" or bool(self.max_kept)

    @property
    def targets(self) -> Sequence[WorkloadSpec] | Sequence[Program]:
        return self.workloads or self.programs

    @property
    def rest(self) -> RestPlan | None:
        return next((each.rest for each in self.targets), None)

    @property
    def quota(self) -> Quota | None:
        return next((each.quota for each in self.targets), None)

    @property
    def limits(self) -> dict[str, str]:
        """As the user wrote them, by the names that a profile has for them."""
        texts = {"max_rss": self.max_rss, "max_kept": self.max_kept}
        if self.seeks_kept:
            texts[OF_LOAD] = self.max_loss
        elif len(self.targets) > 1:
            texts["max_loss"] = self.max_loss
        return {name: text for name, text in texts.items() if text}

    @property
    def allocators(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(listed(self.allocator)))

    @property
    def label(self) -> str:
        return ", ".join(target.label for target in self.targets)

    def budget(self, clock: Clock = lambda: 0.0) -> Budget:
        """Its time, divided; the clock runs from now on."""
        is_workload = self.workload is not None
        wants_panel = self.panel if self.panel is not None else is_workload and not self.on
        is_there = wants_panel and not self.pareto
        of_program = self.prove_on is not None
        return Budget.divided(clock, self.budget_s, panel=is_there, program=of_program)

    @property
    def name(self) -> str:
        names = [spec.name for spec in self.workloads] or [each.label for each in self.programs]
        return "+".join(names)

    @property
    def threads(self) -> int:
        return self.workload.threads if self.workload else 0


@dataclass(frozen=True, slots=True)
class Task:
    request: TuneRequest
    candidates: AllocatorChoice  # the allocators, and what may be proposed for them
    remarks: tuple[str, ...] = ()  # on the target, for the user, before it is measured
    judged_s: float = 0.0  # that judging a program took, with the run that shows what is inside

    @property
    def space(self) -> AnySpace:
        return self.candidates.space

    @property
    def identity(self) -> dict[str, str]:
        request, settings = self.request, _hashed(sorted(user_settings().items()))
        return {
            "workload": _target_identity(request),
            "program": " ".join(sha256_of(path)[:16] for path in _program_files(request)),
            **self.candidates.identity,
            "space": self.space.fingerprint(),
            "limit": ", ".join(f"{name} {text}" for name, text in self.request.limits.items())
            or "none",
            "seed": str(request.seed),
            **({"proved on": _proved_on(request.prove_on)} if request.prove_on else {}),
            **({"objectives": request.pareto} if request.pareto else {}),
            **({"sampler": request.sampler} if request.sampler != SPARSE else {}),
            **({} if request.panel is None else {"panel": "on" if request.panel else "off"}),
            **({} if self.space.holds(self.space.control) else {"unchanged": settings}),
        }


def understand(request: TuneRequest, *, look: bool = True) -> Task:
    """Judges a request; a session carries it out. UsageError: something in it cannot be tuned.

    `look`: whether a program may be run once, to see which allocators are inside.
    """
    started = time.monotonic()
    within("--budget", request.budget_s, LEAST_STUDY_S, MOST_STUDY_S)
    within("--trials", 1 if request.trials is None else request.trials, 1, math.inf)
    within("--seed", request.seed, 0, MOST_SEED)
    within("--term", request.term_days, 1, MOST_TERM_DAYS)
    if request.sampler != SPARSE:
        from hztune.study.proposer import sampler_named  # a second, for those who ask for one

        sampler_named(request.sampler, request.seed)
    limits_of(request.limits)
    for is_wrong, sentence in _mistakes(request):
        if is_wrong:
            raise UsageError(sentence)
    refuse_mixture(request.workloads)
    target, remarks = _target(request, look)
    target = replace(
        target,
        rests=request.needs_rest,
        keeping=request.allow_keeping,
        variables=os.environ,
    )
    found = candidates(request.allocators, request.space, target)
    judged_s = time.monotonic() - started if request.program is not None else 0.0
    return Task(request, found, remarks, judged_s)


_SEVERAL = "several workloads or commands"
_AROUND = "--server, --prepare, --cleanup, --check or --metric-cmd"
_EXCLUDING = (
    ("--pareto", "--objective kept"), ("--pareto", "--panel"), (_SEVERAL, "--objective kept"),
    ("--prove-on", "--pareto"), ("--prove-on", "--max-rss"), ("--prove-on", "--objective p99"),
    ("--prove-on", "--objective kept"), ("measure", "--max-rss"), ("measure", "--pareto"),
    ("measure", "--on"), ("--panel", "--on"), ("--prove-on", "--on"), (_SEVERAL, "--on"),
    (_AROUND, "--on"),
)  # fmt: skip


def _excluding(request: TuneRequest) -> Iterator[tuple[bool, str]]:
    goal = request.workload.goal if request.workload is not None else "throughput"
    given = {
        "--pareto": bool(request.pareto),
        "--panel": bool(request.panel),
        "--prove-on": request.prove_on is not None,
        "--max-rss": bool(request.max_rss),
        "--on": bool(request.on),
        "--objective kept": request.seeks_kept,
        "--objective p99": goal == "p99",
        "measure": any(each.call for each in request.programs),
        _SEVERAL: len(request.targets) > 1,
        _AROUND: any(each.service or each.shell_commands for each in request.programs),
    }
    for one, other in _EXCLUDING:
        yield given[one] and given[other], f"{one} and {other} exclude each other: leave one out"


def _mistakes(request: TuneRequest) -> Iterator[tuple[bool, str]]:
    yield (
        (request.workload is None) == (request.program is None),
        "give a workload (--workload NAME) or a program (-- PROGRAM), one of them",
    )
    yield (
        request.resume and request.out is None,
        "--resume needs the directory to go on with: give it with --out DIR",
    )
    yield from _excluding(request)
    yield (
        request.needs_rest and not all(each.rest for each in request.targets),
        "--objective kept, --max-kept and --pareto throughput,kept read memory at rest, and "
        "nothing says how long it rests: give idle_s and rounds",
    )
    goal = request.workload.goal if request.workload is not None else "throughput"
    yield (
        request.pareto not in ("", f"{goal},rss", f"{goal},kept"),
        f"--pareto {request.pareto!r}: legal is {goal},rss, the speed that is sought and "
        f"peak memory, or {goal},kept, with memory at rest (and p99,rss or p99,kept beside "
        "--objective p99)",
    )
    yield (
        bool(request.panel and not request.budget().reserved_s),
        f"--panel has {100 * PANEL_SHARE:.0f} % of --budget, and needs {PANEL_LEAST_S:g} s of "
        f"it; legal with it is a budget from {math.ceil(PANEL_LEAST_S / PANEL_SHARE)}s on",
    )
    yield (
        request.max_loss not in (DEFAULT_MAX_LOSS, *request.limits.values()),
        f"--max-loss {request.max_loss} is for several workloads or commands, and for "
        "--objective kept; what is claimed of one alone is a gain, so leave it out",
    )
    program = request.prove_on
    if program is None:
        return
    yield (
        len(request.workloads) != 1 or not is_trace(request.workloads[0].name),
        "--prove-on is for one trace: hztune --workload trace:FILE --prove-on -- ./program",
    )
    yield program.is_open, f"--prove-on: give the program itself, not {OPEN}"
    obstacle = loaded_program.inspect(program.argv[0]).obstacle
    yield obstacle is not None, f"--prove-on: {obstacle}"


def _target(request: TuneRequest, look: bool) -> tuple[TuneTarget, tuple[str, ...]]:
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
    linked = [path for path in first.linked if all(path in other.linked for other in others)]
    return TuneTarget(_MANY_THREADS, parts, obstacle, provider, linked=linked), remarks


def _program_target(
    program: Program, wanted: Sequence[str], look_s: float
) -> tuple[TuneTarget, tuple[str, ...]]:
    if program.is_open:
        raise UsageError(
            f"{OPEN} stands for the contenders of `hztune compare`; give the program itself"
        )
    if program.call is not None:
        return TuneTarget(_MANY_THREADS), (CALLED,)
    found = loaded_program.inspect(program.argv[0])
    if found.gains_rights:
        raise UsageError(str(found.obstacle))
    parts: tuple[Installed, ...] = ()
    if any(name == ANY_ALLOCATOR or name.startswith(inside.ANY) for name in wanted):
        parts = insides.of_run(program, look_s) if look_s else insides.of_file(program)
    elif found.obstacle is not None or "glibc" in wanted:
        parts = insides.of_file(program)
    remarks = found.remarks
    if parts:
        remarks = (*found.of_scripts, *map(insides.sentence, parts))
    provider = insides.provider_of(program, parts)
    linked = loaded_program.libraries(found.program)
    return TuneTarget(_MANY_THREADS, parts, found.obstacle, provider, linked=linked), remarks


def needs_rest(objective: Goal, others: Mapping[str, object]) -> bool:
    weighed = weighed_memory(str(others.get("pareto", "")))
    return objective == "kept" or weighed == "kept" or bool(others.get("max_kept"))


def resting_plan(
    idle_s: float, rounds: int | None, objective: Goal, others: Mapping[str, object]
) -> RestPlan | None:
    """The rounds of load and rest of a workload; None: it is not looked at while it rests.

    `idle_s`, `rounds`: 0 or None: not said. UsageError: a number is not legal.
    """
    if not (idle_s or rounds is not None or needs_rest(objective, others)):
        return None
    return RestPlan(idle_s or DEFAULT_IDLE_S, 1 if rounds is None else rounds)


def resting_program(program: Program, objective: Goal, others: Mapping[str, object]) -> Program:
    """A program that is looked at while it rests, if needed; UsageError: nothing says when."""
    if not needs_rest(objective, others):
        return program
    return replace(program.resting(), seeks_kept=objective == "kept")


def _target_identity(request: TuneRequest) -> str:
    """What is measured; a program's words may hold secrets, so that only their hash is kept."""
    if request.workload is not None:
        return request.label
    told = [_told(program) for program in request.programs]
    return f"{request.name} {_hashed(told if request.more else told[0])}"


def _proved_on(program: Program) -> str:
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
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]
