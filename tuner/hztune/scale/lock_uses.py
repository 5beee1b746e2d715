"""The locks of hz by name, and what libhz-ledger.so says of each (core/ledger)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

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
    "span.c: &in.bin->lock": "bin",
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
    """Returns what each name came to, the one with the most holds first.

    Args:
        contacts: Every lock of a run.
        ops: Operations of that run.
        seconds: How long it was.
    """
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
