"""The built-in workloads as programs: hz-bench, for those that turns cannot measure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from msgspec import structs

from hztune.measure.identity import Fault
from hztune.measure.program import DEFAULT_TIMEOUT_S, Program, rate_of
from hztune.workload import WorkloadSpec

_LEAST_LOAD_S = 0.25  # least length of one of several loads of a workload
_RESTS = "^hz-bench: at rest$"


def bench_program(
    spec: WorkloadSpec,
    seconds: float = 1.0,
    rss_limit_mb: int = 0,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> Program:
    words = spec.command(seed=0)
    at = words.index("--seed")
    if spec.rest is not None:
        seconds = max(_LEAST_LOAD_S, seconds / spec.rest.rounds)
    argv = (*words[:at], *words[at + 2 :], *spec.span(seconds))
    return Program(
        argv,
        rate=_p99 if spec.goal == "p99" else _rate,
        rest=spec.rest and structs.replace(spec.rest, says=_RESTS),
        seeks_kept=spec.goal == "kept",
        quota=spec.quota,
        counts=_counts,
        rss_limit_mb=rss_limit_mb,
        seed_option="--seed",
        timeout_s=timeout_s,
        threads=spec.threads,
        own_kb=_own_kb if spec.trace is not None else None,
    )


def object_in(text: str | None) -> dict[str, Any]:
    """What hz-bench printed; empty where that is no object."""
    try:
        found = json.loads(text or "null")
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {}


def _counts(stdout: str) -> tuple[Mapping[str, int], Mapping[str, int]]:
    result = object_in(stdout)
    facts = {name: result[name] for name in ("ops", "minor_faults")}
    if rest := result.get("rss_idle_kb"):
        facts["rss_idle_kb"] = rest["at_the_end"]
    return (result.get("hz") or {}).get("counters", {}), facts


def _own_kb(stdout: str) -> int:
    """The memory that hz-bench keeps for itself, KiB; 0 where it printed no result."""
    return int(object_in(stdout).get("own_kb", 0))


def _rate(wall_s: float, stdout: str, *, of_p99: bool = False) -> float | Fault:
    """The rate that hz-bench reports, or 1 / ns that 99 of 100 mallocs, and frees, keep to."""
    found = object_in(stdout)
    if of_p99 and (told := found.get("latency")):
        slowest = max(told[call]["p99_ns"] for call in ("malloc", "free"))
        return rate_of(str(slowest), "lower")
    if not of_p99 and "ops_per_s" in found:
        return rate_of(str(found["ops_per_s"]), "higher")
    return Fault("bad_output", f"hz-bench printed no {'latencies' if of_p99 else 'result'}")


_p99 = partial(_rate, of_p99=True)
