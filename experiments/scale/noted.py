"""A workload on libhz-ledger.so: a run in which every lock, system call and slow path is noted.

HZTUNE_CORE names the build of experiments/scale/ledger. A time is a row of the ledger: `count`,
`ns` of all together, `p50_ns`, `p99_ns`, `most_ns`; `undisturbed` are those that took less than
0.1 ms, `undisturbed_ns` those together: in a longer one the thread did not run. Of a lock these are
its holds, and there are `shard` and `class` (None: it has none), `contended` (times that a thread
waited), `in_vain` (times that one found it held and did without), `waited_ns`, `with_calls` (holds
with a system call inside) and `calls` (these by name).
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hztune import artifacts, process
from hztune.errors import HztuneError
from hztune.files import scratch_folder
from hztune.workload import WorkloadSpec

Row = Mapping[str, Any]

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
    "huge.c: &hz_page_pool.lock": "page pool",
    "sweep.c: &hz_page_pool.lock": "page pool",
    "purge.c: &purge.lock": "purge",
    "remote.c: &inbox->lock": "inbox",
    "repair.c: &hz_page_pool.lock": "page pool",
    "span.c: &bin->lock": "bin",
    "start.c: &process.lock": "start",
}
"""What each lock is called, by the file and the words in which hz's source takes it."""

_SELDOM = 0.01


def mean_ns(times: Row) -> float:
    """The mean of those that were not disturbed."""
    return times["undisturbed_ns"] / times["undisturbed"] if times["undisturbed"] else 0.0


def lock_uses(seen: Row) -> list[dict[str, Any]]:
    """What the locks of each name came to in a run, the name with the most holds first.

    How often is in 1000 operations; `with_calls` and `calls` are in a million. `mean_ns` leaves out
    holds in which the thread did not run; `p99_ns` is of the lock of which that is worst, among
    those that have a hundredth of all holds; `busiest` is the share of the time in which the
    busiest of them was held.
    """
    by_name: defaultdict[str, list[Row]] = defaultdict(list)
    for lock in seen["locks"]:
        by_name[lock["name"]].append(lock)
    found = [_use(name, locks, seen) for name, locks in by_name.items()]
    return sorted(found, key=lambda use: -use["taken"])


def _use(name: str, locks: Sequence[Row], seen: Row) -> dict[str, Any]:
    def total(key: str) -> float:
        return sum(lock[key] for lock in locks)

    ops, holds, calls = seen["ops"], total("count"), Counter[str]()
    often = [lock for lock in locks if lock["count"] >= _SELDOM * holds] or locks
    for lock in locks:
        calls.update(lock["calls"])
    return {
        "name": name,
        "locks": len(locks),
        "taken": 1e3 * holds / ops,
        "contended": 1e3 * total("contended") / ops,
        "in_vain": 1e3 * total("in_vain") / ops,
        "mean_ns": mean_ns({key: total(key) for key in ("undisturbed", "undisturbed_ns")}),
        "p99_ns": max(lock["p99_ns"] for lock in often),
        "busiest": max(lock["undisturbed_ns"] for lock in locks) / (1e9 * seen["seconds"]),
        "with_calls": 1e6 * total("with_calls") / ops,
        "calls": {call: 1e6 * count / ops for call, count in sorted(calls.items())},
    }


def run_noted(
    spec: WorkloadSpec, seconds: float, variables: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Runs a workload on the library with the ledger, which makes it slower.

    What hz-bench says (`ops`, `seconds`, `cpu_s`, `minor_faults`, ...), and beside it the ledger:
    `shards`, `nodes`, `clock_ns` (what its clock adds to each time), `locks`, and by the name of
    their functions `system_calls` and `paths`, each of which contains those that it calls.
    """
    library = artifacts.root() / "libhz-ledger.so"
    with scratch_folder() as folder:
        path = folder / "ledger.json"
        said = run_bench(spec, seconds, library, {**(variables or {}), "HZ_LEDGER": str(path)})
        try:
            ledger = json.loads(path.read_text(encoding="utf-8"))
            if ledger["schema"] != _SCHEMA:
                raise ValueError(f"schema {ledger['schema']}, not {_SCHEMA}")
            taken = [{"shard": None, "class": None, **lock} for lock in ledger["locks"] if lock]
            locks = [{**lock, "name": LOCK_NAMES.get(lock["name"], lock["name"])} for lock in taken]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise HztuneError(f"{spec.label}: the ledger cannot be read ({error})") from error
    return {**said, **ledger, "locks": locks}


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
