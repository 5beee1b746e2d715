"""From what an executor tells to the rows of a study's samples, and back to blocks.

A `block` row begins each block, a `turn` row follows each turn as soon as it has been measured, an
`outcome` row ends an arm's part of the block: only then is it known whether the process was the one
asked for. A block is complete when all its outcomes are there. The turns of an incomplete one are
kept, but no estimate is made from them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from operator import itemgetter
from typing import Any, Protocol

from hztune.blocks import Arm, Block, Outcome, ProofPlan, Role, Turn, joined
from hztune.rests import Rested
from hztune.store.lines import KIND_WITHIN, Record

SCHEMA = 1

_TURN = itemgetter("turn", "position", "start_ns", "counted_ns", "ops", "disturbed")
"""What a row says of a turn, in the order of its fields."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a block is going to be.

    Attributes:
        number: Of the block.
        role: What it is for.
        arms: The control first; the same arm may stand twice.
        rounds: Turns that each arm shall get.
        workload: On which of several workloads, or on which of the panel; "" where there is one
            only.
        part: Its number among them, from 0.
        parts: How many there are; the block is complete when it was measured on all.
        machine: What tells the machine that measured it; "": that of the sink.
    """

    number: int
    role: Role
    arms: tuple[Arm, ...]
    rounds: int
    workload: str = ""
    part: int = 0
    parts: int = 1
    machine: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was seen of the machine and the process during a turn.

    Attributes:
        cpu_ns: CPU time that the process used in it.
        involuntary: Context switches that its threads did not ask for.
        steal_ticks: Ticks (10 ms) that the hypervisor took from the machine.
        pressure_us: Time that anything on the machine waited for a CPU, microseconds.
        suspended_ns: Time that the machine slept.
        throttled_us: Time that a quota kept CPUs from the control group, microseconds, summed over
            the CPUs.
        others_us: CPU time of all other processes on the machine, microseconds, as far as its ticks
            (10 ms) show; 0 where it is not read.
        rss_kb: Resident memory at its end, KiB.
    """

    cpu_ns: int = 0
    involuntary: int = 0
    steal_ticks: int = 0
    pressure_us: int = 0
    suspended_ns: int = 0
    throttled_us: int = 0
    others_us: int = 0
    rss_kb: int = 0


class Sink(Protocol):
    """Where an executor puts what it measures: `begin`, turns, one outcome for each arm, `end`."""

    def begin(self, plan: Plan) -> None:
        """Takes note that a block begins."""

    def turn(self, index: int, pid: int, turn: Turn, evidence: Evidence) -> None:
        """Takes a turn of the arm at `index`, in process `pid`, that has just been measured."""

    def outcome(self, index: int, pid: int, outcome: Outcome) -> None:
        """Takes what the arm at `index` came to; `pid` 0: it could not be started."""

    def end(self) -> None:
        """Takes note that the block is complete."""


class Nowhere:
    """The sink of measurements that are not kept."""

    def begin(self, plan: Plan) -> None:
        """Keeps nothing."""

    def turn(self, index: int, pid: int, turn: Turn, evidence: Evidence) -> None:
        """Keeps nothing."""

    def outcome(self, index: int, pid: int, outcome: Outcome) -> None:
        """Keeps nothing."""

    def end(self) -> None:
        """Keeps nothing."""


