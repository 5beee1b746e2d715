"""A session of a study that several workers share: begin it, join it, print what it came to.

A shared study goes as every other does; `Workbench.peers` is what the workers ask each other. They
have one budget: a worker that joins starts where the last block ended, and all end together. Of two
workers on one machine one measures at a time, and the time that the other waits counts, because the
study advances meanwhile: both together take as long as one. The worker that proves a finalist
measures alone; the others wait.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hztune import doctor, files
from hztune.errors import UsageError
from hztune.interrupt import interruptible
from hztune.machine import Machine, identity
from hztune.progress import Reporter
from hztune.result import Result, stored
from hztune.store import EndedElsewhere
from hztune.store.local import SAMPLES, is_there, recording
from hztune.store.study import StoredStudy, StudyAddress
from hztune.store.worker import Worker
from hztune.trial import Ledger, SystemClock, Workbench
from hztune.tune import folder
from hztune.tune.conclusion import result_of
from hztune.tune.request import Task, understand
from hztune.tune.session import (
    budget_of,
    chosen_from,
    executor_of,
    panel_of,
    story_of,
    told_again,
)
from hztune.tune.stored_request import read_back, written
from hztune.tune.story import Story

_SEED_LIMIT = 1 << 31


def directory(address: StudyAddress) -> Path:
    """The results directory of a shared study, unless another one is named."""
    return Path("hztune-results") / address.study


def begin(address: StudyAddress, task: Task | None, out: Path | None, reporter: Reporter) -> Result:
    """Begins a shared study or goes on with it, and writes its results directory at the end.

    Args:
        address: The study.
        task: What to tune; None: what the study that exists was begun with.
        out: The results directory; None: named after the study.
        reporter: Is told how it goes.

    Raises:
        UsageError: The study is another one; nothing was measured.
        HztuneError: The storage or the measuring failed; every block that was entered is kept.
    """
    out = out or directory(address)
    with address.opened() as storage:
        if task is None:
            study = address.found(storage)
        else:
            asked = written(task.request)
            study = StoredStudy.begin(storage, address.study, task.identity, asked)
            if study.request != json.loads(json.dumps(asked)):
                reporter.say(f"the study {study.name} goes on as it was begun, with its own budget")
        _judge_folder(out, study)
        result = _take_part(study, reporter, out, budget_s=None)
        assert result is not None  # it had all the time there is
        return result


def join(
    address: StudyAddress,
    reporter: Reporter,
    *,
    budget_s: float | None = None,
    out: Path | None = None,
) -> Result | None:
    """Takes part in a study until it has ended.

    Args:
        address: The study.
        reporter: Is told how it goes.
        budget_s: Most seconds to take part; None: as long as it takes.
        out: A results directory to write at the end; None: none.

    Returns:
        What the study came to, "interrupted" where the user wanted an end; None: the time to take
        part was over before.

    Raises:
        UsageError: There is no such study, or something that must be the same differs here.
        HztuneError: The storage or the measuring failed; every block that was entered is kept.
    """
    with address.opened() as storage:
        study = address.found(storage)
        if out is not None:
            _judge_folder(out, study)
        return _take_part(study, reporter, out, budget_s)


def forget(address: StudyAddress, host: str) -> int:
    """Removes what workers of a host that is gone hold; returns how many workers those were.

    Raises:
        UsageError: There is no such study, no worker of that host, or several hosts of that name.
    """
    with address.opened() as storage:
        study = address.found(storage)
        hosts = sorted(set(study.hosts()))
        named = [each for each in hosts if each.rpartition("/")[0] == host]
        meant = [host] if host in hosts else named
        if not meant:
            there = ", ".join(hosts) or "no host"
            raise UsageError(f"no worker of {host!r} holds anything in {address.study!r} ({there})")
        if len(meant) > 1:
            several = " or ".join(meant)
            raise UsageError(f"{host!r} is the name of several hosts: --forget {several}")
        return study.forget(meant[0])


def _take_part(
    study: StoredStudy, reporter: Reporter, out: Path | None, budget_s: float | None
) -> Result | None:
    """Measures until the study has ended, or this worker's time has."""
    started = time.monotonic()
    ended = study.ending()
    if ended is not None:
        reporter.say(f"the study {study.name} has ended and measures no more")
        return _told(study, ended, out)
    with read_back(study.request) as request:
        task = understand(request)
    study.check(task.identity)
    machine = Machine.here()
    where = f"{machine.fingerprint}-{identity()}"  # machines of one kind have one fingerprint
    try:
        with interruptible() as asked, Worker(study, where) as worker:
            for line in (*chosen_from(task), *task.remarks, *doctor.remarks(alone=False)):
                reporter.say(line)

            def is_over() -> bool:
                late = budget_s is not None and time.monotonic() - started > budget_s
                return late or asked.is_set()

            story = _story(task, machine, worker, reporter, is_over)
            decision = story.run()
            wall_s = time.monotonic() - started
            result = result_of(task, machine, story, decision, wall_s, out)
            if decision.verdict == "interrupted":
                reporter.say(f"left the study {study.name}; the same command goes on with it")
                if not asked.is_set():
                    return None
                folder.write(result)
                return result
            worker.conclude({**stored.ending(result), "machine": asdict(machine), "where": where})
    except EndedElsewhere:
        ended = study.ending()
        assert ended is not None  # another worker has just written it
        return _told(study, ended, out)
    _write_samples(study, asdict(machine), out)
    folder.write(result)
    return result


def _story(
    task: Task,
    machine: Machine,
    worker: Worker,
    reporter: Reporter,
    stop: Callable[[], bool],
) -> Story:
    """The study as this worker takes part in it: it goes on where the last block ended."""
    request = task.request
    executor = executor_of(request, machine, worker.sink)
    ledger = Ledger(
        task.limit,
        task.max_loss,
        machine=worker.sink.machine,
        memory=task.request.weighed,
    )
    news = worker.look()
    for block in news.blocks:
        ledger.add(block)
    executor.recall(ledger.own_blocks())
    budget = budget_of(request, SystemClock(counts_waiting=True), news.elapsed_s)
    bench = Workbench(executor, ledger, budget, reporter, stop, worker, worker.sink.note)
    panel = panel_of(request, machine, worker.sink)
    return story_of(task, bench, _own_seed(request.seed, worker.number), panel)


def _own_seed(seed: int, number: int) -> int:
    """The study's seed for its first worker, another for each that joins: they propose apart."""
    if number == 0:
        return seed
    digest = hashlib.sha256(f"{seed} worker {number}".encode()).digest()
    return int.from_bytes(digest[:8], "little") % _SEED_LIMIT


def _told(study: StoredStudy, ended: Mapping[str, Any], out: Path | None) -> Result:
    """What the study came to, and its results directory as every study has one."""
    _write_samples(study, ended["machine"], out)
    return told_again(ended, out)


def _write_samples(study: StoredStudy, machine: Mapping[str, Any], out: Path | None) -> None:
    """Writes what all workers measured, as every study has it."""
    if out is not None:
        files.write_whole(out / SAMPLES, study.samples(machine))


def _judge_folder(out: Path, study: StoredStudy) -> None:
    """Makes the results directory.

    Raises:
        UsageError: It cannot be made, or holds another study.
    """
    files.make_folder(out)
    if is_there(out) and recording(out).label != study.label:
        raise UsageError(f"{out / SAMPLES} belongs to another study; choose another --out")
