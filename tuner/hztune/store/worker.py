"""A worker of a shared study: what it has seen, what it holds, what it enters."""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from hztune.blocks import Arm, Role
from hztune.errors import HztuneError
from hztune.store.lines import Record, packed, sealed
from hztune.store.owners import ProcessId
from hztune.store.peers import EndedElsewhere, News
from hztune.store.rows import SampleRows, blocks_of, lean
from hztune.store.study import BLOCKS, OWNERS, ROWS, STUDIES, StoredStudy

_LOOK_EVERY_S = 0.5
_PROVING = ("confirm", "ablate", "panel")


class Buffer(SampleRows):
    """The rows of the block that is being measured, until it is complete."""

    def __init__(self, study: str, machine: str) -> None:
        """Starts empty; the arguments are those of `SampleRows`."""
        super().__init__(study, machine)
        self.rows: list[Record] = []

    def append(self, row: Record) -> None:
        """Keeps a row."""
        self.rows.append(row)

    def end(self) -> None:
        """Waits for the last workload of the block."""


class Worker:
    """This process, as one of a study's workers; leaving the `with` block gives all back."""

    def __init__(self, study: StoredStudy, machine: str) -> None:
        """Joins a study.

        Args:
            study: The study.
            machine: What tells this machine from all others.

        Raises:
            HztuneError: The storage cannot be used.
        """
        self.study = study
        self.name = secrets.token_hex(8)
        """A name that no other worker has."""
        self.sink = Buffer(study.label, machine)
        """Where the executor puts what it measures."""
        self.ending: dict[str, Any] | None = None
        """What the study came to, once that is known."""
        self._storage = study.storage
        self._process = ProcessId.here()
        self._seen = 0
        self._number = 0
        self.number = self._storage.run(self._join)
        """How many workers had joined before."""

    def __enter__(self) -> Worker:
        """Returns itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leaves the study, and leaves there what was measured of a block that is not complete.

        A storage that is gone will find this process dead.
        """
        with contextlib.suppress(HztuneError):
            self._storage.run(self._leave_begun, patience_s=0.0)

    def look(self) -> News:
        """What the others do, and have entered since the last look.

        In this order: what is entered in between is not held any more, but it is seen.
        """
        owners = self._storage.run(self._living)
        ends = [(self._seen, 0.0)]
        blocks = tuple(blocks_of(self._rows_of_others(ends)))
        self._seen = ends[-1][0]
        rivals = [each for each in owners if each["worker"] != self.name]
        return News(
            blocks=blocks,
            held=tuple(arm for each in rivals for arm in _arms(each["held"])),
            proving=any(each["leads"] and each["role"] in _PROVING for each in rivals),
            elapsed_s=max(elapsed_s for _, elapsed_s in ends),
        )

    def reserve(self, arms: Sequence[Arm]) -> Collection[Arm]:
        """Holds the arms that no other worker holds; returns the others."""
        return self._storage.run(lambda connection: self._reserve(connection, arms))

    def begin(self, role: Role) -> int:
        """Takes the next number for a block of this role."""
        self.sink.rows.clear()
        self._number = self._storage.run(lambda connection: self._begin(connection, role))
        return self._number

    def enter(self, elapsed_s: float) -> None:
        """Enters the block that was begun, whole, and lets go of what was held for it.

        Raises:
            EndedElsewhere: The study has ended meanwhile; nothing is added to it.
        """
        lines = [packed(row) for row in self.sink.rows]
        self._storage.run(lambda connection: self._enter(connection, lines, elapsed_s))
        self.sink.rows.clear()

    def lead(self) -> bool:
        """Takes the lead where no living worker has it; says whether this worker has it now."""
        return self._storage.run(self._lead)

    def wait(self) -> None:
        """Waits until it is worth while to look again."""
        time.sleep(_LOOK_EVERY_S)

    def conclude(self, ending: Mapping[str, Any]) -> None:
        """Writes what came out of the study: it is ended, for all.

        Raises:
            HztuneError: This worker does not have the lead any more.
        """
        text = sealed(ending)
        self._storage.run(lambda connection: self._conclude(connection, text))

    def _rows_of_others(self, ends: list[tuple[int, float]]) -> Iterator[Record]:
        """The rows of what others entered; number and end of each new block go to `ends`."""
        for stored in self.study.blocks(self._seen, lean):
            ends.append((stored.number, stored.elapsed_s))
            if stored.worker != self.name:
                yield from stored.rows

    def _join(self, connection: Connection) -> int:
        self._judge_ending(self.study.lock(connection))
        query = select(STUDIES.c.joined).where(STUDIES.c.name == self.study.name)
        number: int = connection.execute(query).scalar_one()
        self.study.update(connection, joined=number + 1)
        self._leave(connection)
        process = self._process
        connection.execute(
            insert(OWNERS).values(
                study=self.study.name,
                worker=self.name,
                host=process.host,
                boot=process.boot,
                namespace=process.namespace,
                pid=process.pid,
                started=process.started,
                role="",
                held="[]",
                leads=False,
            )
        )
        return number

    def _leave_begun(self, connection: Connection) -> None:
        head = {"study": self.study.name, "worker": self.name}
        if begun := [{**head, "line": packed(row).decode()} for row in self.sink.rows]:
            connection.execute(insert(ROWS), begun)
        self._leave(connection)

    def _leave(self, connection: Connection) -> None:
        connection.execute(delete(OWNERS).where(*self._mine()))

    def _living(self, connection: Connection) -> list[Mapping[str, Any]]:
        """The owners that live, for all that is known here; those that do not are removed."""
        self._judge_ending(self.study.lock(connection))
        query = select(OWNERS).where(OWNERS.c.study == self.study.name)
        owners = [dict(row) for row in connection.execute(query).mappings()]
        dead = [each["worker"] for each in owners if self._process.sees_dead(_process(each))]
        if dead:
            gone = delete(OWNERS).where(OWNERS.c.study == self.study.name)
            connection.execute(gone.where(OWNERS.c.worker.in_(dead)))
        return [each for each in owners if each["worker"] not in dead]

    def _reserve(self, connection: Connection, arms: Sequence[Arm]) -> Collection[Arm]:
        rivals = [each for each in self._living(connection) if each["worker"] != self.name]
        taken = {arm for each in rivals for arm in _arms(each["held"])}
        held = [[arm.allocator, arm.config] for arm in arms if arm not in taken]
        self._update_own(connection, held=json.dumps(held))
        return taken.intersection(arms)

    def _begin(self, connection: Connection, role: Role) -> int:
        self._judge_ending(self.study.lock(connection))
        query = select(STUDIES.c.begun).where(STUDIES.c.name == self.study.name)
        number: int = connection.execute(query).scalar_one()
        self.study.update(connection, begun=number + 1)
        self._update_own(connection, role=role)
        return number

    def _enter(self, connection: Connection, lines: list[bytes], elapsed_s: float) -> None:
        """Inserts the block, unless an answer was lost and it is there already."""
        ending = self.study.lock(connection)
        mine = (BLOCKS.c.study == self.study.name, BLOCKS.c.pair == self._number)
        if connection.scalar(select(BLOCKS.c.number).where(*mine)) is not None:
            return
        self._judge_ending(ending)
        self.study.enter(connection, self._number, self.name, elapsed_s, lines)
        connection.execute(update(OWNERS).where(*self._mine()).values(held="[]"))

    def _lead(self, connection: Connection) -> bool:
        leaders = [each["worker"] for each in self._living(connection) if each["leads"]]
        if not leaders:
            self._update_own(connection, leads=True, role="confirm")
        return leaders in ([], [self.name])

    def _conclude(self, connection: Connection, text: str) -> None:
        there = self.study.lock(connection)
        if there == text:
            return  # the answer to the first attempt was lost
        self._judge_ending(there)
        self._update_own(connection, role="")
        self.study.update(connection, ending=text)

    def _judge_ending(self, text: str | None) -> None:
        """Sees to it that the study has not ended."""
        if text is not None:
            self.ending = self.study.ending_of(text)
            raise EndedElsewhere(f"the study {self.study.name!r} has ended")

    def _mine(self) -> tuple[Any, Any]:
        return OWNERS.c.study == self.study.name, OWNERS.c.worker == self.name

    def _update_own(self, connection: Connection, **values: Any) -> None:
        done = connection.execute(update(OWNERS).where(*self._mine()).values(**values))
        if done.rowcount != 1:
            raise HztuneError(
                f"this worker was removed from the study {self.study.name!r} (`--forget` with this "
                "host's name); every block that it entered is kept: it may join again"
            )


def _process(row: Mapping[str, Any]) -> ProcessId:
    """The process of an owner."""
    return ProcessId(row["host"], row["boot"], row["namespace"], row["pid"], row["started"])


def _arms(held: str) -> list[Arm]:
    """The configurations that an owner holds."""
    return [Arm.of(allocator, config) for allocator, config in json.loads(held)]
