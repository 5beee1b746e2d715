"""A study in a shared storage: its request, its blocks, who takes part, and how it ended.

A block is one row, inserted in one transaction when it is complete: the very rows that a file of
samples would hold, as checksummed lines. So whatever ends a worker, a block is there or is not. The
row of the study counts the blocks and is locked for it, so that blocks are numbered in the order in
which they were committed, and a reader who has seen number N has missed none before it.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
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
)
from sqlalchemy.exc import IntegrityError

from hztune.errors import HztuneError, UsageError
from hztune.store.database import Storage
from hztune.store.log import Record, unpacked
from hztune.store.rows import SCHEMA
from hztune.store.samples import differences

TABLES = MetaData()

STUDIES = Table(
    "hztune_studies",
    TABLES,
    Column("name", String(100), primary_key=True),
    Column("schema", Integer, nullable=False),  # of everything that is stored here
    Column("identity", Text, nullable=False),  # what makes it this study: an object of strings
    Column("request", Text, nullable=False),  # what was asked, for whoever joins
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
    Column("worker", String(40), nullable=False),  # who measured it
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

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}")
_READ_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """A block as it stands in the storage."""

    number: int
    worker: str
    elapsed_s: float
    rows: tuple[Record, ...]


class SharedStudy:
    """A study that stands in a storage."""

    def __init__(self, storage: Storage, name: str, row: Mapping[str, Any]) -> None:
        """Takes what stands in the study's row; `begin` and `find` make it."""
        self.storage = storage
        self.name = name
        self.identity: dict[str, str] = json.loads(row["identity"])
        self.request: dict[str, Any] = json.loads(row["request"])
        self.created = str(row["created"])

    @classmethod
    def begin(
        cls, storage: Storage, name: str, identity: Mapping[str, str], request: Mapping[str, Any]
    ) -> SharedStudy:
        """Begins a study; whoever was quicker with the same one has begun it.

        Raises:
            UsageError: There is another study of that name, or the name is not legal.
        """
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"--study {name!r} is no name; legal are up to 100 letters, digits and . _ @ + -, "
                "a letter or a digit first"
            )
        storage.prepare(TABLES)
        values = {
            "name": name,
            "schema": SCHEMA,
            "identity": json.dumps(identity),
            "request": json.dumps(request),
            "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            **{"joined": 0, "begun": 0, "entered": 0},
        }
        if cls.find(storage, name) is None:
            storage.run(lambda connection: _insert_once(connection, values))
        found = cls.find(storage, name)
        assert found is not None  # one of us has begun it
        found.check(identity)
        return found

    @classmethod
    def find(cls, storage: Storage, name: str) -> SharedStudy | None:
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
        return cls(storage, name, row)

    @property
    def label(self) -> str:
        """A short name of what the study is, for its samples."""
        text = json.dumps([self.name, self.created, self.identity], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def check(self, identity: Mapping[str, str]) -> None:
        """Sees to it that somebody measures the same thing; the machine may be another one.

        Raises:
            UsageError: It would measure something else.
        """
        different = differences(self.identity, identity)
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
        return None if text is None else dict(json.loads(text))

    def blocks(self, after: int = 0) -> Iterator[StoredBlock]:
        """Every complete block behind number `after`, in order; they are read a few at a time.

        Raises:
            HztuneError: One is damaged.
        """
        while some := self.storage.run(partial(self._some, after=after)):
            for row in some:
                what = f"block {row['number']} of the study {self.name!r}"
                rows = tuple(unpacked(row["rows"], what))
                yield StoredBlock(row["number"], row["worker"], row["elapsed_s"], rows)
            after = some[-1]["number"]

    def samples(self, machine: Mapping[str, Any]) -> Iterator[Record]:
        """The whole study as the records of a file of samples.

        Args:
            machine: The record of the machine that its claim was proved on.
        """
        head = {"schema": SCHEMA, "study": self.label}
        about = {"identity": self.identity, "machine": machine, "created": self.created}
        yield {**head, "kind": "study", **about}
        for block in self.blocks():
            for row in block.rows:
                yield {name: value for name, value in row.items() if name != "seq"}
        ending = self.ending()
        if ending is not None:
            yield {**head, "kind": "end", **ending}

    def forget(self, host: str) -> int:
        """Removes all that workers of a host hold; returns how many workers those were."""
        query = delete(OWNERS).where(OWNERS.c.study == self.name, OWNERS.c.host == host)
        return self.storage.run(lambda connection: connection.execute(query).rowcount)

    def hosts(self) -> list[str]:
        """The hosts whose workers hold something, a host for each worker."""
        query = select(OWNERS.c.host).where(OWNERS.c.study == self.name)
        return self.storage.run(lambda connection: list(connection.scalars(query)))

    def lock(self, connection: Connection) -> str | None:
        """Keeps everybody else from changing the study until the transaction ends.

        Returns:
            How the study ended; None: it has not.
        """
        query = select(STUDIES.c.ending).where(STUDIES.c.name == self.name).with_for_update()
        row = connection.execute(query).first()
        if row is None:
            raise HztuneError(f"the study {self.name!r} has been removed from the storage")
        ending: str | None = row[0]
        return ending

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
    """Inserts a study, unless somebody has done so a moment ago."""
    try:
        with connection.begin_nested():
            connection.execute(insert(STUDIES).values(**values))
    except IntegrityError:
        pass
