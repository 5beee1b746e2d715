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
from operator import itemgetter
from pathlib import Path
from types import TracebackType
from typing import Any

from hztune.blocks import Arm, Block, Outcome, Turn, joined
from hztune.errors import UsageError
from hztune.gc_freeze import gc_frozen
from hztune.machine import Machine
from hztune.store.log import Log, Record, read
from hztune.store.rows import SCHEMA, Plan, Rows, lean

_TURN = itemgetter("turn", "position", "start_ns", "counted_ns", "ops", "disturbed")
"""What a row says of a turn, in the order of its fields."""


class SampleStore(Rows):
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
        super().__init__(str(first["study"]), machine.fingerprint)

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
        """Writes that a block begins, when all before it is on the disk: one may not have ended."""
        self._log.sync()
        super().begin(plan)

    def end(self) -> None:
        """Waits until the block is on the disk."""
        self._log.sync()

    def conclude(self, ending: Mapping[str, Any]) -> None:
        """Writes what came out of the study, and waits until it is on the disk."""
        row = {"schema": SCHEMA, "kind": "end", "study": self.study, "machine": self.machine}
        self._log.sync()
        self._log.append({**row, **ending})
        self._log.sync()

    def ending(self) -> Record | None:
        """Returns what came out of the study, None while it has not ended."""
        last = self._log.last()
        return last if last is not None and last["kind"] == "end" else None

    def replay(self) -> tuple[Block, ...]:
        """Returns every complete block, in order, as it was measured."""
        with gc_frozen():
            return tuple(blocks_of(self._log.records(lean)))

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

    def append(self, row: Record) -> None:
        """Writes a row, at once."""
        self._log.append(row)


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

    @property
    def where(self) -> str:
        """What the rows call the machine on which the claim was proved."""
        return str((self.ending or {}).get("where", self.machine.fingerprint))


def recording(path: Path) -> Recording:
    """Returns all that a file of samples says, which may be in use.

    Raises:
        UsageError: It cannot be read, holds no study, or one of another version.
        HztuneError: It is damaged.
    """
    rows = list(read(path, lean))
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
    return tuple(blocks_of(read(path, lean)))


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
                found = tuple(outcomes[i] for i in range(count))
                yield head, Block(row["pair"], row["role"], found, row.get("machine", ""))


def differences(there: Mapping[str, str], here: Mapping[str, str]) -> tuple[str, ...]:
    """Returns in which points two identities differ, one phrase each."""
    return tuple(
        f"{name}: {there.get(name, 'nothing')} there, {here.get(name, 'nothing')} here"
        for name in dict.fromkeys([*here, *there])
        if there.get(name) != here.get(name)
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
    points = differences(row["identity"], identity)
    return (*points, *machine.differences(Machine(**row["machine"])))


def _turn(row: Mapping[str, Any]) -> Turn:
    """Returns the turn of a row."""
    return Turn(*_TURN(row))


def _outcome(row: Mapping[str, Any], turns: tuple[Turn, ...]) -> Outcome:
    """Returns the outcome of a row."""
    return Outcome(
        arm=Arm.stored(row["allocator"], row["params"]),
        status=row["status"],
        detail=row["detail"],
        ops_per_s=row["ops_per_s"],
        turns=turns,
        rss_peak_kb=row["rss_peak_kb"],
        live_kb=row["live_kb"],
        counters=row["counters"],
    )
