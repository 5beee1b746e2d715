"""The samples of one study: every measurement as a row, and the rows as blocks again.

A `study` row stands first and says what the study is. A `block` row begins each block, a `turn` row
follows each turn as soon as it has been measured, an `outcome` row ends an arm's part of the block:
only then is it known whether the process was the one asked for. A block is complete when all its
outcomes are there. The turns of an incomplete one stay in the file, but no estimate is made from
them. An `end` row, last, says what came out: a study that has one is not measured any further.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from hztune.errors import UsageError
from hztune.machine import Machine
from hztune.samples.blocks import Arm, Block, Outcome, Role, Turn, joined
from hztune.samples.log import Log, Record, read

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """What a block is going to be.

    Attributes:
        pair: Number of the block.
        role: What it is for.
        arms: The control first; the same arm may stand twice.
        rounds: Turns that each arm shall get.
        workload: On which of several workloads; "" where there is one only.
        part: Its number among them, from 0.
        parts: How many there are; the block is complete when it was measured on all.
    """

    pair: int
    role: Role
    arms: tuple[Arm, ...]
    rounds: int
    workload: str = ""
    part: int = 0
    parts: int = 1


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was seen of the machine and the process during a turn.

    Attributes:
        cpu_ns: CPU time that the process used in it.
        involuntary: Context switches that its threads did not ask for.
        steal_ticks: Ticks (10 ms) that the hypervisor took from the machine.
        pressure_us: Time that anything on the machine waited for a CPU, microseconds.
        suspended_ns: Time that the machine slept.
        rss_kb: Resident memory at its end, KiB.
    """

    cpu_ns: int = 0
    involuntary: int = 0
    steal_ticks: int = 0
    pressure_us: int = 0
    suspended_ns: int = 0
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
    """The sink of measurements that nobody keeps."""

    def begin(self, plan: Plan) -> None:
        """Keeps nothing."""

    def turn(self, index: int, pid: int, turn: Turn, evidence: Evidence) -> None:
        """Keeps nothing."""

    def outcome(self, index: int, pid: int, outcome: Outcome) -> None:
        """Keeps nothing."""

    def end(self) -> None:
        """Keeps nothing."""


