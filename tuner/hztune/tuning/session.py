"""One session of a study: from a task, which is a judged request, to a directory with a verdict."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from hztune import doctor, export, files, profile
from hztune.allocator import Installed
from hztune.blocks import spent_s
from hztune.errors import UsageError
from hztune.interrupt import interruptible
from hztune.machine import Machine
from hztune.measure import Executor, WorkloadSink
from hztune.measure.cluster import Client, ClusterExecutor, Target, cluster, first_machine
from hztune.measure.executors import Say, executor_for, say_nothing
from hztune.profile import PROFILE
from hztune.progress import Reporter, duration
from hztune.result import FRONT, Result, ending, front_file, read
from hztune.schema import as_word
from hztune.store import Sink, kept_command
from hztune.store.log import SAMPLES, LocalStudy, Recording, is_there
from hztune.study.bench import Stop, Workbench, system_clock
from hztune.study.calibration import CALIBRATED_BY, PROVED_BY, SEARCHED_BY
from hztune.study.ledger import Ledger
from hztune.study.limits import limits_of
from hztune.study.panel import PanelExecutor, make
from hztune.study.search import SLOTS
from hztune.tuning.conclusion import result_of
from hztune.tuning.on_program import LastProof
from hztune.tuning.request import Task, TuneRequest
from hztune.tuning.story import Front, Story, Winner

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
