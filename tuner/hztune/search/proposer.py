"""Proposing configurations: the only file that knows Optuna.

An Optuna trial can never change once it is told, but what hztune knows of a configuration grows
with every block. So the samples are hztune's, and the study is made anew in memory, from pooled
estimates, before each batch of proposals (milliseconds). Three facts of Optuna 5 shape this file: a
trial that failed teaches its sampler nothing, so failures are told as violated constraints; every
trial must carry the same constraints; and one seed always gives the same start, so the seed is made
from the study's own and the number of trials.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import nlargest
from pathlib import Path
from random import Random

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

from hztune.params import Value
from hztune.space import Config, Dimension, Space

SAMPLER = "optuna-tpe+crossover+reml"
"""How profiles name this way of searching."""

STARTUP_TRIALS = 8
"""Trials after which the sampler's model takes over from random choice."""

INHERITED_SHARES = (0.85, 0.7, 0.93)
"""Chance, proposal by proposal in turn, that a parameter keeps the incumbent's value."""

TOLD_BEST, TOLD_NEWEST = 50, 150
"""Most findings of which the sampler is told, the best and the newest: what it makes of more is the
same, and takes it longer with each."""

ENOUGH_BEST = 5
"""Configurations that PED-ANOVA needs among the best ones."""

_BEST_SHARE = 0.1
_TRIES = 25
_ASKED = 2
"""Trials that many proposals share: asking is what takes time, and each inherits other values."""

optuna.logging.set_verbosity(optuna.logging.WARNING)

ConfigKey = frozenset[tuple[str, Value]]


@dataclass(frozen=True, slots=True)
class Observation:
    """What is known of one configuration when the sampler is asked.

    Attributes:
        config: The configuration, reduced to what differs from the defaults.
        value: Pooled log ratio to the default; of no meaning where `violations` has one above 0.
        violations: By name, at most 0 where met; every finding of a study has the same names.
        saving: Log saving of memory, where a front is sought: a second objective; else None.
    """

    config: Mapping[str, Value]
    value: float
    violations: Mapping[str, float]
    saving: float | None = None

    @property
    def objectives(self) -> tuple[float, ...]:
        """What the sampler makes greater."""
        return (self.value,) if self.saving is None else (self.value, self.saving)

    @property
    def feasible(self) -> bool:
        """Whether it ran and kept every limit."""
        return all(violation <= 0.0 for violation in self.violations.values())


def config_key(config: Mapping[str, Value]) -> ConfigKey:
    """What two equal configurations have in common."""
    return frozenset(config.items())


def propose(
    space: Space,
    findings: Sequence[Observation],
    count: int,
    *,
    incumbents: Sequence[Mapping[str, Value]],
    taken: Collection[ConfigKey],
    seed: int,
    in_turn: Sequence[Sequence[Mapping[str, Value]]] = (),
    variety: float = 0.0,
    known: int | None = None,
) -> list[Config]:
    """Returns up to `count` different configurations that are worth a measurement.

    Each proposal takes the sampler's choice for some parameters, an incumbent's for the rest (the
    share rotates through INHERITED_SHARES): with a score of parameters and a few dozen trials, most
    of what can be gained lies near the best that is known, and a winner that differs from the
    defaults in little is the better profile.

    Args:
        space: What may be proposed.
        findings: What the sampler is told: everything known so far, or what is `worth_telling`.
        count: Number of proposals wanted; fewer come back when the space has no more.
        incumbents: The best configuration so far of each allocator, the best of all last.
        taken: Configurations that need no proposal, because they were measured.
        seed: The study's own.
        in_turn: Parents: proposal by proposal one group, of which each parameter that is kept has
            the value of one at random.
        variety: Chance that a value which is not inherited is any one. Above 0 many proposals are
            wanted, of which the caller chooses; they share a few of the sampler's answers.
        known: Number of findings there are, where not all of them are told.
    """
    mixed = _mixed_seed(seed, len(findings) if known is None else known)
    study = _study(space, findings, mixed)
    rng = Random(mixed)
    inherited: dict[str, int] = {}
    for incumbent in incumbents:
        inherited |= space.encode(incumbent)
    asked = [study.ask() for _ in range(_ASKED)] if variety else []
    seen = {*taken, config_key({})}
    proposals: list[Config] = []
    for number in range(count):
        share = INHERITED_SHARES[number % len(INHERITED_SHARES)]
        own = _crossed(space, in_turn[number % len(in_turn)], rng) if in_turn else {}
        first = rng.choice(asked) if asked else study.ask()
        config = _fresh(space, study, first, rng, inherited | own, share, variety, seen)
        if config is not None:
            proposals.append(config)
            seen.add(config_key(config))
    return proposals


