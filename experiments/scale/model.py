"""Speed on machines with more CPUs, computed from the ledger.

Each CPU runs one thread. In an operation it works by itself for a while (the thinking time) and
visits some locks; one thread at a time holds a lock, the others wait. That is a closed network of
queues, whose throughput mean-value analysis gives exactly (Reiser and Lavenberg, 1980) if holds are
exponential; equal holds would wait less, so the model errs on the slow side.

    python experiments/scale/model.py             # first: does it predict what was measured here?
    python experiments/scale/model.py --cpus 128  # then: a machine that is not here

What an operation of T threads on C CPUs costs is what it costs where each CPU has a process of its
own with T / C threads, which was measured by turns with it (apart). So the CPUs share caches and
memory in both, and what is computed is what a heap that they share changes:

    work(T) = cpu(apart) + paths(T) - paths(apart)              slow paths, timed by the ledger
            + fault_ns (faults(T) - faults(apart))              page faults (fault.c)
            + way_ns ways(T)                                    lines from another cache (lines.py)

And they wait for locks. Nothing is fitted: each count and each time is measured by itself.
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

CPUS_HERE = 2
"""Of the machine on which the ledger was recorded."""

WAYS_OF_A_PASS = 2
"""What line.c times is two ways: the thread reads the line, then takes it to write to it."""

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
    """Mean-value analysis of a closed network."""
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
        float(paths[name]["per_op"]) * max(0.0, float(paths[name]["ns"] - run["clock_ns"]))
        for name in ENTRIES
        if name in paths
    )


def ways_per_op(run: Run, cpus: int) -> float:
    """How often an operation waits for a line from another CPU, outside of the paths' times.

    These hold the ways of hz's own lines between the CPUs that are here. On more CPUs all are
    counted; so those ways count twice, and the model errs on the slow side.
    """
    if cpus == 1:
        return 0.0
    ways = run["ways_per_op"]
    return float(ways["program"] + (ways["hz"] if cpus > CPUS_HERE else 0.0))


def work_ns(base: Run, run: Run, cpus: int, line_ns: float, fault_ns: float) -> float:
    """CPU time of an operation of `run`."""
    apart = run["apart"]
    faults = run["faults_per_op"] - apart["faults_per_op"]
    return (
        float(apart["cpu_ns_per_op"] + fault_ns * faults)
        + (path_ns(run) - path_ns(base))
        + ways_per_op(run, cpus) * line_ns / WAYS_OF_A_PASS
    )


def stations(run: Run, line_ns: float) -> list[Station]:
    """The locks of a run, and the address space, which the kernel locks."""
    locks = [Station(_name(lock), lock["per_op"] * (lock["ns"] + line_ns)) for lock in run["locks"]]
    calls = run["system_calls"]
    mapping = sum(calls[name]["per_op"] * calls[name]["ns"] for name in MAPPING if name in calls)
    return [*locks, Station("address space (kernel)", mapping)]


def predicted(base: Run, run: Run, cpus: int, line_ns: float, fault_ns: float) -> Solution:
    """The speed of `run` on some CPUs; of its threads as many work at once as there are CPUs."""
    queues = stations(run, line_ns if cpus > 1 else 0.0)
    work = work_ns(base, run, cpus, line_ns, fault_ns)
    think = max(0.0, work - sum(each.demand_ns for each in queues))
    return solved(queues, think, min(cpus, run["threads"]))


def _name(lock: Mapping[str, Any]) -> str:
    where = [f"{key} {lock[key]}" for key in ("class", "shard") if lock[key] is not None]
    return " ".join([lock["name"], *where])


def checks(rows: Mapping[str, Run], fault_ns: float) -> Iterable[tuple[str, float, float]]:
    """Each run on the CPUs here: predicted and measured, in million operations a second."""
    for key, run in rows.items():
        if run["cpus"] == CPUS_HERE:
            answer = predicted(rows[run["base"]], run, CPUS_HERE, run["line_ns"], fault_ns)
            yield key, 1e3 * answer.ops_per_ns, 1e3 * CPUS_HERE / float(run["cpu_ns_per_op"])


def main() -> None:
    """Print the check, or the prediction for a number of CPUs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ledger", type=Path, default=HERE / "ledger.json")
    parser.add_argument("--cpus", type=int, nargs="*", help="machines to predict")
    parser.add_argument("--line-ns", type=float, default=100.0, help="what line.c says there")
    asked = parser.parse_args()
    file = json.loads(asked.ledger.read_text())
    rows: dict[str, Run] = file["rows"]
    fault_ns = float(file["fault_ns"])
    if not asked.cpus:
        for key, model, truth in checks(rows, fault_ns):
            print(
                f"{key:32} predicted {model:6.1f}  measured {truth:6.1f}  {model / truth - 1:+.0%}"
            )
        return
    for key, run in rows.items():
        if run["cpus"] <= CPUS_HERE:
            continue
        base = rows[run["base"]]
        for cpus in asked.cpus:
            there = {**run, "threads": cpus}
            answer = predicted(base, there, cpus, asked.line_ns, fault_ns)
            alone = predicted(base, there, 1, asked.line_ns, fault_ns)
            used = ", ".join(f"{each} {share:.3f}" for each, share in answer.used[:3])
            times = answer.ops_per_ns / alone.ops_per_ns
            print(f"{key:36} {cpus:4} CPUs: {times:6.1f} times one   {used}")


if __name__ == "__main__":
    main()
