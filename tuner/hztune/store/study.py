"""A study in a database: its request, its blocks, which workers take part, and how it ended.

A block is one row, inserted in one transaction when it is complete: its samples, as checksummed
lines. So whatever ends a worker, a block is there or is not. The row of the study counts the blocks
and is locked for it, so that blocks are numbered in the order in which they were committed, and a
reader that has seen number N has missed none before it. Samples of a block that is not complete
stand apart; those of one that never was stand before the samples of the next one.

At first there was one table less. A study of a results directory is its database's only
one; its `request` is {"label": ..., "machine": {...}}: it belongs to one machine. In `request` and
`ending`, "crc" is a checksum; it was not there at first.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Float,
    ForeignKey,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    delete,
    insert,
    inspect,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from hztune.errors import HztuneError, UsageError
from hztune.store.database import Storage
from hztune.store.lines import (
    Lean,
    Record,
    are_numbered,
    are_whole,
    decoded,
    numbered,
    packed,
    sealed,
    unsealed,
)
from hztune.store.rows import SCHEMA

TABLES = MetaData()

STUDIES = Table(
    "hztune_studies",
    TABLES,
    Column("name", String(100), primary_key=True),
    Column("schema", Integer, nullable=False),  # of everything that is stored here
    Column("identity", Text, nullable=False),  # what makes it this study: an object of strings
    Column("request", Text, nullable=False),  # what was asked, for workers that join
    Column("created", String(40), nullable=False),
    Column("joined", Integer, nullable=False),  # workers so far
    Column("begun", Integer, nullable=False),  # blocks that were begun: the next one's pair
    Column("entered", Integer, nullable=False),  # blocks that are complete
    Column("ending", Text),  # what came out of it
)

BLOCKS = Table(
    "hztune_blocks",
    TABLES,
    Column("study", ForeignKey("hztune_studies.name"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),  # from 1, in order
    Column("pair", Integer, nullable=False),
    Column("worker", String(40), nullable=False),  # that measured it
    Column("elapsed_s", Float, nullable=False),  # of the study's budget, at its end
    Column("rows", Text, nullable=False),  # checksummed lines
    UniqueConstraint("study", "pair"),
)

OWNERS = Table(
    "hztune_owners",
    TABLES,
    Column("study", ForeignKey("hztune_studies.name"), primary_key=True),
    Column("worker", String(40), primary_key=True),
    Column("host", String(255), nullable=False),  # the fields of a Process
    Column("boot", String(64), nullable=False),
    Column("namespace", String(64), nullable=False),
    Column("pid", BigInteger, nullable=False),
    Column("started", BigInteger, nullable=False),
    Column("role", String(16), nullable=False),  # what the block is for that it measures
    Column("held", Text, nullable=False),  # configurations that only it measures now
    Column("leads", Boolean, nullable=False),  # it confirms, ablates and gives the verdict
)

ROWS = Table(
    "hztune_rows",
    TABLES,
    Column("id", Integer, primary_key=True),
    Column("study", ForeignKey("hztune_studies.name"), nullable=False),
    Column("worker", String(40), nullable=False),
    Column("line", Text, nullable=False),  # a sample of a block that is not complete
    sqlite_autoincrement=True,
)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}")
_READ_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """A block as it stands in the storage."""

    number: int
    worker: str
    elapsed_s: float
    rows: tuple[Record, ...]


class StoredStudy:
    """A study that stands in a database."""

    def __init__(self, storage: Storage, name: str, row: Mapping[str, Any]) -> None:
        """Takes what stands in the study's row; `begin` and `find` make it."""
        self.storage = storage
        self.name = name
        self.created = str(row["created"])
        try:
            self.identity: dict[str, str] = json.loads(row["identity"])
            self.request = unsealed(row["request"], _beside(name, row["identity"], self.created))
        except (AttributeError, TypeError, ValueError):
            raise self.damaged("what was asked") from None

    @classmethod
    def begin(
        cls, storage: Storage, name: str, identity: Mapping[str, str], request: Mapping[str, Any]
    ) -> StoredStudy:
        """Begins a study; if another worker was quicker with the same one, it stands.

        Raises:
            UsageError: There is another study of that name, or the name is not legal.
        """
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"--study {name!r} is no name; legal are up to 100 letters, digits and . _ @ + -, "
                "a letter or a digit first"
            )
        storage.prepare(TABLES)
        values = study_values(name, identity, request)
        if cls.find(storage, name) is None:
            storage.run(lambda connection: _insert_once(connection, values))
        found = cls.find(storage, name)
        assert found is not None  # one of us has begun it
        found.check(identity)
        return found

    @classmethod
    def find(cls, storage: Storage, name: str) -> StoredStudy | None:
        """The study of that name; None: there is none.

        Raises:
            UsageError: It is of another version of hztune.
        """
        row = storage.run(lambda connection: _study_row(connection, name))
        if row is None:
            return None
        if row["schema"] != SCHEMA:
            raise UsageError(
                f"the study {name!r} is of schema {row['schema']}, and this hztune knows {SCHEMA}; "
                "install the version that began it"
            )
        if not storage.run(lambda connection: inspect(connection).has_table(ROWS.name)):
            storage.prepare(TABLES)  # the first hztune with shared studies began it
        return cls(storage, name, row)

    @property
    def label(self) -> str:
        """A short name of what the study is, for its samples."""
        if "label" in self.request:
            return str(self.request["label"])
        text = json.dumps([self.name, self.created, self.identity], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def check(self, identity: Mapping[str, str]) -> None:
        """Requires that a worker measures the same thing; the machine may be another one.

        Raises:
            UsageError: It would measure something else.
        """
        different = identity_differences(self.identity, identity)
        if different:
            raise UsageError(
                f"the study {self.name!r} is another one ({'; '.join(different)}); all its workers "
                "need the same: repeat its command, install the same versions, or choose another "
                "--study"
            )

    def ending(self) -> dict[str, Any] | None:
        """What came out of it; None: it has not ended."""
        query = select(STUDIES.c.ending).where(STUDIES.c.name == self.name)
        text = self.storage.run(lambda connection: connection.scalar(query))
        return None if text is None else self.ending_of(text)

    def ending_of(self, text: str) -> Record:
        """What a stored ending says.

        Raises:
            HztuneError: It is damaged.
        """
        try:
            return unsealed(text)
        except (AttributeError, TypeError, ValueError):
            raise self.damaged("what came out of it") from None

    def blocks(self, after: int = 0, lean: Lean = bytes) -> Iterator[StoredBlock]:
        """Every complete block behind number `after`, in order; they are read a few at a time.

        Args:
            after: Number of the last block that is not wanted.
            lean: Makes of each line one of what is wanted of it.

        Raises:
            HztuneError: One is damaged.
        """
        while some := self.storage.run(partial(self._some, after=after)):
            for row in some:
                rows = tuple(decoded(self._lines(row), lean))
                yield StoredBlock(row["number"], row["worker"], row["elapsed_s"], rows)
            after = some[-1]["number"]

    def samples(self, machine: Mapping[str, Any]) -> Iterator[bytes]:
        """The whole study as the lines of a file of samples, also while it is measured.

        Args:
            machine: The record of the machine that its claim was proved on.
        """
        yield from numbered(self.storage.run(lambda it: list(self.unnumbered(it, machine))))

    def unnumbered(self, connection: Connection, machine: Mapping[str, Any]) -> Iterator[bytes]:
        """The lines of the whole study, whose numbers do not follow each other yet."""
        head = {"schema": SCHEMA, "kind": "study", "study": self.label}
        about = {"identity": self.identity, "machine": machine, "created": self.created}
        yield packed({**head, **about})
        after = 0
        while some := self._some(connection, after):
            for row in some:
                yield from self._lines(row)
            after = some[-1]["number"]
        yield from self.begun_lines(connection)
        ending = connection.scalar(select(STUDIES.c.ending).where(STUDIES.c.name == self.name))
        if ending is not None:
            yield packed({**head, "kind": "end", **self.ending_of(ending)})

    def begun_lines(self, connection: Connection) -> list[bytes]:
        """The samples of blocks that are not complete.

        Raises:
            HztuneError: One is damaged; once in a block, it would have a checksum that fits.
        """
        query = select(ROWS.c.line).where(ROWS.c.study == self.name).order_by(ROWS.c.id)
        lines = [str(line).encode() for line in connection.scalars(query)]
        if not are_whole(lines):
            raise self.damaged("a block that is not complete")
        return lines

    def enter(
        self, connection: Connection, number: int, worker: str, elapsed_s: float, lines: list[bytes]
    ) -> None:
        """Inserts a block behind all others, in a transaction that has locked the study."""
        query = select(STUDIES.c.entered).where(STUDIES.c.name == self.name)
        entered: int = connection.execute(query).scalar_one() + 1
        self.update(connection, entered=entered)
        connection.execute(
            insert(BLOCKS).values(
                study=self.name,
                number=entered,
                pair=number,
                worker=worker,
                elapsed_s=elapsed_s,
                rows=b"".join(numbered(lines)).decode(),
            )
        )

    def update(self, connection: Connection, **values: Any) -> None:
        """Changes the row of the study."""
        own = update(STUDIES).where(STUDIES.c.name == self.name)
        connection.execute(own.values(**values))

    def forget(self, host: str) -> int:
        """Removes all that workers of a host hold; returns how many workers those were."""
        query = delete(OWNERS).where(OWNERS.c.study == self.name, OWNERS.c.host == host)
        return self.storage.run(lambda connection: connection.execute(query).rowcount)

    def hosts(self) -> list[str]:
        """The hosts whose workers hold something, a host for each worker."""
        query = select(OWNERS.c.host).where(OWNERS.c.study == self.name)
        return self.storage.run(lambda connection: list(connection.scalars(query)))

    def lock(self, connection: Connection) -> str | None:
        """Keeps all others from changing the study until the transaction ends.

        Returns:
            How the study ended; None: it has not.
        """
        query = select(STUDIES.c.ending).where(STUDIES.c.name == self.name).with_for_update()
        row = connection.execute(query).first()
        if row is None:
            raise HztuneError(f"the study {self.name!r} has been removed from the storage")
        ending: str | None = row[0]
        return ending

    def damaged(self, what: str) -> HztuneError:
        """What to tell the user where something is not as it was written."""
        return HztuneError(
            f"{self.storage.shown} is damaged ({what}, in the study {self.name!r}); "
            f"{self.storage.remedy}"
        )

    def _lines(self, row: Mapping[str, Any]) -> list[bytes]:
        """The samples of a block, which are of this study: a log of another file may be beside."""
        lines = str(row["rows"]).encode().splitlines(keepends=True)
        if not lines or not are_numbered(lines):
            raise self.damaged(f"block {row['number']}")
        if "label" in self.request and json.loads(lines[0]).get("study") != self.label:
            raise self.damaged(f"block {row['number']} is of another study")
        return lines

    def _some(self, connection: Connection, after: int) -> list[Mapping[str, Any]]:
        query = select(BLOCKS).where(BLOCKS.c.study == self.name, BLOCKS.c.number > after)
        query = query.order_by(BLOCKS.c.number).limit(_READ_AT_ONCE)
        return [dict(row) for row in connection.execute(query).mappings()]


def _study_row(connection: Connection, name: str) -> Mapping[str, Any] | None:
    """The row of a study; None also where there are no tables yet."""
    if not inspect(connection).has_table(STUDIES.name):
        return None
    query = select(STUDIES).where(STUDIES.c.name == name)
    row = connection.execute(query).mappings().first()
    return None if row is None else dict(row)


def _insert_once(connection: Connection, values: Mapping[str, Any]) -> None:
    """Inserts a study, unless another worker has done so a moment ago."""
    try:
        with connection.begin_nested():
            connection.execute(insert(STUDIES).values(**values))
    except IntegrityError:
        pass


def identity_differences(there: Mapping[str, str], here: Mapping[str, str]) -> tuple[str, ...]:
    """Returns in which points two identities differ, one phrase each."""
    return tuple(
        f"{name}: {there.get(name, 'nothing')} there, {here.get(name, 'nothing')} here"
        for name in dict.fromkeys([*here, *there])
        if there.get(name) != here.get(name)
    )


def study_values(
    name: str, identity: Mapping[str, str], request: Mapping[str, Any], created: str = ""
) -> dict[str, Any]:
    """Returns the row of a study that begins, now unless it was `created` before."""
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    text = json.dumps(identity)
    return {
        "name": name,
        "schema": SCHEMA,
        "identity": text,
        "request": sealed(request, _beside(name, text, created or now)),
        "created": created or now,
        **{"joined": 0, "begun": 0, "entered": 0},
    }


def _beside(name: str, identity: str, created: str) -> str:
    """What the seal of a request covers, too."""
    return "\n".join((name, identity, created))


@dataclass(frozen=True, slots=True)
class StudyAddress:
    """A shared study, by where it is.

    Attributes:
        url: Of the storage; it may hold a password.
        study: Name of the study in it.
    """

    url: str
    study: str

    @contextmanager
    def opened(self) -> Iterator[Storage]:
        """The storage, open."""
        storage = Storage(self.url)
        try:
            yield storage
        finally:
            storage.close()

    def found(self, storage: Storage) -> StoredStudy:
        """The study.

        Raises:
            UsageError: There is none of that name.
        """
        study = StoredStudy.find(storage, self.study)
        if study is None:
            raise UsageError(
                f"there is no study {self.study!r} in {storage.shown}; begin it with `hztune tune "
                "--workload NAME --storage URL --study NAME`"
            )
        return study
