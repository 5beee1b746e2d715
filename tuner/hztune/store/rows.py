"""The rows of a study's samples, what an executor tells to make them, and the blocks they make.

A `block` row begins each block, a `turn` row follows each turn as soon as it has been measured, an
`outcome` row ends an arm's part of the block: only then is it known whether the process was the one
asked for. A block is complete when all its outcomes are there. The turns of an incomplete one are
kept, but no estimate is made from them.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal, get_type_hints

from msgspec import Struct

from hztune.blocks import Arm, Block, Outcome, ProofPlan, Role, Turn, joined
from hztune.machine import Machine
from hztune.params import Value

NEW_OBJECTS = 20_000  # before the collector looks: after Python's 700 it takes 5 % of a proposal


@dataclass(frozen=True, slots=True)
class Plan:
    number: int  # of the block
    role: Role  # what it is for
    arms: tuple[Arm, ...]  # the control first; the same arm may stand twice
    rounds: int  # turns that each arm shall get
    # on which of several workloads, or on which of the panel; "" where there is one only
    workload: str = ""
    part: int = 0  # its number among them, from 0
    parts: int = 1  # how many there are; the block is complete when it was measured on all
    machine: str = ""  # what tells the machine that measured it; "": that of the sink


@dataclass(frozen=True, slots=True)
class Evidence:
    cpu_ns: int = 0  # CPU time that the process used in it
    involuntary: int = 0  # context switches that its threads did not ask for
    steal_ticks: int = 0  # ticks (10 ms) that the hypervisor took from the machine
    pressure_us: int = 0  # time that anything on the machine waited for a CPU
    suspended_ns: int = 0  # time that the machine slept
    throttled_us: int = 0  # time that a quota kept CPUs from the control group, over the CPUs
    # CPU time of all other processes on the machine, as far as its ticks (10 ms) show; 0 where it
    # is not read
    others_us: int = 0
    rss_kb: int = 0  # resident memory at its end, KiB


class Sink:
    """Where an executor puts what it measures: `begin`, turns, one outcome for each arm, `end`.

    This one keeps nothing.
    """

    def begin(self, plan: Plan) -> None:
        """Takes note that a block begins."""

    def turn(self, index: int, pid: int, turn: Turn, evidence: Evidence) -> None:
        """Takes a turn of the arm at `index`, in process `pid`, that has just been measured."""

    def outcome(self, index: int, pid: int, outcome: Outcome) -> None:
        """Takes what the arm at `index` came to; `pid` 0: it could not be started."""

    def end(self) -> None:
        """Takes note that the block is complete."""


TURN = Turn.__match_args__
OUTCOME = (
    "status", "detail", "ops_per_s", "rss_peak_kb", "live_kb", "counters", "facts", "rested",
)  # fmt: skip


class Row(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """What every row has: its number, from 0 without a gap, and a short name of the study."""

    seq: int
    study: str


class StudyRow(Row, tag="study", frozen=True):
    schema: Literal[1]
    identity: dict[str, str]  # what makes the study this one, by name
    machine: Machine  # where it was begun
    created: str  # when, ISO 8601


class EndRow(Row, tag="end", frozen=True):
    ending: dict[str, Any]


class _BlockPart(Row, frozen=True):
    machine: str
    block: int
    role: Role


class BlockRow(_BlockPart, tag="block", frozen=True):
    """A block begins; `arms` has their keys, the rest is as in `Plan`."""

    arms: list[str]
    rounds: int
    workload: str
    part: int
    parts: int
    proof: ProofPlan | None


class _ArmPart(_BlockPart, frozen=True):
    index: int
    arm: str
    allocator: str
    params: dict[str, Value]
    pid: int


class TurnRow(_ArmPart, tag="turn", frozen=True):
    """A turn, see `blocks.Turn`, and its `Evidence`."""

    __annotations__ = get_type_hints(Turn) | get_type_hints(Evidence)


class OutcomeRow(_ArmPart, tag="outcome", frozen=True):
    """How an arm's part of the block ended, see `blocks.Outcome`."""

    __annotations__ = {name: get_type_hints(Outcome)[name] for name in OUTCOME}


_TURN = attrgetter(*TURN)
_OUTCOME = attrgetter(*OUTCOME)

AnyRow = StudyRow | EndRow | BlockRow | TurnRow | OutcomeRow


def blocks_of(rows: Iterable[AnyRow]) -> Iterator[Block]:
    """Yields the complete blocks, in order; on several workloads, all stand one after another."""
    waiting: list[tuple[Block, str]] = []
    for head, block in _measured(rows):
        if head.part != len(waiting) or (waiting and waiting[0][0].number != block.number):
            waiting = []
        if head.part == len(waiting):
            waiting.append((block, head.workload))
        if len(waiting) == head.parts:
            yield joined([each for each, _ in waiting], [workload for _, workload in waiting])
            waiting = []


def _measured(rows: Iterable[AnyRow]) -> Iterator[tuple[BlockRow, Block]]:
    """Yields what was measured completely on one workload, with the row that began it."""
    turns: defaultdict[int, list[Turn]] = defaultdict(list)
    outcomes: dict[int, Outcome] = {}
    for row in rows:
        if isinstance(row, TurnRow):
            turns[row.index].append(Turn(*_TURN(row)))
        elif isinstance(row, BlockRow):
            head, turns, outcomes = row, defaultdict(list), {}
        elif isinstance(row, OutcomeRow):
            arm, known = Arm.of(row.allocator, row.params), zip(OUTCOME, _OUTCOME(row), strict=True)
            outcomes[row.index] = Outcome(arm, turns=tuple(turns[row.index]), **dict(known))
            if len(outcomes) == len(head.arms):
                found = tuple(outcomes[index] for index in sorted(outcomes))
                workload = head.workload if head.parts == 1 else ""
                yield head, Block(row.block, row.role, found, row.machine, workload, head.proof)


@contextmanager
def gc_frozen() -> Iterator[None]:
    """Declares that what is made inside, and everything older, is never garbage.

    Of the hundreds of thousands of objects of a large study none is. To look would take a sixth of
    the time to read them, and as much again every few blocks of the search.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.set_threshold(NEW_OBJECTS)
        if was_enabled:
            gc.enable()
