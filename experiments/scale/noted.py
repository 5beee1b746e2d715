"""A workload on libhz-ledger.so: a run in which every lock, system call and slow path is noted.

HZTUNE_CORE names the build of experiments/scale/ledger.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hztune import artifacts, process
from hztune.errors import HztuneError
from hztune.scratch import scratch_folder
from hztune.workload import WorkloadSpec

_SCHEMA = "hz-ledger/1"
_WARMUP_S = 0.3
_DEADLINE_S = 60.0
_OUTPUT_BYTES = 1 << 20

LOCK_NAMES: Mapping[str, str] = {
    "arena.c: &arena.lock": "arena",
    "change.c: &changing": "parameters",
    "decay.c: &depots.lock": "decay",
    "depot.c: &depot->lock": "depot",
    "guard.c: &freed.lock": "freed runs (hardening)",
    "guard.c: &zeros.lock": "malloc(0) (hardening)",
    "harden.c: &heap->looking": "last block (hardening)",
    "heap.c: &heaps.lock": "heaps",
    "pages.c: &hz_page_pool.extending": "extension of the arena",
    "pages.c: &hz_page_pool.lock": "page pool",
    "sweep.c: &hz_page_pool.lock": "page pool",
    "purge.c: &purge.lock": "purge",
    "remote.c: &inbox->lock": "inbox",
    "repair.c: &hz_page_pool.lock": "page pool",
    "rest.c: &background.lock": "background thread",
    "span.c: &bin->lock": "bin",
    "start.c: &process.lock": "start",
}
"""What each lock is called, by the file and the words in which hz's source takes it."""

_SELDOM = 0.01


@dataclass(frozen=True, slots=True)
class Times:
    """How long something took, over all times that it was done.

    Attributes:
        count: How often.
        ns: Nanoseconds of all of them together.
        p50_ns: Half of them took at most this.
        p99_ns: 99 of 100 took at most this.
        most_ns: The longest.
        undisturbed: How many took less than 0.1 ms. In a longer one the thread did not run.
        undisturbed_ns: Nanoseconds of those together.
    """

    count: int
    ns: float
    p50_ns: float
    p99_ns: float
    most_ns: float
    undisturbed: float
    undisturbed_ns: float

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Times:
        """Returns what a row of the ledger says; further keys of it are left alone."""
        return cls(**{name: row[name] for name in cls.__slots__})

    @property
    def mean_ns(self) -> float:
        """The mean of those that were not disturbed."""
        return self.undisturbed_ns / self.undisturbed if self.undisturbed else 0.0


@dataclass(frozen=True, slots=True)
class Contact:
    """One lock, of which there may be many of that name.

    Attributes:
        name: One of LOCK_NAMES' values, or what the ledger calls it.
        shard: Of a depot, a bin or an inbox; else None.
        class_: Of a depot or a bin; else None.
        contended: Times that a thread waited for it.
        in_vain: Times that a thread found it held and did without.
        waited_ns: How long all threads waited together.
        with_calls: Holds with a system call inside.
        calls: Those system calls by name.
        held: The holds.
    """

    name: str
    shard: int | None
    class_: int | None
    contended: int
    in_vain: int
    waited_ns: float
    with_calls: int
    calls: Mapping[str, int]
    held: Times

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Contact:
        """Returns what a row of the ledger says."""
        return cls(
            name=LOCK_NAMES.get(row["name"], row["name"]),
            shard=row.get("shard"),
            class_=row.get("class"),
            contended=row["contended"],
            in_vain=row["in_vain"],
            waited_ns=row["waited_ns"],
            with_calls=row["with_calls"],
            calls=row["calls"],
            held=Times.of(row),
        )


@dataclass(frozen=True, slots=True)
class LockUse:
    """All locks of one name, in one run.

    Attributes:
        name: What they are called.
        locks: How many of them were taken.
        taken: Times that one was taken, in 1000 operations.
        contended: Times that a thread waited for one, in 1000 operations.
        in_vain: Times that a thread found one held and did without, in 1000 operations.
        mean_ns: Mean hold, without those in which the thread did not run.
        p99_ns: 99 of 100 holds took at most this: of the lock of which that is worst, among those
            that have a hundredth of all holds.
        busiest: The share of the time in which the busiest of them was held.
        with_calls: Holds with a system call inside, in a million operations.
        calls: Those system calls by name, in a million operations.
    """

    name: str
    locks: int
    taken: float
    contended: float
    in_vain: float
    mean_ns: float
    p99_ns: float
    busiest: float
    with_calls: float
    calls: Mapping[str, float]


def lock_uses(contacts: Iterable[Contact], ops: int, seconds: float) -> tuple[LockUse, ...]:
    """Returns what each name came to, the one with the most holds first."""
    by_name: defaultdict[str, list[Contact]] = defaultdict(list)
    for contact in contacts:
        by_name[contact.name].append(contact)
    found = [_use(name, each, ops, seconds) for name, each in by_name.items()]
    return tuple(sorted(found, key=lambda use: -use.taken))


