"""One session of a study: from a task, which is a judged request, to a directory with a verdict.

The result is the profile of what is emitted, those of a front, and the account.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.metadata import version as version_of
from pathlib import Path

from hztune import doctor, export, files, profile, version
from hztune.allocator import Installed
from hztune.blocks import Arm, Pair, spent_s
from hztune.errors import UsageError
from hztune.interrupt import interruptible
from hztune.machine import Machine
from hztune.measure import Executor, WorkloadSink
from hztune.measure.cluster import Client, ClusterExecutor, Target, cluster, first_machine
from hztune.measure.executors import Say, executor_for, say_nothing
from hztune.measure.program import CALLED, Program
from hztune.profile import (
    LIMIT_ROOM,
    PROFILE,
    AllocatorId,
    Caution,
    Claim,
    MachineId,
    MemoryClaim,
    Objective,
    Profile,
    SearchInfo,
    Share,
    WorkloadId,
)
from hztune.progress import Reporter, duration
from hztune.rests import MEMORIES, MemoryKind, RestPlan
from hztune.result import FRONT, Account, Decision, Result, ending, front_file, read
from hztune.result.kept import counter_changes, fresh_outcomes, kept_memory
from hztune.schema import TIME_FORMAT, as_text, as_word
from hztune.stats.intervals import REPORTED_ERROR, fixed_interval
from hztune.stats.noise import follow_on
from hztune.stats.ratios import logs_of
from hztune.store import Sink, kept_command
from hztune.store.log import SAMPLES, LocalStudy, Recording, is_there
from hztune.study.bench import Stop, Workbench, system_clock
from hztune.study.calibration import CALIBRATED_BY, PROVED_BY, SEARCHED_BY, Calibration
from hztune.study.ledger import Ledger
from hztune.study.limits import limits_of
from hztune.study.panel import PanelExecutor, make
from hztune.study.search import SLOTS
from hztune.tuning.on_program import LastProof
from hztune.tuning.request import Task, TuneRequest
from hztune.tuning.story import Front, Story, Winner
from hztune.workload import METRICS

_EXPORTS = {"env": "profile.env", "header": "hz_config.h"}


@contextmanager
def directory(task: Task) -> Iterator[Path]:
    """Makes the results directory, or finds the one to go on with; one that stays empty goes again.

    UsageError: it cannot be made, or holds no study to resume.
    """
    request = task.request
    path = request.out or _fresh_path(task)
    if request.resume and not is_there(path):
        raise UsageError(f"there is no study to resume in {str(path)!r} (it has no {SAMPLES})")
    is_new = not path.exists()
    files.make_folder(path)
    try:
        yield path
    finally:
        if not is_there(path):
            kept_command.place_of(path / PROFILE).unlink(missing_ok=True)
        if is_new:
            with suppress(OSError):  # there is something in it
                path.rmdir()


def write(result: Result) -> None:
    if (folder := result.folder) is None:
        return
    profile.save(result.profile, folder / PROFILE)
    for number, member in enumerate(result.front, start=1):
        (folder / FRONT).mkdir(exist_ok=True)
        profile.save(member, folder / front_file(number))
    for form, name in _EXPORTS.items():
        if form != "header" or result.profile.allocator.name == "hz":
            files.write_whole(folder / name, export.render(result.profile, form))


def _fresh_path(task: Task) -> Path:
    request = task.request
    words = [request.allocator.replace(",", "-"), request.name]
    if request.workload is not None:
        setting = request.workload.setting
        words += [*([setting] if setting else []), f"T{request.workload.threads}"]
    return files.fresh_results("-".join(words))


def tune(task: Task, reporter: Reporter) -> Result:
    """Carries out a study and writes its results.

    Ctrl-C (or SIGTERM) ends it with the best so far; a second one leaves at once, and then only the
    samples are there. UsageError: `out` holds another study. HztuneError: the measuring itself
    failed; the samples so far are kept.
    """
    request, started = task.request, time.monotonic() - task.judged_s
    with (
        interruptible() as asked,
        directory(task) as out,
        _measuring(request, out) as (machine, client),
        LocalStudy(out, task.identity, machine, resume=request.resume) as store,
    ):
        if (ended := store.ending) is not None:
            reporter.say("this study has ended and measures no more; a new one needs another --out")
            result = read(ended, out)
            write(result)  # once more, where it may have been lost
            return result
        kept_command.write(out / PROFILE, request.command)
        findings = () if client else doctor.remarks()
        for line in (*chosen_from(task), *task.remarks, *findings):
            reporter.say(line)
        inside = task.candidates.inside
        target = Target((*request.workloads, *request.programs), request.seed, 1 + SLOTS)
        executor = (
            ClusterExecutor(client, target, task.space.control, store, machine)
            if client
            else executor_of(request, machine, store, inside, reporter.say)
        )
        panel = panel_of(request, machine, store)
        last = last_proof_of(request, machine, store, reporter.say)
        story = _story(task, executor, store, reporter, asked.is_set, panel, last)
        with story.bench.budget.running():
            decision = story.run()
        wall_s = time.monotonic() - started
        result = result_of(task, machine, story, decision, wall_s, store.folder)
        # First of all beside the samples: an ended study stays as it ended. Going on with it would
        # be another look at the same data, which the error of its claim does not allow for.
        if decision.verdict != "interrupted":
            store.conclude(ending(result))
        write(result)
        return result


@contextmanager
def _measuring(request: TuneRequest, out: Path) -> Iterator[tuple[Machine, Client | None]]:
    """The machine that proves, and the cluster that measures; None: this machine does."""
    if not request.on:
        yield Machine.here(), None
        return
    with cluster(request.on) as client:
        there = Recording.of(out / SAMPLES) if is_there(out) else None
        yield there.machine if there else first_machine(client), client


def plan(task: Task) -> list[str]:
    """What a study would do, in lines for a reader; nothing is measured or written."""
    request, searched = task.request, task.space
    shares = (CALIBRATED_BY, SEARCHED_BY, PROVED_BY)
    budget = request.budget()
    ends = [duration(share * budget.total_s) for share in shares]
    sought = [f"objectives: {request.pareto} (a front)"] if request.pareto else []
    proofs = f"{'all members' if request.pareto else 'each parameter'} proved by {ends[2]}"
    if budget.reserved_s:
        proofs += f", {duration(budget.reserved_s)} for the panel"
    if request.prove_on is not None:
        proofs += f", {duration(budget.kept_s)} for {request.prove_on.label} itself"
    lines = [
        f"workload: {request.label}",
        *sought,
        *chosen_from(task),
        f"space: {len(searched.dimensions)} parameters, at most {searched.size():.2g} "
        f"configurations, {len(searched.starts)} presets",
        f"budget: {duration(request.budget_s)}; calibrated by {ends[0]}, searched by {ends[1]}, "
        + proofs,
    ]
    for dimension in searched.dimensions:
        values = " ".join(str(value) for value in dimension.values)
        when = f" (when {dimension.when.text})" if dimension.when else ""
        lines.append(f"  {dimension.name}: {values}{when}")
    return lines


def chosen_from(task: Task) -> list[str]:
    several = len(task.candidates.installed) > 1
    lines = [f"{'allocators' if several else 'allocator'}: {task.candidates.label}"]
    if task.candidates.missing:
        lines.append(f"not installed: {', '.join(task.candidates.missing)}")
    if task.candidates.left_out:
        lines.append(f"left out: {', '.join(task.candidates.left_out)}")
    return lines


def executor_of(
    request: TuneRequest,
    machine: Machine,
    sink: Sink,
    inside: Sequence[Installed] = (),
    say: Say = say_nothing,
) -> Executor:
    # a run that takes longer than the whole study is of no use to it
    programs = [
        replace(program, timeout_s=min(program.timeout_s, request.budget_s))
        for program in request.programs
    ]
    return executor_for(
        programs or request.workloads,
        sink,
        seed=request.seed,
        machine=machine,
        processes=1 + SLOTS,
        inside=inside,
        say=say,
    )


def _story(
    task: Task,
    executor: Executor,
    store: LocalStudy,
    reporter: Reporter,
    stop: Stop,
    panel: Sequence[PanelExecutor],
    last: LastProof | None = None,
) -> Story:
    asked, blocks = task.request, store.replay()
    budget = asked.budget(system_clock)
    budget.spent_s = spent_s(blocks) + task.judged_s
    limits = limits_of(asked.limits, [each.label for each in asked.targets])
    ledger = Ledger.of(blocks, *limits, store.machine, asked.weighed)
    executor.recall(ledger.own_blocks())
    return (Front if asked.pareto else Winner)(
        Workbench(executor, ledger, budget, reporter, stop, note=store.note),
        task.space,
        asked.seed,
        asked.trials,
        panel,
        last,
        asked.sampler,
    )


def last_proof_of(request: TuneRequest, machine: Machine, sink: Sink, say: Say) -> LastProof | None:
    program = request.prove_on
    if program is None:
        return None
    executor = executor_for(
        [program],
        WorkloadSink(sink, as_word(program.label)),
        seed=request.seed,
        machine=machine,
        say=lambda words: say(f"{program.label}: {words}"),
    )
    return LastProof(executor, as_word(program.label))


def panel_of(request: TuneRequest, machine: Machine, sink: Sink) -> tuple[PanelExecutor, ...]:
    if not request.budget().reserved_s:
        return ()
    tuned = [spec.name for spec in request.workloads]
    return make(sink, seed=request.seed, machine=machine, threads=request.threads, tuned=tuned)


_LEAST_PAIRS = 3


def result_of(
    task: Task,
    machine: Machine,
    story: Story,
    decision: Decision,
    wall_s: float,
    folder: Path | None,
) -> Result:
    """The result of a study that came to a decision; `wall_s` is this session's own time."""
    ledger = story.bench.ledger
    now = time.strftime(TIME_FORMAT, time.gmtime())  # the same for all
    made, *front = (
        profile_of(task, machine, each, ledger, now) for each in (decision, *decision.front)
    )
    return Result(made, account_of(story, decision, wall_s), tuple(front), folder)