class SampleStore:
    """The file `samples.jsonl` of a study, open for writing by this process alone."""

    def __init__(
        self, path: Path, identity: Mapping[str, str], machine: Machine, *, resume: bool = False
    ) -> None:
        """Opens the samples of a study, or begins them.

        Args:
            path: The file; its directory exists.
            identity: What makes the study this one and no other: workload, threads, allocator and
                the sum of its library, space, objective, limits, seed, ... by name.
            machine: Where it is measured.
            resume: Whether samples may be there already.

        Raises:
            UsageError: The file holds another study, or any without `resume`; or it is in use.
            HztuneError: It is damaged, or the disk is full.
        """
        self._log = Log(path)
        try:
            first = self._open(dict(identity), machine, resume)
        except BaseException:
            self._log.close()
            raise
        self.study = str(first["study"])
        """A short name of what the study is."""
        self._machine = machine.fingerprint
        self._plan: Plan | None = None

    def __enter__(self) -> SampleStore:
        """Returns itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes the file."""
        self.close()

    @property
    def path(self) -> Path:
        """Where the samples are."""
        return self._log.path

    @property
    def cut_bytes(self) -> int:
        """Bytes of an unfinished record that were cut off when the file was opened."""
        return self._log.cut_bytes

    def begin(self, plan: Plan) -> None:
        """Writes that a block begins; an earlier one that did not end is void."""
        self._plan = plan
        arms = [arm.key for arm in plan.arms]
        row = {**self._head("block"), "arms": arms, "rounds": plan.rounds}
        if plan.parts > 1:
            row |= {"workload": plan.workload, "part": plan.part, "parts": plan.parts}
        self._log.append(row)

    def turn(self, index: int, pid: int, turn: Turn, evidence: Evidence) -> None:
        """Writes a turn, at once."""
        self._log.append(
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
        self._log.append(
            {
                **self._arm_head("outcome", index, pid),
                "status": outcome.status,
                "detail": outcome.detail,
                "ops_per_s": outcome.ops_per_s,
                "rss_peak_kb": outcome.rss_peak_kb,
                "live_kb": outcome.live_kb,
                "counters": dict(outcome.counters),
            }
        )

    def end(self) -> None:
        """Waits until the block is on the disk."""
        self._log.sync()

    def conclude(self, ending: Mapping[str, Any]) -> None:
        """Writes what came out of the study, and waits until it is on the disk."""
        row = {"schema": SCHEMA, "kind": "end", "study": self.study, "machine": self._machine}
        self._log.append({**row, **ending})
        self._log.sync()

    def ending(self) -> Record | None:
        """Returns what came out of the study, None while it has not ended."""
        last = self._log.last()
        return last if last is not None and last["kind"] == "end" else None

    def replay(self) -> tuple[Block, ...]:
        """Returns every complete block, in order, as it was measured."""
        return tuple(blocks_of(self._log.records()))

    def close(self) -> None:
        """Closes the file; another process may then go on with it."""
        self._log.close()

    def _open(self, identity: dict[str, str], machine: Machine, resume: bool) -> Record:
        """Returns the first row: the one that is there and the same, or else a new one."""
        if self._log.count == 0:
            row = _study_row(identity, machine)
            self._log.append(row)
            self._log.sync()
            return row
        if not resume:
            raise UsageError(
                f"{self.path} holds a study already; go on with it (--resume), "
                "or choose another --out"
            )
        row = next(self._log.records())
        different = _differences(row, identity, machine)
        if different:
            raise UsageError(
                f"{self.path} belongs to another study ({'; '.join(different)}); "
                "repeat its command, or choose another --out"
            )
        return row

    def _head(self, kind: str) -> Record:
        """Returns what every row of a block begins with."""
        assert self._plan is not None, "no block has begun"
        return {
            "schema": SCHEMA,
            "kind": kind,
            "study": self.study,
            "machine": self._machine,
            "pair": self._plan.pair,
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


@dataclass(frozen=True, slots=True)
class Recording:
    """What a file of samples holds.

    Attributes:
        identity: What makes the study this one, by name.
        machine: Where it was measured.
        created: When it began, ISO 8601.
        blocks: Every complete block, in order.
        ending: What came out of it; None: it has not ended.
    """

    identity: Mapping[str, str]
    machine: Machine
    created: str
    blocks: tuple[Block, ...]
    ending: Mapping[str, Any] | None


def recording(path: Path) -> Recording:
    """Returns all that a file of samples says, which may be in use.

    Raises:
        UsageError: It cannot be read, holds no study, or one of another version.
        HztuneError: It is damaged.
    """
    rows = list(read(path))
    if not rows or rows[0].get("schema") != SCHEMA:
        raise UsageError(f"{path} holds no study of schema {SCHEMA}")
    return Recording(
        identity=rows[0]["identity"],
        machine=Machine(**rows[0]["machine"]),
        created=rows[0]["created"],
        blocks=tuple(blocks_of(rows)),
        ending=next((row for row in rows if row["kind"] == "end"), None),
    )


def blocks(path: Path) -> tuple[Block, ...]:
    """Returns every complete block of a file of samples, which may be in use.

    Raises:
        UsageError: It cannot be read.
        HztuneError: It is damaged.
    """
    return tuple(blocks_of(read(path)))


def blocks_of(records: Iterable[Record]) -> Iterator[Block]:
    """Yields the complete blocks of a file's records, in order.

    A block on several workloads is complete when all of them stand one after another.
    """
    waiting: list[Block] = []
    workloads: list[str] = []
    for head, block in _measured(records):
        part = head.get("part", 0)
        if part != len(waiting) or (waiting and waiting[0].pair != block.pair):
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
                yield (
                    head,
                    Block(row["pair"], row["role"], tuple(outcomes[i] for i in range(count))),
                )


def _study_row(identity: dict[str, str], machine: Machine) -> Record:
    """Returns the first row of a study."""
    text = json.dumps([identity, asdict(machine)], sort_keys=True)
    return {
        "schema": SCHEMA,
        "kind": "study",
        "study": hashlib.sha256(text.encode()).hexdigest()[:12],
        "identity": identity,
        "machine": asdict(machine),
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def _differences(row: Record, identity: dict[str, str], machine: Machine) -> tuple[str, ...]:
    """Returns in which points a study that exists is not the one that is asked for."""
    if row.get("schema") != SCHEMA:
        return (f"schema {row.get('schema')} there, {SCHEMA} here",)
    there = row["identity"]
    names = dict.fromkeys([*identity, *there])
    points = [
        f"{name}: {there.get(name, 'nothing')} there, {identity.get(name, 'nothing')} here"
        for name in names
        if there.get(name) != identity.get(name)
    ]
    return (*points, *machine.differences(Machine(**row["machine"])))


def _turn(row: Mapping[str, Any]) -> Turn:
    """Returns the turn of a row."""
    return Turn(
        round=row["turn"],
        position=row["position"],
        start_ns=row["start_ns"],
        counted_ns=row["counted_ns"],
        ops=row["ops"],
        disturbed=row["disturbed"],
    )


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
    )
