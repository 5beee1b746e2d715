"""Speed on machines with more CPUs, computed from the ledger.

Each CPU runs one thread. In an operation it works by itself for a while (the thinking time) and
visits some locks; one thread at a time holds a lock, the others wait. That is a closed network of
queues, whose throughput mean-value analysis gives exactly (Reiser and Lavenberg, 1980) if holds are
exponential; equal holds would wait less, so the model errs on the slow side.

    python experiments/scale/model.py             # first: does it predict what was measured here?
    python experiments/scale/model.py --cpus 128  # then: a machine that is not here

What an operation costs with T threads is what it costs with one, with the slow paths and page
faults of T threads in the place of its own:

    work(T) = cpu(1) - paths(1) - faults(1) x fault  +  paths(T) + faults(T) x fault
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ENTRIES = (
    "hz_magazine_pop",
    "hz_magazine_make_room",
    "hz_remote_push",
    "hz_large_alloc",
    "hz_large_free",
    "hz_heap_enter",
)
"""The paths that a call takes from outside; the others lie within one of them."""

MAPPING = ("hz_os_claim", "hz_os_allow_writing", "hz_os_map")
"""System calls that have the address space of the process for themselves."""

Run = Mapping[str, Any]


@dataclass(frozen=True)
class Station:
    """What one thread at a time can use.

    Attributes:
        name: Of the lock.
        demand_ns: Time that an operation uses it, all visits together.
    """

    name: str
    demand_ns: float


@dataclass(frozen=True)
class Solution:
    """A solved network.

    Attributes:
        ops_per_ns: Operations of all threads together.
        used: (station, share of the time in which it is in use), the most used first.
    """

    ops_per_ns: float
    used: tuple[tuple[str, float], ...]


def solved(stations: Sequence[Station], think_ns: float, threads: int) -> Solution:
    """Mean-value analysis of a closed network.

    Args:
        stations: What threads wait for.
        think_ns: Time of an operation in which a thread waits for nobody.
        threads: How many there are, each on a CPU of its own.
    """
    waiting = [0.0] * len(stations)
    rate = 0.0
    for count in range(1, threads + 1):
        stays = [
            each.demand_ns * (1 + queue) for each, queue in zip(stations, waiting, strict=True)
        ]
        rate = count / (think_ns + sum(stays))
        waiting = [rate * stay for stay in stays]
    used = sorted(
        ((each.name, rate * each.demand_ns) for each in stations), key=lambda pair: -pair[1]
    )
    return Solution(rate, tuple(used))


def path_ns(run: Run) -> float:
    """Nanoseconds of an operation that its slow paths take, without the ledger's own clock."""
    paths = run["paths"]
    return sum(
        paths[name]["per_op"] * max(0.0, paths[name]["ns"] - run["clock_ns"])
        for name in ENTRIES
        if name in paths
    )


def faults_outside(run: Run, costs: Mapping[str, float]) -> float:
    """Nanoseconds of an operation in page faults; those in the slow paths are in their time."""
    return run["faults_per_op"] * costs["fault_ns"]


def work_ns(base: Run, run: Run, costs: Mapping[str, float]) -> float:
    """CPU time of an operation of `run`, from the cost of one in `base` and the ledger of both."""
    own = base["cpu_ns_per_op"] - path_ns(base) - faults_outside(base, costs)
    return own + path_ns(run) + faults_outside(run, costs)


def stations(run: Run, line_ns: float) -> list[Station]:
    """The locks of a run, and the address space, which the kernel locks.

    Args:
        run: A run of the ledger.
        line_ns: What is added to each hold: the lock's line comes from another CPU.
    """
    locks = [Station(_name(lock), lock["per_op"] * (lock["ns"] + line_ns)) for lock in run["locks"]]
    calls = run["system_calls"]
    mapping = sum(calls[name]["per_op"] * calls[name]["ns"] for name in MAPPING if name in calls)
    return [*locks, Station("address space (kernel)", mapping)]


def predicted(base: Run, run: Run, cpus: int, costs: Mapping[str, float]) -> Solution:
    """The speed of `run` on some CPUs; of its threads as many work at once as there are CPUs."""
    queues = stations(run, costs["line_ns"] if cpus > 1 else 0.0)
    work = work_ns(base, run, costs)
    think = max(0.0, work - sum(each.demand_ns for each in queues))
    return solved(queues, think, min(cpus, run["threads"]))


def _name(lock: Mapping[str, Any]) -> str:
    where = [f"{key} {lock[key]}" for key in ("class", "shard") if lock[key] is not None]
    return " ".join([lock["name"], *where])


def runs_of(rows: Mapping[str, Run], name: str) -> dict[int, Run]:
    """The runs of a row by their threads."""
    return {run["threads"]: run for key, run in rows.items() if key.rpartition(" T=")[0] == name}


def base_of(rows: Mapping[str, Run], name: str) -> Run:
    """The run from which a row is predicted: that of the fewest threads, with one shard."""
    found = runs_of(rows, name.partition(",")[0])
    return found[min(found)]


def checks(
    rows: Mapping[str, Run], costs: Mapping[str, float]
) -> Iterable[tuple[str, float, float]]:
    """Each run that is no base: predicted and measured speed, both in shares of the base's."""
    for key, run in rows.items():
        name = key.rpartition(" T=")[0]
        base = base_of(rows, name)
        if run is base:
            continue
        cpus = min(costs["cpus"], run["threads"])
        before = predicted(base, base, int(min(costs["cpus"], base["threads"])), costs)
        after = predicted(base, run, int(cpus), costs)
        yield key, after.ops_per_ns / before.ops_per_ns, run["ops_per_s"] / base["ops_per_s"]


def main() -> None:
    """Print the check, or the prediction for a number of CPUs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ledger", type=Path, default=HERE / "ledger.json")
    parser.add_argument("--costs", type=Path, default=HERE / "costs.json")
    parser.add_argument("--cpus", type=int, nargs="*", help="machines to predict")
    asked = parser.parse_args()
    rows: dict[str, Run] = json.loads(asked.ledger.read_text())["rows"]
    costs: dict[str, float] = json.loads(asked.costs.read_text())
    if not asked.cpus:
        for key, model, truth in checks(rows, costs):
            print(
                f"{key:32} predicted {model:6.3f}  measured {truth:6.3f}  {model / truth - 1:+.0%}"
            )
        return
    for name in dict.fromkeys(key.rpartition(" T=")[0] for key in rows):
        found = runs_of(rows, name)
        base, run = base_of(rows, name), found[max(found)]
        for cpus in asked.cpus:
            many = {**run, "threads": cpus}
            answer = predicted(base, many, cpus, costs)
            used = ", ".join(f"{each} {share:.3f}" for each, share in answer.used[:3])
            print(f"{name:24} {cpus:4} CPUs {1e3 * answer.ops_per_ns:9.1f} M operations/s  {used}")


if __name__ == "__main__":
    main()
