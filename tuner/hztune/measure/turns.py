"""Built-in workloads by turns, and those that turns cannot measure as programs (hz-bench).

By turns each arm has a warm process, and one of them works at a time. hz-turns conducts, so that no
Python runs near a turn. A block takes fresh processes: their fill and warm-up are paid once for all
the rounds of the block, and rounds that were disturbed are repeated in the same processes.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from msgspec import structs

from hztune import artifacts
from hztune.arguments import option_words
from hztune.blocks import Outcome, Turn
from hztune.errors import HztuneError
from hztune.measure import Accounting, disturbance
from hztune.measure.disturbance import Watch, repeats
from hztune.measure.identity import AllocatorIdentity, Fault
from hztune.measure.launch import ending_fault
from hztune.measure.program import DEFAULT_TIMEOUT_S, Program, rate_of
from hztune.measure.whole import SEEDS, BlockExecutor, Part
from hztune.process import Child
from hztune.store import Evidence, Sink
from hztune.workload import WorkloadSpec

_SILENCE_S = 60.0
_STOP_S = 5.0
_SHORTEST_TURN_MS = 20.0
LONGEST_TURN_MS = 120.0
THREAD_MS = 4.0  # time on a CPU for each thread in a turn: a little over the scheduler's slice
_WARMUP_MS = 100.0
_STALL_MS = 3000
_SLOWER = 20.0  # a round that takes that many times as long as expected is hanging
_LEAST_LOAD_S = 0.25  # least length of one of several loads of a workload
_RESTS = "^hz-bench: at rest$"


@dataclass(frozen=True, slots=True)
class Tempo:
    """How a block is conducted; times of one process."""

    turn_ms: float  # length of a turn, its uncounted start included
    skip_ms: float  # uncounted start of each turn
    warmup_ms: float  # turn time before the first round
    stall_ms: int = _STALL_MS  # a process that takes longer to park is hanging
    rss_limit_mb: int = 0  # a process above it is killed; 0: no limit
    round_ms: float = 0.0  # a round, about, with which each turn ends; 0: turns end anywhere

    def block_s(self, rounds: int) -> float:
        turn_ms = max(self.turn_ms, self.round_ms)
        return (rounds * turn_ms + max(self.warmup_ms, self.round_ms)) * 1e-3


def tempo_for(spec: WorkloadSpec, rss_limit_mb: int = 0) -> Tempo:
    """The tempo that was found best for the workload's number of threads.

    A turn must be long enough for the scheduler to let every thread work: with 32 threads on two
    CPUs the noise of a second of larson falls from 0.21 to 0.034 from 20 to 60 ms; up to 8 threads,
    20 ms are as good as any. Throughput is level after 60 to 100 ms. Where a trace's rounds are
    long, its turns are whole rounds.
    """
    if spec.round_s:
        round_ms, turn_ms = 1e3 * spec.round_s, _SHORTEST_TURN_MS
        stall_ms = _STALL_MS + int(_SLOWER * round_ms)
        return Tempo(turn_ms, 0.0, turn_ms, stall_ms, rss_limit_mb, round_ms)
    crowd = spec.threads / len(os.sched_getaffinity(0))
    turn_ms = min(LONGEST_TURN_MS, max(_SHORTEST_TURN_MS, THREAD_MS * crowd))
    return Tempo(turn_ms, 0.1 * turn_ms, _WARMUP_MS, rss_limit_mb=rss_limit_mb)


class TurnExecutor(BlockExecutor):
    def __init__(
        self,
        spec: WorkloadSpec,
        sink: Sink | None = None,
        *,
        seed: int,
        tempo: Tempo | None = None,
        identity: AllocatorIdentity | None = None,
    ) -> None:
        super().__init__(sink, seed=seed, identity=identity)
        self.spec = spec
        self.tempo = tempo or tempo_for(spec)
        self._overheads_s: list[float] = []

    def cost(self, arms: int, rounds: int) -> float:
        beside_s = sum(self._overheads_s) / max(1, len(self._overheads_s))
        return arms * (self.tempo.block_s(rounds) + beside_s)

    def _learn(self, outcomes: Sequence[Outcome], rounds: int, spent: Accounting) -> None:
        if self.tempo.round_ms and spent.turns:
            self.tempo = replace(self.tempo, round_ms=1e3 * spent.measured_s / spent.turns)
        beside_s = spent.wall_s - len(outcomes) * self.tempo.block_s(rounds)
        self._overheads_s.append(max(0.0, beside_s) / len(outcomes))

    def _play(self, parts: list[Part], rounds: int, number: int, rng: random.Random) -> float:
        if all(part.fault for part in parts):
            return 0.0
        turns: list[Turn] = []
        launched_ns, watch = time.monotonic_ns(), Watch(is_of_turns=True)
        command = self._command(parts, rounds, rng)
        with Child(command, env=self.identity.base, stdin=None) as child:
            for event in map(json.loads, child.lines(_SILENCE_S)):
                index = int(event.get("arm", 0))
                match event["event"]:
                    case "start":
                        parts[index].pid = event["pid"]
                    case "turn":
                        turn, evidence = _turn(event, watch.passed(), self.spec.threads)
                        turns.append(turn)
                        parts[index].turns.append(turn)
                        self.sink.turn(index, parts[index].pid, turn, evidence)
                    case "rounds":
                        more = repeats(rounds, event["done"], turns)
                        child.send(f"more {more}" if more else "quit")
                    case "exit":
                        self._end(parts[index], event)
            ended = child.finish(_STOP_S)
        if not ended.ok:
            raise HztuneError(f"hz-turns {ended.describe()}")
        first_ns = min((turn.start_ns for turn in turns), default=launched_ns)
        return (first_ns - launched_ns) * 1e-9 + len(turns) * self.tempo.skip_ms * 1e-3

    def _command(self, parts: Sequence[Part], rounds: int, rng: random.Random) -> list[str]:
        """The command; an arm is named by its index, since an arm may stand twice."""
        tempo = self.tempo
        words = option_words(
            ask=True,
            seed=rng.randrange(SEEDS),
            turn_ms=tempo.turn_ms,
            skip_ms=tempo.skip_ms,
            warmup_ms=tempo.warmup_ms,
            rounds=rounds,
            stall_ms=tempo.stall_ms,
            whole=tempo.round_ms > 0,
            rss_limit_mb=tempo.rss_limit_mb or None,
        )
        for index, part in enumerate(parts):
            if part.fault is None:
                words += option_words(arm=index, program=self.identity.program(part.arm))
                for name, value in self._padded(part, rng).items():
                    words += ["--env", f"{name}={value}"]
        own = self.spec.command(rng.randrange(SEEDS))
        return [str(artifacts.turns()), *words, "--", *own]

    def _end(self, part: Part, event: Mapping[str, Any]) -> None:
        result = object_in(event.get("result"))
        known = {"ops": result.get("ops"), "minor_faults": event.get("minor_faults")}
        part.facts = {name: value for name, value in known.items() if value is not None}
        part.counters = (result.get("hz") or {}).get("counters", {})
        part.rss_peak_kb = event.get("rss_peak_kb", 0)
        part.live_kb = 0 if self.tempo.round_ms else result.get("live_peak_kb", 0)
        word, said = event["status"], event["stderr"]
        if word != "ok":
            part.fault = ending_fault(word, event["signal"], event["code"], said)
        elif not result:
            part.fault = Fault("bad_output", "hz-bench ended well but printed no result")
        elif sum(turn.ops for turn in part.turns) <= 0:
            part.fault = Fault("bad_output", "it completed no operation in all its turns")
        else:
            part.fault = self.identity.judge(part.arm, result["allocator"]["path"], said)


def _turn(
    event: Mapping[str, Any], passed: Mapping[str, int], threads: int
) -> tuple[Turn, Evidence]:
    evidence = Evidence(
        cpu_ns=event["cpu_ns"],
        involuntary=event["involuntary"],
        steal_ticks=event["steal_ticks"],
        pressure_us=event["psi_us"],
        rss_kb=event["rss_kb"],
        **passed,
    )
    told = {name: event[name] for name in ("round", "position", "start_ns", "counted_ns", "ops")}
    cores = len(os.sched_getaffinity(0))
    causes = disturbance.causes(evidence, event["counted_ns"], threads, cores)
    return Turn(disturbed=causes, **told), evidence


# ---- workloads as programs -----------------------------------------------------------------------


def bench_program(
    spec: WorkloadSpec,
    seconds: float = 1.0,
    rss_limit_mb: int = 0,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> Program:
    if spec.rest is not None:
        seconds = max(_LEAST_LOAD_S, seconds / spec.rest.rounds)
    return Program(
        (*spec.command(), *spec.span(seconds)),
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
    if "rss_idle_kb" in result:
        facts["rss_idle_kb"] = result["rss_idle_kb"]
    return (result.get("hz") or {}).get("counters", {}), facts


def _own_kb(stdout: str) -> int:
    """The memory that hz-bench keeps for itself, KiB; 0 where it printed no result."""
    return int(object_in(stdout).get("own_kb", 0))


def _rate(wall_s: float, stdout: str, *, of_p99: bool = False) -> float | Fault:
    """The rate that hz-bench reports, or 1 / ns that 99 of 100 mallocs, and frees, keep to."""
    found = object_in(stdout)
    if of_p99 and (told := found.get("latency")):
        return rate_of(str(max(told[call]["p99_ns"] for call in ("malloc", "free"))), "lower")
    if not of_p99 and "ops_per_s" in found:
        return rate_of(str(found["ops_per_s"]), "higher")
    return Fault("bad_output", f"hz-bench printed no {'latencies' if of_p99 else 'result'}")


_p99 = partial(_rate, of_p99=True)
