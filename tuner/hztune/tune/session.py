"""One session of a study: from a request to a directory with a verdict in it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hztune import profile
from hztune.blocks import Block, times_of
from hztune.interrupt import interruptible
from hztune.machine import Machine
from hztune.measure import Executor
from hztune.measure.workloads import program_executor, workloads_executor
from hztune.profile import Profile, Verdict
from hztune.progress import Reporter, duration
from hztune.search import SLOTS
from hztune.store import Sink
from hztune.store.local import LocalStudy
from hztune.trial import Bench, Budget, Ledger, SystemClock
from hztune.tune import results, story
from hztune.tune.pareto_story import ParetoStory
from hztune.tune.request import Task, TuneRequest, understand
from hztune.tune.story import Decision, Story
from hztune.tune.summary import Summary, summarize

_EXIT_STATUS: dict[Verdict, int] = {
    "improved": 0,
    "within_limit": 0,
    "less_memory": 0,
    "no_gain": 0,
    "infeasible": 3,
    "interrupted": 130,
}


@dataclass(frozen=True, slots=True)
class Tuned:
    """What a session leaves.

    Attributes:
        profile: Also in the results directory.
        summary: The account of the study.
        out: The results directory; of a worker that writes none the current one.
        front: The profiles of a front's members, beside the profile; empty where there is none.
    """

    profile: Profile
    summary: Summary
    out: Path
    front: tuple[Profile, ...] = ()

    @property
    def exit_status(self) -> int:
        """What the command exits with, unless a gain was required."""
        return _EXIT_STATUS[self.profile.result.verdict]


def tune(request: TuneRequest, reporter: Reporter) -> Tuned:
    """Carries out a study and writes its results.

    Ctrl-C (or SIGTERM) ends it with the best so far; a second one leaves at once, and then only the
    samples are there.

    Raises:
        UsageError: The request is not legal; nothing was written.
        HztuneError: The measuring itself failed; the samples so far are kept.
    """
    started = time.monotonic()
    task = understand(request)
    machine = Machine.here()
    folder = results.directory(task)
    with interruptible() as asked, _store(task, machine, folder) as store:
        if (ending := store.ending()) is not None:
            reporter.say("this study has ended and measures no more; a new one needs another --out")
            return told_again(ending, folder)
        for line in (*chosen_from(task), *task.remarks):
            reporter.say(line)
        executor = executor_of(request, machine, store)
        study = _study(task, executor, store, reporter)
        study.bench.stop = asked.is_set
        decision = study.run()
        return _finish(task, machine, study, decision, store, started)


def plan(request: TuneRequest) -> list[str]:
    """What a study would do, in lines for a reader; nothing is measured or written.

    Raises:
        UsageError: The request is not legal.
    """
    task = understand(request)
    searched = task.space
    shares = (story.CALIBRATED_BY, story.SEARCHED_BY, story.PROVED_BY, story.SEALED_BY)
    ends = [duration(share * request.budget_s) for share in shares]
    sought = [f"objectives: {request.pareto} (a front)"] if request.pareto else []
    proofs = f"confirmed by {ends[2]}, sealed by {ends[3]}"
    if request.pareto:
        proofs = f"all members confirmed by {ends[3]}"
    lines = [
        f"workload: {request.label}",
        *sought,
        *chosen_from(task),
        f"space: {len(searched.dimensions)} parameters, at most {searched.size():.2g} points, "
        f"{len(searched.presets)} presets",
        f"budget: {duration(request.budget_s)}; calibrated by {ends[0]}, searched by {ends[1]}, "
        + proofs,
    ]
    for dimension in searched.dimensions:
        values = " ".join(str(value) for value in dimension.values)
        share = f" as 1/n of {dimension.share_of}, n =" if dimension.share_of else ":"
        when = f" (when {dimension.when.text})" if dimension.when else ""
        lines.append(f"  {dimension.name}{share} {values}{when}")
    return lines


def chosen_from(task: Task) -> list[str]:
    """Which allocators are compared, with what, and which could not be."""
    several = len(task.candidates.installed) > 1
    lines = [f"{'allocators' if several else 'allocator'}: {task.candidates.label}"]
    if task.candidates.missing:
        lines.append(f"not installed: {', '.join(task.candidates.missing)}")
    return lines


def executor_of(request: TuneRequest, machine: Machine, sink: Sink) -> Executor:
    """What measures: turns where the workload is steady, whole runs for everything else."""
    if request.program is not None:
        return program_executor(request.program, sink, seed=request.seed, machine=machine)
    return workloads_executor(
        request.workloads, sink, seed=request.seed, machine=machine, processes=1 + SLOTS
    )


def _store(task: Task, machine: Machine, folder: Path) -> LocalStudy:
    return LocalStudy(folder, task.identity, machine, resume=task.request.resume)


def _study(task: Task, executor: Executor, store: LocalStudy, reporter: Reporter) -> Story:
    blocks = store.replay()
    budget = Budget(SystemClock(), task.request.budget_s, spent_s=_spent(blocks))
    ledger = Ledger.of(blocks, task.limit, task.max_loss, store.machine)
    executor.recall(ledger.here())
    return study_of(task, Bench(executor, ledger, budget, reporter), task.request.seed)


def study_of(task: Task, bench: Bench, seed: int) -> Story:
    """The story that was asked for: of one winner, or of a front."""
    kind = ParetoStory if task.request.pareto else Story
    return kind(bench, task.space, seed, task.request.trials)


def _spent(blocks: Iterable[Block]) -> float:
    """Seconds that the blocks of earlier sessions took, with what lies between them."""
    return max((end for _, end in times_of(blocks)), default=0.0)


def _finish(
    task: Task,
    machine: Machine,
    study: Story,
    decision: Decision,
    store: LocalStudy,
    started: float,
) -> Tuned:
    """Writes what came out, first of all beside the samples: an ended study stays as it ended.

    Going on with it would be another look at the same data, which the error of its claim does not
    allow for. Only an interrupted study has no end.
    """
    folder = store.folder
    tuned = account(task, machine, study, decision, time.monotonic() - started, folder)
    if decision.verdict != "interrupted":
        store.conclude(ending_of(tuned))
    results.write(tuned.profile, folder, tuned.front)
    return tuned


def account(
    task: Task,
    machine: Machine,
    study: Story,
    decision: Decision,
    wall_s: float,
    folder: Path | None,
) -> Tuned:
    """The profile and the account of a study that came to a decision; nothing is written."""
    trials = study.bench.ledger.trials
    made, *front = (
        results.build_profile(task, machine, each, trials) for each in (decision, *decision.front)
    )
    labels = [spec.label for spec in task.request.workloads]
    summary = summarize(study, decision, wall_s, folder, labels)
    return Tuned(made, summary, folder or Path(), tuple(front))


def ending_of(tuned: Tuned) -> dict[str, Any]:
    """What an ended study keeps of itself."""
    front = [_stored(member) for member in tuned.front]
    return {
        "profile": _stored(tuned.profile),
        "summary": tuned.summary.to_json(),
        **({"front": front} if front else {}),
    }


def told_again(ending: Mapping[str, Any], folder: Path | None) -> Tuned:
    """What an ended study said, written once more where it may have been lost."""
    made = _read_again(ending["profile"])
    front = tuple(_read_again(each) for each in ending.get("front", ()))
    if folder is not None:
        results.write(made, folder, front)
    return Tuned(made, Summary.from_json(ending["summary"], folder), folder or Path(), front)


def _stored(made: Profile) -> Any:
    """A profile as it stands beside the samples."""
    return json.loads(profile.dumps(made))


def _read_again(stored: Any) -> Profile:
    return profile.parse(json.dumps(stored).encode())