# ---- the profile ---------------------------------------------------------------------------------


def profile_of(
    task: Task, machine: Machine, decision: Decision, ledger: Ledger, created: str
) -> Profile:
    request = task.request
    pairs = fresh_outcomes(decision.on_program or ledger, decision.arm)
    parts = [part for _, tuned in pairs for part in tuned.parts or (tuned,)]
    peak_kb = max((part.rss_peak_kb for part in parts), default=0)
    metric = metric_of(request)
    arm, space, workload = decision.arm, task.space, _identities(request)[0]
    own = space.part(arm.allocator).reduced(arm.config) if space.holds(arm) else {}
    control = "" if space.holds(space.control) else space.control.allocator
    # The expression that says when it rests is the user's own, and stays here.
    rest = request.rest and RestPlan(request.rest.idle_s, request.rest.rounds)
    found_on, program = None, request.program
    if decision.on_program and request.prove_on is not None:
        program, found_on = request.prove_on, workload
        workload, metric = _program_id(program), "metric" if program.rate else "wall_s"
    return Profile(
        allocator=AllocatorId.of(task.candidates.find(decision.arm.allocator)),
        params=dict(own),
        workload=workload,
        threads=0 if program else request.threads,
        machine=MachineId.of(machine),
        objective=Objective(metric, request.limits, control, rest, request.quota),
        claim=_claim(metric, decision, ledger.memory),
        search=SearchInfo(
            sampler=as_word(f"optuna-{request.sampler}"),
            seed=request.seed,
            budget_s=request.budget_s,
            trials=len(ledger.searched),
            space_sha256=task.space.fingerprint(),
        ),
        versions={
            "hztune": version(),
            "optuna": version_of("optuna"),
            "numpy": version_of("numpy"),
            "python": platform.python_version(),
        },
        created=created,
        shares=_shares(request, decision),
        cautions=tuple(_cautions(task, decision)),
        found_on=found_on,
        term_days=request.term_days,
        memory=tuple(_memory(pairs)),
        suggested_limit_kb=1024 * math.ceil(LIMIT_ROOM * peak_kb / 1024) if program else 0,
    )


