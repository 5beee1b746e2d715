"""What a study takes from earlier ones when it begins, and leaves for later ones when it ends."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

from hztune import version
from hztune.errors import HztuneError
from hztune.machine import Machine
from hztune.params import Param
from hztune.prior import NOTHING, Gain, Learned, Lesson, Prior, Subject, state, weighed
from hztune.progress import Reporter
from hztune.result.decision import Decision
from hztune.result.effects import likely_effects
from hztune.space import Space
from hztune.strictjson import ascii_text
from hztune.trial import Ledger
from hztune.tune.conclusion import metric_of
from hztune.tune.request import Task, TuneRequest

MUCH = 8
"""Pairs in which a parameter was changed before it can have shown nothing."""

NOTHING_SHOWN = 0.05
"""How likely it then still has an effect, at most; a third of what was assumed."""


def prior_of(task: Task, machine: Machine) -> Prior:
    """With what a search begins here and now; nothing for a front, or where it is not wanted."""
    request = task.request
    if not request.prior or request.pareto:
        return NOTHING
    versions = {each.name: each.version for each in task.candidates.installed}
    now = datetime.now(timezone.utc)
    return weighed(state.read(now), subject_of(request, machine), task.space, versions, now)


def told_of(prior: Prior) -> list[str]:
    """What a user is told of a prior, a line or none."""
    return [f"prior: {prior.text}"] if prior.text else []


def leave(
    task: Task, machine: Machine, ledger: Ledger, decision: Decision, reporter: Reporter
) -> None:
    """Keeps what a study learned; where that cannot be kept, the study is none the worse."""
    if not task.request.prior or task.request.pareto:
        return
    try:
        state.keep(lesson_of(task, machine, ledger, decision))
    except HztuneError as error:
        reporter.say(f"what this study learned is not kept for later ones: {error}")


def lesson_of(task: Task, machine: Machine, ledger: Ledger, decision: Decision) -> Lesson:
    """What a study that has ended learned, with no regard to the prior that it had."""
    versions = {each.name: each.version for each in task.candidates.installed}
    learned = tuple(
        learned_of(part, versions.get(part.allocator, ""), ledger, decision)
        for part in task.space.parts
    )
    now = datetime.now(timezone.utc).replace(microsecond=0)
    return Lesson(subject_of(task.request, machine), learned, version(), now)


def learned_of(space: Space, version: str, ledger: Ledger, decision: Decision) -> Learned:
    """What a study learned of one allocator.

    A parameter that shows nothing is judged by the model of the search, from the usual odds: what
    earlier studies said of it does not count twice.
    """
    params = {d.name: d.param for d in space.dimensions}
    gains = tuple(_gains(space.allocator, decision))
    proved = {name for gain in gains for name, _ in gain.levels}
    level = tuple(
        (name, pairs)
        for name, pairs in _shows_nothing(ledger, space.allocator, params)
        if name not in proved
    )
    return Learned(space.allocator, version, gains, level)


def subject_of(request: TuneRequest, machine: Machine) -> Subject:
    """What a study is about."""
    return Subject(_workload(request), request.threads, metric_of(request), machine.fingerprint)


def _workload(request: TuneRequest) -> str:
    """The workloads without threads; programs by path and metric, which are not told."""
    if request.program is None:
        words = [[spec.name, spec.setting, spec.params] for spec in request.workloads]
    else:
        programs = [(each, each.argv[0]) for each in request.programs]
        words = [
            [str(Path(shutil.which(word) or word).resolve()), program.metric]
            for program, word in programs
        ]
    digest = hashlib.sha256(json.dumps(words).encode()).hexdigest()[:16]
    return ascii_text(f"{digest} {request.name}")


def _gains(allocator: str, decision: Decision) -> Iterator[Gain]:
    """What was proved to add to the speed, apart from what came with another allocator."""
    for step in decision.steps:
        is_own = step.arm.allocator == step.before.allocator == allocator
        if step.answer == "proved" and is_own and step.interval is not None and step.added:
            levels = tuple((name, step.arm.config[name]) for name in step.added)
            _, low, high = step.interval.ratio
            yield Gain(levels, low, high)


def _shows_nothing(
    ledger: Ledger, allocator: str, params: dict[str, Param]
) -> Iterator[tuple[str, int]]:
    """Parameters that were measured much without an effect, with their pairs."""
    own = [r for r in ledger.searched.values() if r.arm.allocator == allocator]
    for name, likely in likely_effects(ledger, allocator, params).items():
        pairs = sum(len(record.pairs) for record in own if name in record.arm.config)
        if pairs >= MUCH and likely <= NOTHING_SHOWN:
            yield name, pairs
