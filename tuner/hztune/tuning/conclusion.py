"""From a decision to the result: the profile of what is emitted, of a front, and the account."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version as version_of
from pathlib import Path

from hztune import profile, version
from hztune.blocks import Arm, Pair
from hztune.machine import Machine
from hztune.measure.program import CALLED, Program
from hztune.profile import (
    LIMIT_ROOM,
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
from hztune.rests import MEMORIES, MemoryKind, RestPlan
from hztune.result import Account, Decision, Result
from hztune.result.kept import counter_changes, fresh_outcomes, kept_memory
from hztune.schema import TIME_FORMAT, as_text, as_word
from hztune.stats.intervals import REPORTED_ERROR, fixed_interval
from hztune.stats.noise import follow_on
from hztune.stats.ratios import logs_of
from hztune.study.calibration import Calibration
from hztune.study.ledger import Ledger
from hztune.tuning.request import Task, TuneRequest
from hztune.tuning.story import Story, Winner
from hztune.workload import METRICS

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
    made, *front = (profile_of(task, machine, each, ledger) for each in (decision, *decision.front))
    return Result(made, account_of(story, decision, wall_s), tuple(front), folder)


# ---- the profile ---------------------------------------------------------------------------------


def profile_of(task: Task, machine: Machine, decision: Decision, ledger: Ledger) -> Profile:
    request = task.request
    pairs = fresh_outcomes(decision.on_program or ledger, decision.arm)
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
        created=time.strftime(TIME_FORMAT, time.gmtime()),
        shares=_shares(request, decision),
        cautions=tuple(_cautions(task, decision)),
        found_on=found_on,
        term_days=request.term_days,
        memory=tuple(_memory(pairs)),
        suggested_limit_kb=_suggested_limit(pairs) if program else 0,
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


def _suggested_limit(pairs: Sequence[Pair]) -> int:
    """A memory limit with room above the largest peak of the configuration, KiB in whole MiB."""
    parts = [part for _, tuned in pairs for part in tuned.parts or (tuned,)]
    return 1024 * math.ceil(LIMIT_ROOM * max((p.rss_peak_kb for p in parts), default=0) / 1024)


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
