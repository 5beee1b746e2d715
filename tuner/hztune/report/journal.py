"""Measured configurations as an Optuna study that optuna-dashboard reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

from hztune.params import Value
from hztune.search.effects import ordered

optuna.logging.set_verbosity(optuna.logging.WARNING)


@dataclass(frozen=True, slots=True)
class Observation:
    """What is known of one configuration.

    Attributes:
        config: The value of each parameter.
        value: Pooled log ratio to the default; of no meaning where `violations` has one above 0.
        violations: By name, at most 0 where met; every observation has the same names.
    """

    config: Mapping[str, Value]
    value: float
    violations: Mapping[str, float]

    @property
    def feasible(self) -> bool:
        """Whether it ran and kept every limit."""
        return all(violation <= 0.0 for violation in self.violations.values())


def mirror(
    path: Path, name: str, observations: Sequence[Observation], defaults: Mapping[str, Value]
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
    for trial in _recorded(observations, defaults):
        study.add_trial(trial)
    fresh.replace(path)


def _recorded(
    observations: Sequence[Observation], defaults: Mapping[str, Value]
) -> Iterator[optuna.trial.FrozenTrial]:
    """Observations as trials over the values that were measured; what never varied is left out."""
    full = [{**defaults, **one.config} for one in observations]
    seen = {name: ordered(config[name] for config in full) for name in defaults}
    varied = {
        name: CategoricalDistribution([str(value) for value in values])
        for name, values in seen.items()
        if len(values) > 1
    }
    worst = min((one.value for one in observations if one.feasible), default=0.0)
    for one, config in zip(observations, full, strict=True):
        yield optuna.create_trial(
            params={name: str(config[name]) for name in varied},
            distributions=dict(varied),
            value=one.value if one.feasible else worst,
            constraints=dict(one.violations),
        )
