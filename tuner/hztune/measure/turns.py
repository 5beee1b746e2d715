"""Built-in workloads by turns: each arm has a warm process, and one of them works at a time.

hz-turns conducts, so that no Python runs near a turn. A block takes fresh processes: their fill and
warm-up are paid once for all the rounds of the block, and rounds that were disturbed are repeated
in the same processes.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hztune import artifacts
from hztune.blocks import STATUSES, overall_rate
from hztune.errors import HztuneError
from hztune.machine import timed_window
from hztune.measure import Accounting, Arm, Block, Executor, Outcome, Role, Turn
from hztune.measure.disturbance import DisturbanceRule, Throttling, repeats, slept_ns
from hztune.measure.identity import AllocatorIdentity, Fault, IdentityCheck
from hztune.measure.launch import ending_fault
from hztune.measure.whole import PADDING, PADDING_BYTES, SEEDS, Part
from hztune.process import Child
from hztune.store import Evidence, Nowhere, Plan, Sink
from hztune.workload import WorkloadSpec

_SILENCE_S = 60.0
_STOP_S = 5.0
_SHORTEST_TURN_MS = 20.0
_LONGEST_TURN_MS = 120.0
_THREAD_MS = 4.0
"""Time that each thread shall have on a CPU in a turn: a little more than the scheduler's slice."""
_WARMUP_MS = 100.0
_STALL_MS = 3000
_SLOWER = 20.0
"""A round that takes that many times as long as expected is hanging."""


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
        """Returns the seconds that an arm works in a block, its warm-up included."""
        turn_ms = max(self.turn_ms, self.round_ms)
        return (rounds * turn_ms + max(self.warmup_ms, self.round_ms)) * 1e-3


def tempo_for(spec: WorkloadSpec, rss_limit_mb: int = 0) -> Tempo:
    """Returns the tempo that was found best for the workload's number of threads.

    A turn must be long enough for the scheduler to let every thread work: with 32 threads on two
    CPUs the noise of a second of larson falls from 0.21 to 0.034 when turns go from 20 to 60 ms,
    while up to 8 threads 20 ms are as good as any. Throughput is level after 60 to 100 ms.

    A trace whose rounds are long is not the same everywhere: its turns are whole rounds.
    """
    if spec.round_s:
        round_ms = 1e3 * spec.round_s
        return Tempo(
            turn_ms=_SHORTEST_TURN_MS,
            skip_ms=0.0,
            warmup_ms=_SHORTEST_TURN_MS,
            stall_ms=_STALL_MS + int(_SLOWER * round_ms),
            rss_limit_mb=rss_limit_mb,
            round_ms=round_ms,
        )
    crowd = spec.threads / len(os.sched_getaffinity(0))
    turn_ms = min(_LONGEST_TURN_MS, max(_SHORTEST_TURN_MS, _THREAD_MS * crowd))
    return Tempo(
        turn_ms=turn_ms, skip_ms=0.1 * turn_ms, warmup_ms=_WARMUP_MS, rss_limit_mb=rss_limit_mb
    )


class TurnExecutor(Executor):
    """Measures arms on one workload by turns in fresh processes."""

    def __init__(
        self,
        spec: WorkloadSpec,
        sink: Sink | None = None,
        *,
        seed: int,
        tempo: Tempo | None = None,
        identity: IdentityCheck | None = None,
    ) -> None:
        """Makes the executor of a study.

        Args:
            spec: The workload.
            sink: Where every turn goes as soon as it exists; None: nowhere.
            seed: Of requests, orders and environment sizes; a block's are its own.
            tempo: None: what fits the workload's threads.
            identity: None: by the allocators' adapters.
        """
        self.spec = spec
        self.sink = sink or Nowhere()
        self._seed = seed
        self.tempo = tempo or tempo_for(spec)
        self.identity = identity or AllocatorIdentity()
        self._overhead_s = 0.0
        self._blocks = 0

    def cost(self, arms: int, rounds: int) -> float:
        beside = self._overhead_s / self._blocks if self._blocks else 0.0
        return arms * (self.tempo.block_s(rounds) + beside)

    def measure(self, arms: Sequence[Arm], *, role: Role, rounds: int, number: int) -> Block:
        with timed_window():
            started_ns = time.monotonic_ns()
            self.sink.begin(Plan(number, role, tuple(arms), rounds))
            performance = _Performance(self, arms)
            performance.play(rounds, random.Random(f"{self._seed} {number} {role}"))
            outcomes = performance.outcomes()
            self.sink.end()
            spent = performance.accounting(started_ns)
        self._accounting += spent
        if self.tempo.round_ms and spent.turns:
            took_ms = 1e3 * spent.measured_s / spent.turns
            self.tempo = replace(self.tempo, round_ms=took_ms)
        planned_s = len(arms) * self.tempo.block_s(rounds)
        self._overhead_s += max(0.0, spent.wall_s - planned_s) / len(arms)  # beside its turns
        self._blocks += 1
        return Block(number, role, outcomes)