def _use(name: str, contacts: list[Contact], ops: int, seconds: float) -> LockUse:
    holds = sum(each.held.count for each in contacts)
    undisturbed = sum(each.held.undisturbed for each in contacts)
    undisturbed_ns = sum(each.held.undisturbed_ns for each in contacts)
    often = [each for each in contacts if each.held.count >= _SELDOM * holds] or contacts
    calls: defaultdict[str, int] = defaultdict(int)
    for each in contacts:
        for call, count in each.calls.items():
            calls[call] += count
    return LockUse(
        name=name,
        locks=len(contacts),
        taken=1e3 * holds / ops,
        contended=1e3 * sum(each.contended for each in contacts) / ops,
        in_vain=1e3 * sum(each.in_vain for each in contacts) / ops,
        mean_ns=undisturbed_ns / undisturbed if undisturbed else 0.0,
        p99_ns=max(each.held.p99_ns for each in often),
        busiest=max(each.held.undisturbed_ns for each in contacts) / (1e9 * seconds),
        with_calls=1e6 * sum(each.with_calls for each in contacts) / ops,
        calls={call: 1e6 * count / ops for call, count in sorted(calls.items())},
    )


@dataclass(frozen=True, slots=True)
class Noted:
    """What one run showed.

    Attributes:
        spec: The workload, with its threads.
        variables: The parameters of hz that were set, as variables.
        shards: Shards that hz had.
        nodes: NUMA nodes that it told apart.
        seconds: Length of the counted window.
        ops: Operations in it.
        cpu_s: CPU time used in it.
        faults: Page faults in it.
        clock_ns: What the ledger's clock adds to each time.
        locks: Every lock that was taken.
        system_calls: hz's own, by the name of its function.
        paths: The slow paths, by the name of the function; one contains those that it calls.
    """

    spec: WorkloadSpec
    variables: Mapping[str, str]
    shards: int
    nodes: int
    seconds: float
    ops: int
    cpu_s: float
    faults: int
    clock_ns: float
    locks: tuple[Contact, ...]
    system_calls: Mapping[str, Times]
    paths: Mapping[str, Times]

    @property
    def uses(self) -> tuple[LockUse, ...]:
        """The locks by name."""
        return lock_uses(self.locks, self.ops, self.seconds)

    @property
    def ops_per_s(self) -> float:
        """Operations in a second; the ledger makes it slower than hz is."""
        return self.ops / self.seconds

    def per_op(self, times: Times) -> float:
        """How often something was done in one operation."""
        return times.count / self.ops


def run_noted(
    spec: WorkloadSpec, seconds: float, variables: Mapping[str, str] | None = None
) -> Noted:
    """Runs a workload on the library with the ledger."""
    with scratch_folder() as folder:
        path = folder / "ledger.json"
        said = run_bench(
            spec,
            seconds,
            artifacts.root() / "libhz-ledger.so",
            {**(variables or {}), "HZ_LEDGER": str(path)},
        )
        try:
            ledger = json.loads(path.read_text(encoding="utf-8"))
            if ledger["schema"] != _SCHEMA:
                raise ValueError(f"schema {ledger['schema']}, not {_SCHEMA}")
            return _noted(spec, variables or {}, said, ledger)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise HztuneError(f"{spec.label}: the ledger cannot be read ({error})") from error


def run_bench(
    spec: WorkloadSpec,
    seconds: float,
    library: Path,
    variables: Mapping[str, str],
    words: Sequence[str] = (),
) -> dict[str, Any]:
    """Runs a workload on a library and returns what hz-bench says of it."""
    plain = {key: value for key, value in os.environ.items() if not key.startswith("HZ_")}
    command = [
        *spec.command(seed=1),
        *spec.span(seconds),
        "--warmup",
        f"{min(_WARMUP_S, seconds):g}",
        *words,
    ]
    done = process.run(
        command,
        env={**plain, **variables, "LD_PRELOAD": str(library), "HZ_STRICT": "1"},
        deadline_s=_DEADLINE_S + 4 * seconds,
        output_limit=_OUTPUT_BYTES,
    )
    if not done.ok:
        raise HztuneError(f"{spec.label}: hz-bench {done.describe()}")
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def _noted(
    spec: WorkloadSpec, variables: Mapping[str, str], said: dict[str, Any], ledger: dict[str, Any]
) -> Noted:
    return Noted(
        spec=spec,
        variables=variables,
        shards=ledger["shards"],
        nodes=ledger["nodes"],
        seconds=said["seconds"],
        ops=said["ops"],
        cpu_s=said["cpu_s"],
        faults=said["minor_faults"],
        clock_ns=ledger["clock_ns"],
        locks=tuple(Contact.of(row) for row in ledger["locks"] if row is not None),
        system_calls={name: Times.of(row) for name, row in ledger["system_calls"].items()},
        paths={name: Times.of(row) for name, row in ledger["paths"].items()},
    )