class SampleRows(ABC):
    """A sink that makes a row of everything it is told, and hands each on at once."""

    def __init__(self, study: str, machine: str) -> None:
        """Makes the sink of one study on one machine.

        Args:
            study: A short name of what the study is.
            machine: What tells the machine from others that measure for the study.
        """
        self.study = study
        self.machine = machine
        self._plan: Plan | None = None
        self._proof: ProofPlan | None = None

    @abstractmethod
    def append(self, row: Record) -> None:
        """Takes the next row."""

    def note(self, proof: ProofPlan | None) -> None:
        """Takes note of the proof that the next blocks belong to; None: they belong to none."""
        self._proof = proof

    def begin(self, plan: Plan) -> None:
        """Writes that a block begins; an earlier one that did not end is void."""
        self._plan = plan
        arms = [arm.key for arm in plan.arms]
        row = {**self._head("block"), "arms": arms, "rounds": plan.rounds}
        if plan.workload:
            row["workload"] = plan.workload
        if plan.parts > 1:
            row |= {"part": plan.part, "parts": plan.parts}
        if self._proof is not None:
            row["proof"] = asdict(self._proof)
        self.append(row)

    def turn(self, index: int, pid: int, turn: Turn, evidence: Evidence) -> None:
        """Writes a turn, at once."""
        self.append(
            {
                **self._arm_head("turn", index, pid),
                "turn": turn.round,
                "position": turn.position,
                "start_ns": turn.start_ns,
                "counted_ns": turn.counted_ns,
                "ops": turn.ops,
                "status": "ok",
                "disturbed": turn.disturbed,
                **asdict(evidence),
            }
        )

    def outcome(self, index: int, pid: int, outcome: Outcome) -> None:
        """Writes how an arm's part of the block ended."""
        self.append(
            {
                **self._arm_head("outcome", index, pid),
                "status": outcome.status,
                "detail": outcome.detail,
                "ops_per_s": outcome.ops_per_s,
                "rss_peak_kb": outcome.rss_peak_kb,
                "live_kb": outcome.live_kb,
                "counters": dict(outcome.counters),
                "facts": dict(outcome.facts),
                **({"rested": outcome.rested.written()} if outcome.rested is not None else {}),
            }
        )

    def _head(self, kind: str) -> Record:
        """Returns what every row of a block begins with."""
        assert self._plan is not None, "no block has begun"
        return {
            "schema": SCHEMA,
            "kind": kind,
            "study": self.study,
            "machine": self._plan.machine or self.machine,
            "pair": self._plan.number,
            "role": self._plan.role,
        }

    def _arm_head(self, kind: str, index: int, pid: int) -> Record:
        """Returns what every row of an arm begins with."""
        head = self._head(kind)
        assert self._plan is not None
        arm = self._plan.arms[index]
        return {
            **head,
            "index": index,
            "arm": arm.key,
            "allocator": arm.allocator,
            "params": arm.config,
            "pid": pid,
        }


def lean(line: bytes) -> bytes:
    """Of the line of a turn only what a block is made of, any other line as it is.

    Almost all lines are of turns, and most of what each says it repeats of its arm: decoding that,
    too, would take twice the time. What is left is found by the names around it, which stand where
    `SampleRows.turn` puts them; inside of a value there is no quotation mark without a backslash,
    and the names of an arm's parameters stand between those that are looked for from both ends.
    """
    if line.find(b',"kind":"turn",', 0, KIND_WITHIN) < 0:
        return line
    whose, arm = line.find(b',"index":'), line.find(b',"arm":')
    what, evidence = line.rfind(b',"turn":'), line.rfind(b',"cpu_ns":')
    if not 0 < whose < arm < what < evidence:
        return line
    return b'{"kind":"turn"%b%b}' % (line[whose:arm], line[what:evidence])


def blocks_of(records: Iterable[Record]) -> Iterator[Block]:
    """Yields the complete blocks of a file's records, in order.

    A block on several workloads is complete when all of them stand one after another.
    """
    waiting: list[Block] = []
    workloads: list[str] = []
    for head, block in _measured(records):
        part = head.get("part", 0)
        if part != len(waiting) or (waiting and waiting[0].number != block.number):
            waiting, workloads = [], []
        if part != len(waiting):
            continue
        waiting.append(block)
        workloads.append(head.get("workload", ""))
        if len(waiting) == head.get("parts", 1):
            yield joined(waiting, workloads)
            waiting, workloads = [], []


def _measured(records: Iterable[Record]) -> Iterator[tuple[Record, Block]]:
    """Yields what was measured completely on one workload, with the row that began it."""
    turns: defaultdict[int, list[Turn]] = defaultdict(list)
    outcomes: dict[int, Outcome] = {}
    head: Record = {}
    for row in records:
        if row["kind"] == "block":
            turns.clear()
            outcomes.clear()
            head = row
        elif row["kind"] == "turn":
            turns[row["index"]].append(_turn(row))
        elif row["kind"] == "outcome":
            outcomes[row["index"]] = _outcome(row, tuple(turns[row["index"]]))
            count = len(head["arms"])
            if len(outcomes) == count:
                found = tuple(outcomes[i] for i in range(count))
                machine, parts = row.get("machine", ""), head.get("parts", 1)
                workload = head.get("workload", "") if parts == 1 else ""
                proof = ProofPlan(**head["proof"]) if "proof" in head else None
                yield head, Block(row["pair"], row["role"], found, machine, workload, proof)


def _turn(row: Mapping[str, Any]) -> Turn:
    """Returns the turn of a row."""
    return Turn(*_TURN(row))


def _outcome(row: Mapping[str, Any], turns: tuple[Turn, ...]) -> Outcome:
    """Returns the outcome of a row."""
    return Outcome(
        arm=Arm.of(row["allocator"], row["params"]),
        status=row["status"],
        detail=row["detail"],
        ops_per_s=row["ops_per_s"],
        turns=turns,
        rss_peak_kb=row["rss_peak_kb"],
        live_kb=row["live_kb"],
        counters=row["counters"],
        facts=row["facts"],
        rested=Rested.read(row["rested"]) if "rested" in row else None,
    )