class _Performance:
    """One block: hz-turns from its start to its end."""

    def __init__(self, of: TurnExecutor, arms: Sequence[Arm]) -> None:
        self._of = of
        self._parts = [Part.of(arm, of.identity) for arm in arms]
        self._endings: dict[int, Mapping[str, Any]] = {}
        self._judge = DisturbanceRule(of.spec.threads, len(os.sched_getaffinity(0)))
        self._launched_ns = 0
        self._slept_ns = slept_ns()
        self._throttling = Throttling()
        self._throttled_us = self._throttling.us()

    def play(self, rounds: int, rng: random.Random) -> None:
        """Runs the block; what it came to stands in the parts."""
        if all(part.fault for part in self._parts):
            return
        self._launched_ns = time.monotonic_ns()
        with Child(self._command(rounds, rng), env=self._of.identity.base, stdin=None) as child:
            for line in child.lines(_SILENCE_S):
                event = json.loads(line)
                if event["event"] == "rounds":
                    turns = [turn for part in self._parts for turn in part.turns]
                    more = repeats(rounds, event["done"], turns)
                    child.send(f"more {more}" if more else "quit")
                else:
                    self._take(event)
            ended = child.finish(_STOP_S)
        if not ended.ok:
            raise HztuneError(f"hz-turns {ended.describe()}")

    def _command(self, rounds: int, rng: random.Random) -> list[str]:
        """Returns the command; an arm is named by its index, since an arm may stand twice."""
        tempo = self._of.tempo
        words = [str(artifacts.turns()), "--ask", "--seed", str(rng.randrange(SEEDS))]
        words += ["--turn-ms", f"{tempo.turn_ms:g}", "--skip-ms", f"{tempo.skip_ms:g}"]
        words += ["--warmup-ms", f"{tempo.warmup_ms:g}", "--rounds", str(rounds)]
        words += ["--stall-ms", str(tempo.stall_ms)]
        if tempo.round_ms:
            words.append("--whole")
        if tempo.rss_limit_mb:
            words += ["--rss-limit-mb", str(tempo.rss_limit_mb)]
        for index, part in enumerate(self._parts):
            if part.fault is None:
                words += ["--arm", str(index)]
                if own := self._of.identity.program(part.arm):
                    words += ["--program", str(own)]
                padding = "x" * rng.randrange(PADDING_BYTES)
                for name, value in {**part.changes, PADDING: padding}.items():
                    words += ["--env", f"{name}={value}"]
        return [*words, "--", *self._of.spec.command(rng.randrange(SEEDS))]

    def _take(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "end":
            return
        index = int(event["arm"])
        part = self._parts[index]
        if event["event"] == "start":
            part.pid = event["pid"]
        elif event["event"] == "turn":
            turn, evidence = self._turn(event)
            part.turns.append(turn)
            self._of.sink.turn(index, part.pid, turn, evidence)
        elif event["event"] == "exit":
            self._endings[index] = event

    def _turn(self, event: Mapping[str, Any]) -> tuple[Turn, Evidence]:
        slept, throttled = slept_ns(), self._throttling.us()
        evidence = Evidence(
            cpu_ns=event["cpu_ns"],
            involuntary=event["involuntary"],
            steal_ticks=event["steal_ticks"],
            pressure_us=event["psi_us"],
            suspended_ns=slept - self._slept_ns,
            throttled_us=throttled - self._throttled_us,
            rss_kb=event["rss_kb"],
        )
        self._slept_ns, self._throttled_us = slept, throttled
        turn = Turn(
            round=event["round"],
            position=event["position"],
            start_ns=event["start_ns"],
            counted_ns=event["counted_ns"],
            ops=event["ops"],
            disturbed=self._judge.causes(evidence, event["counted_ns"]),
        )
        return turn, evidence

    def outcomes(self) -> tuple[Outcome, ...]:
        """Returns what each arm came to, and puts it into the sink."""
        found = []
        for index, part in enumerate(self._parts):
            ending = self._endings.get(index, {})
            result = _object_in(ending.get("result"))
            fault = part.fault or self._fault(part, ending, result)
            known = {"ops": result.get("ops"), "minor_faults": ending.get("minor_faults")}
            outcome = Outcome(
                arm=part.arm,
                status="ok" if fault is None else fault.status,
                detail="" if fault is None else fault.detail,
                ops_per_s=overall_rate(part.turns) if fault is None else 0.0,
                turns=tuple(part.turns),
                rss_peak_kb=ending.get("rss_peak_kb", 0),
                live_kb=0 if self._of.tempo.round_ms else result.get("live_peak_kb", 0),
                counters=(result.get("hz") or {}).get("counters", {}),
                facts={name: value for name, value in known.items() if value is not None},
            )
            found.append(outcome)
            self._of.sink.outcome(index, part.pid, outcome)
        return tuple(found)

    def _fault(
        self, part: Part, ending: Mapping[str, Any], result: Mapping[str, Any]
    ) -> Fault | None:
        """Returns why a process that was started does not count; None: it does."""
        if not ending:
            return Fault("hang", "hz-turns did not say how it ended")
        if (word := ending["status"]) != "ok":
            if word not in STATUSES:
                raise HztuneError(f"hz-turns speaks of a status {word!r}; reinstall hztune")
            return ending_fault(word, ending["signal"], ending["code"], ending["stderr_tail"])
        if not result:
            return Fault("bad_output", "hz-bench ended well but printed no result")
        if sum(turn.ops for turn in part.turns) <= 0:
            return Fault("bad_output", "it completed no operation in all its turns")
        return self._of.identity.judge(part.arm, result["allocator"]["path"], ending["stderr_tail"])

    def accounting(self, started_ns: int) -> Accounting:
        """Returns where the time of the block went."""
        turns = [turn for part in self._parts for turn in part.turns]
        first_ns = min((turn.start_ns for turn in turns), default=self._launched_ns)
        skipped_ns = len(turns) * self._of.tempo.skip_ms * 1e6
        warmup_s = (first_ns - self._launched_ns + skipped_ns) * 1e-9
        return Accounting.of(turns, warmup_s, (time.monotonic_ns() - started_ns) * 1e-9)


def _object_in(text: str | None) -> Mapping[str, Any]:
    """Returns what hz-bench printed; empty where that is no object."""
    try:
        found = json.loads(text or "null")
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {}