def _claim(metric: str, decision: Decision, weighed: MemoryKind) -> Claim:
    seen, saved = decision.interval, decision.memory
    if seen is None:
        return Claim(metric, None, None, None, 0, decision.verdict)
    taken = MemoryClaim(*saved.ratio, weighed) if saved else None
    return Claim(metric, *seen.ratio, seen.pairs, decision.verdict, taken)


def _memory(pairs: Sequence[Pair]) -> Iterator[MemoryClaim]:
    for kind in MEMORIES:
        if len(logs := logs_of(kind, pairs)) >= _LEAST_PAIRS:
            yield MemoryClaim(*fixed_interval(logs, REPORTED_ERROR).ratio, kind)


def _cautions(task: Task, decision: Decision) -> Iterator[Caution]:
    """What to warn of: what the panel saw, known risks that it did not, proof on a trace only."""
    arm, examined = decision.arm, decision.examined
    if examined is not None and examined.arm == arm:
        yield from examined.cautions
    for spec in task.request.workloads if not decision.on_program else ():
        if spec.trace is not None:
            said = f"{as_text(spec.trace.name)}: proved on a trace only, not on its program"
            yield Caution("trace", said, workload=spec.name)
    if any(each.call for each in task.request.programs):
        yield Caution("unseen", CALLED)
    looked_at = set(examined.winner.params) if examined is not None else set()
    if task.space.holds(arm):
        for params, risk in task.space.part(arm.allocator).known_risks(arm.config):
            if not params.items() <= looked_at:
                yield Caution("known", risk, params=dict(params))


