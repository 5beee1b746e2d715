"""The search of a study as an Optuna storage, for optuna-dashboard: also while it is running.

Only what has been measured is read, so that workers are not disturbed; what was written is
as far as the study was then.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

from hztune import files
from hztune.blocks import Arm
from hztune.params import Value
from hztune.rests import weighed_memory
from hztune.result.figures import ordered
from hztune.scratch import scratch_folder
from hztune.store.log import recording
from hztune.study.ledger import Ledger
from hztune.study.limits import limits_of

optuna.logging.set_verbosity(optuna.logging.WARNING)

STORAGE = "study.journal"
_DEFAULT = "default"
"""What a parameter is said to be that a configuration leaves at its default."""

_ELSEWHERE = "-"
"""What one of another allocator is said to be."""


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


def write_storage(folder: Path) -> Path:
    """Writes the search of the study in a results directory beside its samples; returns its path.

    Raises:
        UsageError: There is no study in `folder`.
        HztuneError: Its samples are damaged, or the file system refused.
    """
    samples = recording(folder)
    text = samples.identity.get("limit", "none")
    texts = dict(each.split(" ", 1) for each in text.split(", ")) if text != "none" else {}
    memory = weighed_memory(samples.identity.get("objectives", ""))
    ledger = Ledger.of(samples.blocks, *limits_of(texts), memory=memory)
    names = _names([record.arm for record in ledger.searched.values()])
    findings = list(_findings(ledger, names))
    everywhere = dict.fromkeys(chain.from_iterable(one.config for one in findings), _ELSEWHERE)
    path = folder / STORAGE
    mirror(path, samples.identity["workload"], findings, everywhere)
    return path


def _names(arms: Sequence[Arm]) -> dict[str, dict[str, str]]:
    """By allocator, how each parameter that was ever set is called: with several by both names."""
    several = len({arm.allocator for arm in arms}) > 1
    names: dict[str, dict[str, str]] = {}
    for arm in arms:
        prefix = f"{arm.allocator}." if several else ""
        names.setdefault(arm.allocator, {}).update({name: prefix + name for name in arm.config})
    return names


def _findings(ledger: Ledger, names: Mapping[str, Mapping[str, str]]) -> Iterator[Observation]:
    """What the search knows, every parameter of an allocator named in each of its findings."""
    estimates = ledger.estimates()
    for key, record in ledger.searched.items():
        arm = record.arm
        own = names[arm.allocator]
        config: dict[str, Value] = {
            called: arm.config.get(name, _DEFAULT) for name, called in own.items()
        }
        worth = estimates[key].mean if key in estimates else 0.0
        yield Observation({"allocator": arm.allocator, **config}, worth, record.violations)


def mirror(
    path: Path, name: str, observations: Sequence[Observation], defaults: Mapping[str, Value]
) -> None:
    """Writes what was measured as an Optuna study into a journal that optuna-dashboard reads.

    It is made anew elsewhere and then takes its place: Optuna can never again open a journal
    whose writer was killed in the middle of a record, and waits for the lock of a dead one.
    """
    with scratch_folder() as folder:
        fresh = folder / STORAGE
        backend = JournalFileBackend(str(fresh), lock_obj=JournalFileOpenLock(str(fresh)))
        storage = JournalStorage(backend)
        study = optuna.create_study(study_name=name, storage=storage, direction="maximize")
        for trial in _recorded(observations, defaults):
            study.add_trial(trial)
        for left in path.parent.glob(f".{glob.escape(path.name)}.*"):  # by a writer that was killed
            left.unlink(missing_ok=True)
        files.write_whole(path, [fresh.read_bytes()])


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