def worth_telling(values: Sequence[float]) -> list[int]:
    """Which findings the sampler is told of: the places of the best and the newest, in order.

    Args:
        values: What each of them is worth, the oldest first; -inf where it is not feasible.
    """
    places = range(len(values))
    newest = places[-TOLD_NEWEST:]
    feasible = [place for place in places[: -len(newest)] if values[place] > -math.inf]
    return [*sorted(nlargest(TOLD_BEST, feasible, key=values.__getitem__)), *newest]


def importance(findings: Sequence[Observation], defaults: Mapping[str, Value]) -> dict[str, float]:
    """Returns how much each parameter decides whether a configuration is among the best.

    PED-ANOVA (Watanabe, Bansal & Hutter, IJCAI 2023): the divergence between where the best ones
    lie and where all lie, as shares of 1. It sees no interaction.

    Args:
        findings: What was measured; only feasible ones count.
        defaults: The value of each parameter that a configuration leaves out.

    Returns:
        By name, the greatest first; empty for fewer than twice ENOUGH_BEST configurations.
    """
    feasible = [finding for finding in findings if finding.feasible]
    if len(feasible) < 2 * ENOUGH_BEST:
        return {}
    study = optuna.create_study(direction="maximize")
    study.add_trials(_recorded(feasible, defaults, _by_index))
    share = max(_BEST_SHARE, ENOUGH_BEST / len(feasible))
    evaluator = PedAnovaImportanceEvaluator(target_quantile=share)
    return dict(optuna.importance.get_param_importances(study, evaluator=evaluator))


def mirror(
    path: Path, name: str, findings: Sequence[Observation], defaults: Mapping[str, Value]
) -> None:
    """Writes what was measured as an Optuna study into a journal that optuna-dashboard reads.

    It is made anew beside `path` and then takes its place: Optuna can never again open a journal
    whose writer was killed in the middle of a record, and waits for the lock of a dead one.
    """
    fresh = path.with_name(f".{path.name}.new")
    for left in (fresh, fresh.with_name(f"{fresh.name}.lock")):
        left.unlink(missing_ok=True)
    backend = JournalFileBackend(str(fresh), lock_obj=JournalFileOpenLock(str(fresh)))
    storage = JournalStorage(backend)
    study = optuna.create_study(study_name=name, storage=storage, direction="maximize")
    study.add_trials(_recorded(findings, defaults, _by_word))
    fresh.replace(path)


def ordered(values: Iterable[Value]) -> list[Value]:
    """Values from the least to the greatest, words first."""
    return sorted(set(values), key=lambda value: (not isinstance(value, str), value))


def _crossed(space: Space, parents: Sequence[Mapping[str, Value]], rng: Random) -> dict[str, int]:
    """A point that has each of its values from one of its parents."""
    points = [space.encode(parent) for parent in parents]
    names = dict.fromkeys(name for point in points for name in point)
    return {name: rng.choice([p[name] for p in points if name in p]) for name in names}


def _fresh(
    space: Space,
    study: optuna.Study,
    first: optuna.Trial,
    rng: Random,
    inherited: Mapping[str, int],
    share: float,
    variety: float,
    seen: Collection[ConfigKey],
) -> Config | None:
    """One configuration that is legal and new; from the sampler if possible, else a random one."""
    for attempt in range(_TRIES):
        trial = study.ask() if attempt and not variety else first
        keep = share * (1.0 - attempt / _TRIES)

        def choose(dimension: Dimension, trial: optuna.Trial = trial, keep: float = keep) -> int:
            if dimension.name in inherited and rng.random() < keep:
                return inherited[dimension.name]
            if variety and rng.random() < variety:
                return rng.randrange(len(dimension.values))
            return _suggest(trial, dimension)

        config = space.decode(choose)
        if config_key(config) not in seen and space.objection(config) is None:
            return config
    for _ in range(_TRIES):
        config = space.sample(rng)
        if config_key(config) not in seen:
            return config
    return None


