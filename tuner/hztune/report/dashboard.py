"""The search of a study as an Optuna storage, for optuna-dashboard; it only reads the samples."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from hztune import files
from hztune.files import scratch_folder
from hztune.params import Value
from hztune.rests import weighed_memory
from hztune.result.figures import ordered
from hztune.store.log import recording
from hztune.study.ledger import Ledger
from hztune.study.limits import limits_of

optuna.logging.set_verbosity(optuna.logging.WARNING)

STORAGE = "study.journal"


def write_storage(folder: str | Path) -> Path:
    """Writes the search of a study as an Optuna storage, also while it runs; returns its path.

    It is made elsewhere: Optuna cannot open a journal that ends in the middle of a record.
    UsageError: there is no study. HztuneError: its samples are damaged, or the file system refused.
    """
    samples, path = recording(Path(folder)), Path(folder) / STORAGE
    text = samples.identity.get("limit", "none")
    texts = dict(each.split(" ", 1) for each in text.split(", ")) if text != "none" else {}
    memory = weighed_memory(samples.identity.get("objectives", ""))
    ledger = Ledger.of(samples.blocks, *limits_of(texts), memory=memory)
    with scratch_folder() as scratch:
        fresh = scratch / STORAGE
        study = optuna.create_study(
            study_name=samples.identity["workload"],
            storage=JournalStorage(JournalFileBackend(str(fresh))),
            direction="maximize",
        )
        for trial in _trials(ledger):
            study.add_trial(trial)
        files.write_whole(path, [fresh.read_bytes()])
    return path


def _trials(ledger: Ledger) -> Iterator[optuna.trial.FrozenTrial]:
    """Each configuration as a trial over the values that were measured, without what never varied.

    Of several allocators a parameter is called by both names: "default" where it is left, and "-"
    in a configuration of another allocator.
    """
    records = list(ledger.searched.values())
    arms = [record.arm for record in records]
    owners = dict.fromkeys((arm.allocator, name) for arm in arms for name in arm.config)
    columns: dict[str, list[Value]] = {"allocator": [arm.allocator for arm in arms]}
    several = len(set(columns["allocator"])) > 1
    for owner, name in owners:
        columns[f"{owner}.{name}" if several else name] = [
            arm.config.get(name, "default") if arm.allocator == owner else "-" for arm in arms
        ]
    varied = {
        called: CategoricalDistribution([str(value) for value in ordered(column)])
        for called, column in columns.items()
        if len(set(column)) > 1
    }
    values = {key: each.mean for key, each in ledger.estimates().items()}
    feasible = {each.arm.key for each in records if all(v <= 0 for v in each.violations.values())}
    worst = min((values.get(key, 0.0) for key in feasible), default=0.0)
    for row, record in enumerate(records):
        key = record.arm.key
        yield optuna.create_trial(
            params={called: str(columns[called][row]) for called in varied},
            distributions=dict(varied),
            value=values.get(key, 0.0) if key in feasible else worst,
            constraints=dict(record.violations),
        )
