"""The rows of a study's samples, what an executor tells to make them, and the blocks they make.

A `block` row begins each block, a `turn` row follows each turn as soon as it has been measured, an
`outcome` row ends an arm's part of the block: only then is it known whether the process was the one
asked for. A block is complete when all its outcomes are there. The turns of an incomplete one are
kept, but no estimate is made from them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from hztune.blocks import Arm, Block, Outcome, ProofPlan, Role, Status, Turn, joined
from hztune.machine import Machine
from hztune.params import Value
from hztune.rests import Rested

NotNegative = Annotated[int, Meta(ge=0)]
Columns = dict[str, list[Any]]
"""By name, as many values each, of one type; None where a sample has no such value."""


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
    """What was seen of the machine and the process during a turn; the fields of `TurnRow`."""

    cpu_ns: int = 0
    involuntary: int = 0
    steal_ticks: int = 0
    pressure_us: int = 0
    suspended_ns: int = 0
    throttled_us: int = 0
    others_us: int = 0
    rss_kb: int = 0


class Sink:
    """Where an executor puts what it measures: `begin`, turns, one outcome for each arm, `end`."""

    def begin(self, plan: Plan) -> None:
        """Takes note that a block begins."""

    def turn(self, index: int, pid: int, turn: Turn, evidence: Evidence) -> None:
        """Takes a turn of the arm at `index`, in process `pid`, that has just been measured."""

    def outcome(self, index: int, pid: int, outcome: Outcome) -> None:
        """Takes what the arm at `index` came to; `pid` 0: it could not be started."""

    def end(self) -> None:
        """Takes note that the block is complete."""


class Nowhere(Sink):
    """The sink of measurements that are not kept."""


class Row(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """What every row has: its number, from 0 without a gap, and a short name of the study."""

    seq: NotNegative
    study: str


class StudyRow(Row, tag="study", frozen=True):
    """The first row.

    Attributes:
        identity: What makes the study this one, by name.
        machine: Where it was begun.
        created: When, ISO 8601.
    """

    schema: Literal[1]
    identity: dict[str, str]
    machine: Machine
    created: str


class EndRow(Row, tag="end", frozen=True):
    """What came out of the study."""

    ending: dict[str, Any]


class _BlockPart(Row, frozen=True):
    machine: str
    pair: NotNegative
    role: Role


class BlockRow(_BlockPart, tag="block", frozen=True):
    """A block begins; `arms` has their keys, the rest is as in `Plan`."""

    arms: list[str]
    rounds: NotNegative
    workload: str
    part: NotNegative
    parts: Annotated[int, Meta(ge=1)]
    proof: ProofPlan | None


class _ArmPart(_BlockPart, frozen=True):
    index: NotNegative
    arm: str
    allocator: str
    params: dict[str, Value]
    pid: NotNegative


class TurnRow(_ArmPart, tag="turn", frozen=True):
    """A turn, see `blocks.Turn`, and what was seen of the machine and the process meanwhile.

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

    turn: NotNegative
    position: NotNegative
    start_ns: NotNegative
    counted_ns: Annotated[int, Meta(gt=0)]
    ops: int | float
    disturbed: str
    cpu_ns: int
    involuntary: int
    steal_ticks: int
    pressure_us: int
    suspended_ns: int
    throttled_us: int
    others_us: int
    rss_kb: int


class OutcomeRow(_ArmPart, tag="outcome", frozen=True):
    """How an arm's part of the block ended, see `blocks.Outcome`."""

    status: Status
    detail: str
    ops_per_s: float
    rss_peak_kb: NotNegative
    live_kb: NotNegative
    counters: dict[str, int]
    facts: dict[str, int]
    rested: Rested | None


TURN = ("turn", "position", "start_ns", "counted_ns", "ops", "disturbed")
OUTCOME = (
    "status", "detail", "ops_per_s", "rss_peak_kb", "live_kb", "counters", "facts", "rested",
)  # fmt: skip
_TURN = attrgetter(*TURN)
_OUTCOME = attrgetter(*OUTCOME)

AnyRow = StudyRow | EndRow | BlockRow | TurnRow | OutcomeRow


def blocks_of(rows: Iterable[AnyRow]) -> Iterator[Block]:
    """Yields the complete blocks, in order.

    A block on several workloads is complete when all of them stand one after another.
    """
    waiting: list[Block] = []
    workloads: list[str] = []
    for head, block in _measured(rows):
        if head.part != len(waiting) or (waiting and waiting[0].number != block.number):
            waiting, workloads = [], []
        if head.part != len(waiting):
            continue
        waiting.append(block)
        workloads.append(head.workload)
        if len(waiting) == head.parts:
            yield joined(waiting, workloads)
            waiting, workloads = [], []


def _measured(rows: Iterable[AnyRow]) -> Iterator[tuple[BlockRow, Block]]:
    """Yields what was measured completely on one workload, with the row that began it."""
    turns: defaultdict[int, list[Turn]] = defaultdict(list)
    outcomes: dict[int, Outcome] = {}
    for row in rows:
        if isinstance(row, TurnRow):
            turns[row.index].append(Turn(*_TURN(row)))
        elif isinstance(row, BlockRow):
            turns.clear()
            outcomes.clear()
            head = row
        elif isinstance(row, OutcomeRow):
            arm, known = Arm.of(row.allocator, row.params), zip(OUTCOME, _OUTCOME(row), strict=True)
            outcomes[row.index] = Outcome(arm, turns=tuple(turns[row.index]), **dict(known))
            if len(outcomes) == len(head.arms):
                found = tuple(outcomes[index] for index in range(len(outcomes)))
                workload = head.workload if head.parts == 1 else ""
                yield head, Block(row.pair, row.role, found, row.machine, workload, head.proof)


def columns(lines: Iterable[bytes], kind: str) -> Columns:
    """The samples of one kind as columns, which numpy and every data frame library take.

    What is named within a sample has a column of its own: "params.thp".
    """
    rows = []
    for row in map(msgspec.json.decode, lines):
        if row.pop("kind") == kind:
            del row["seq"], row["crc"]
            inner = {name: row.pop(name) for name in [*row] if isinstance(row[name], dict)}
            rows.append(
                row | {f"{name}.{key}": one for name in inner for key, one in inner[name].items()}
            )
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: _of_one_type([row.get(name) for row in rows]) for name in names}


def _of_one_type(values: list[Any]) -> list[Any]:
    """The values as texts where some are ("auto" and 4), as floats where some numbers are."""
    types = {type(each) for each in values if each is not None}
    if len(types) < 2 or not types <= {str, int, float}:
        return values
    kind = str if str in types else float
    return [None if each is None else kind(each) for each in values]