class _Finished(optuna.trial.FrozenTrial):
    """A trial that does not change any more: the storage, which copies all it takes, need not.

    Nor need the sampler, which asks every trial for its constraints before each value that it
    draws, find them anew among the attributes.
    """

    @cached_property
    def constraints(self) -> dict[str, float]:
        return super().constraints

    def __deepcopy__(self, memo: object) -> optuna.trial.FrozenTrial:
        return copy.copy(self)


def _study(space: Space, findings: Sequence[Observation], seed: int) -> optuna.Study:
    sampler = TPESampler(
        seed=seed,
        multivariate=False,
        n_startup_trials=STARTUP_TRIALS,
        constant_liar=True,
    )
    objectives = len(findings[0].objectives) if findings else 1
    study = optuna.create_study(directions=["maximize"] * objectives, sampler=sampler)
    feasible = [finding.objectives for finding in findings if finding.feasible]
    worst = [min(column) for column in zip(*feasible, strict=True)] or [0.0] * objectives
    distributions = {d.name: _distribution(d) for d in space.dimensions}
    by_name = {d.name: d for d in space.dimensions}
    for finding in findings:
        point = space.encode(finding.config)
        trial = optuna.create_trial(
            params={name: _internal(by_name[name], index) for name, index in point.items()},
            distributions={name: distributions[name] for name in point},
            values=finding.objectives if finding.feasible else worst,
            constraints=dict(finding.violations),
        )
        trial.__class__ = _Finished
        study.add_trial(trial)
    return study


_Coding = Callable[[Sequence[Value]], "tuple[BaseDistribution, Mapping[Value, int | str]]"]
"""From the values that a parameter had to how Optuna is told them."""


def _by_index(values: Sequence[Value]) -> tuple[BaseDistribution, Mapping[Value, int | str]]:
    """Numbers by their place in the order, so that neighbours are alike; words as words."""
    if all(isinstance(value, str) for value in values):
        return _by_word(values)
    return IntDistribution(0, len(values) - 1), {v: place for place, v in enumerate(values)}


def _by_word(values: Sequence[Value]) -> tuple[BaseDistribution, Mapping[Value, int | str]]:
    """Every value as it is written."""
    written: dict[Value, int | str] = {value: str(value) for value in values}
    return CategoricalDistribution([str(value) for value in values]), written


def _recorded(
    findings: Sequence[Observation], defaults: Mapping[str, Value], coding: _Coding
) -> Iterator[optuna.trial.FrozenTrial]:
    """Findings as trials over the values that were measured; what never varied is left out."""
    full = [{**defaults, **finding.config} for finding in findings]
    seen = {name: ordered(config[name] for config in full) for name in defaults}
    codes = {name: coding(values) for name, values in seen.items() if len(values) > 1}
    worst = min((f.value for f in findings if f.feasible), default=0.0)
    for finding, config in zip(findings, full, strict=True):
        yield optuna.create_trial(
            params={name: code[config[name]] for name, (_, code) in codes.items()},
            distributions={name: distribution for name, (distribution, _) in codes.items()},
            value=finding.value if finding.feasible else worst,
            constraints=dict(finding.violations),
        )


def _distribution(dimension: Dimension) -> BaseDistribution:
    if dimension.is_ordered:
        return IntDistribution(0, len(dimension.values) - 1)
    return CategoricalDistribution([str(value) for value in dimension.values])


def _internal(dimension: Dimension, index: int) -> int | str:
    return index if dimension.is_ordered else str(dimension.values[index])


def _suggest(trial: optuna.Trial, dimension: Dimension) -> int:
    if dimension.is_ordered:
        return trial.suggest_int(dimension.name, 0, len(dimension.values) - 1)
    words = [str(value) for value in dimension.values]
    return words.index(trial.suggest_categorical(dimension.name, words))


def _mixed_seed(seed: int, trials: int) -> int:
    """A seed that is the same for the same study and number of trials, and for no other."""
    digest = hashlib.sha256(f"{seed}:{trials}".encode()).digest()
    return int.from_bytes(digest[:4], "little")