def _program_id(program: Program) -> WorkloadId:
    words = profile.hash_of_words(program.argv)
    return WorkloadId("program", as_word(program.label), "", {}, words)


def _identities(request: TuneRequest) -> list[WorkloadId]:
    if request.program is None:
        return [
            WorkloadId("bench", spec.name, spec.setting, dict(spec.params))
            for spec in request.workloads
        ]
    return [_program_id(each) for each in request.programs]


def _shares(request: TuneRequest, decision: Decision) -> tuple[Share, ...]:
    identities = _identities(request)
    if len(identities) == 1:
        return ()
    intervals = decision.each or [None] * len(identities)
    return tuple(
        Share(identity, *(interval.ratio if interval else (None, None, None)))
        for identity, interval in zip(identities, intervals, strict=True)
    )


def metric_of(request: TuneRequest) -> str:
    """What is made better: a workload's goal, runs a second, or the program's own metric."""
    if request.workload is not None:
        return METRICS[request.workload.goal]
    if request.seeks_kept:
        return METRICS["kept"]
    return "metric" if request.program is not None and request.program.rate else "wall_s"


# ---- the account ---------------------------------------------------------------------------------


def account_of(story: Story, decision: Decision, wall_s: float) -> Account:
    bench, calibration = story.bench, decision.calibration
    used = bench.executor.accounting
    used = sum((each.accounting for each in story.panel), used)
    wall = max(wall_s, 1e-9)
    ledger = decision.on_program or bench.ledger
    record = ledger.fresh_by_arm.get(decision.arm.key)
    seen, within = _as_they_come(story)
    pairs = fresh_outcomes(ledger, decision.arm)
    return Account(
        why=decision.why,
        failures=bench.ledger.failures(),
        attempts=decision.proofs,
        added=tuple(step for step in decision.steps if step.interval is not None),
        noise_floor=math.expm1(calibration.floor) if calibration else None,
        detectable=math.expm1(calibration.detectable) if calibration else None,
        findable=_findable(story, calibration),
        wall_s=wall_s,
        measured_share=(used.measured_s + used.warmup_s) / wall,
        warmup_share=used.warmup_s / wall,
        turns=used.turns,
        disturbed=used.disturbed,
        waited_s=bench.budget.waited_s,
        changes=counter_changes(pairs),
        rss_ratio=record.ratio_of("rss") if record else None,
        as_they_come=seen,
        seen_within=within,
        follow_on=follow_on(record.log_ratios) if record else None,
        elsewhere=decision.examined.seen if decision.examined else (),
        left_out=decision.examined.left_out if decision.examined else (),
        kept=kept_memory(pairs, ledger.calm_controls),
    )


def _findable(story: Story, calibration: Calibration | None) -> float | None:
    """The least gain that the search finds; None: no winner was sought, or no block fitted."""
    if calibration is None or calibration is not story.calibration:
        return None
    if not story.bench.ledger.searched:
        return None
    return math.expm1(calibration.findable) if isinstance(story, Winner) else None


def _as_they_come(story: Story) -> tuple[dict[str, float | str], dict[str, float]]:
    seen: dict[str, float | str] = {}
    within: dict[str, float] = {}
    if story.space.holds(story.control):
        return seen, within
    ledger = story.bench.ledger
    for name in (part.allocator for part in story.space.parts):
        record = ledger.searched.get(Arm(name).key)
        if record is not None and record.failures:
            seen[name] = record.failures[-1].status
        elif record is not None and (found := ledger.interval(record)) is not None:
            seen[name], within[name] = found.ratio.estimate, found.half_width
    return seen, within
