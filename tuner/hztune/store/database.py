"""A storage that several processes share, by its SQLAlchemy URL: PostgreSQL, or a file of SQLite.

Everything happens in short transactions that may be carried out again: when the connection breaks,
it is unknown whether the last one counted, so each is written to come to the same end twice. A
server that restarts is waited for; one that is not there at the beginning is not. A password in the
URL is never shown.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, MetaData, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import (
    DatabaseError,
    DBAPIError,
    InterfaceError,
    OperationalError,
    SQLAlchemyError,
)
from sqlalchemy.pool import QueuePool

from hztune.errors import HztuneError, UsageError

T = TypeVar("T")

FORMS = "postgresql://USER@HOST/DATABASE, or sqlite:///FILE"
"""How URLs look that are legal."""

PATIENCE_S = 60.0
"""How long a server that was there may be away."""

_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0
_BUSY_S = 30
_DRIVER = "postgresql+psycopg"
_SECRETS = ("password", "sslpassword")
_OPTIONS = "-c lock_timeout=30s -c idle_in_transaction_session_timeout=60s"
"""A worker that was stopped in the middle of a transaction must not hold up the others for ever."""


_RESTORE = (
    "restore it from a copy (with the study.db-wal of that copy, or without any), or start anew "
    "with another --out"
)

_MOST_SHOWN = 120
_KEPT = "every sample before this one is saved: "
_TABLE_NAMES = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
_OWN_TABLES = "hztune_"
_SAMPLES = ("hztune_blocks", "hztune_rows")
"""The tables that hold samples, as store/study.py makes them."""

_REFUSALS: tuple[tuple[tuple[str, ...], type[HztuneError], str], ...] = (
    (
        ("not a database",),
        UsageError,
        "{path} holds something else than samples ({reason}); choose another --out",
    ),
    (
        ("malformed", "Could not decode", "no such", "constraint failed"),
        HztuneError,
        "{path} is damaged ({reason}); " + _RESTORE,
    ),
    (
        ("unable to open",),
        UsageError,
        "cannot read {path}: {reason}; see to it that the file and its study.db-wal may be read, "
        "and that its directory may be written to, or work with a copy of the directory",
    ),
    (
        ("locked", "busy"),
        HztuneError,
        "cannot write {path}: {reason} by another program; {kept}end that program (`fuser "
        "FILE` names it) and go on with --resume",
    ),
    (
        ("readonly",),
        HztuneError,
        "cannot write {path}: {reason}; {kept}make it and its directory writable and go on with "
        "--resume",
    ),
    (
        ("full", "disk I/O"),
        HztuneError,
        "cannot write {path}: {reason}; {kept}make room and go on with --resume",
    ),
)
"""By what SQLite says: what the user is told, and as which error."""


class Storage:
    """A database, open; transactions are carried out by functions that are given a connection."""

    remedy = "restore it from a copy, or start anew with another --study"
    """What to do where it is damaged."""

    def __init__(self, url: str) -> None:
        """Opens the storage.

        Raises:
            UsageError: The URL is not legal, its driver is missing, or there is no such directory.
            HztuneError: The server does not answer, or refuses the login.
        """
        self._url = _judged(url)
        self.shown = _shown(self._url)
        """The URL as it may be shown."""
        self._explain: Callable[[SQLAlchemyError, float], HztuneError] = self._unreachable
        try:
            self._engine = _engine(self._url)
        except ImportError as error:
            raise UsageError(
                f"the driver of {self.shown} does not load ({_line(error)}); "
                "install it with: pip install 'hztune[distributed]'"
            ) from None
        self.run(lambda connection: None, patience_s=0.0)

    def run(self, action: Callable[[Connection], T], *, patience_s: float = PATIENCE_S) -> T:
        """Carries out a transaction, again where the connection broke.

        Args:
            action: What to do; it may be called several times, and comes to the same end each time.
            patience_s: How long to try.

        Raises:
            HztuneError: The server is gone, or refuses it.
        """
        give_up = time.monotonic() + patience_s
        pause_s = _PAUSE_S
        while True:
            try:
                with self._engine.begin() as connection:
                    return action(connection)
            except UnicodeDecodeError:  # sqlite3's own, of a text that it would quote
                broken = DatabaseError(
                    "", {}, sqlite3.DatabaseError("malformed: a text is no UTF-8")
                )
                raise self._explain(broken, patience_s) from None
            except SQLAlchemyError as error:
                if not _may_pass(error) or time.monotonic() >= give_up:
                    raise self._explain(error, patience_s) from None
            time.sleep(pause_s)
            pause_s = min(_LONGEST_PAUSE_S, 2.0 * pause_s)

    def prepare(self, tables: MetaData) -> None:
        """Makes the tables that are not there; two that do it at once come to the same end."""
        try:
            self.run(tables.create_all)
        except HztuneError:
            self.run(tables.create_all)

    def close(self) -> None:
        """Closes every connection."""
        self._engine.dispose()

    def _unreachable(self, error: SQLAlchemyError, patience_s: float) -> HztuneError:
        """What to tell the user of a storage that others use, without the password."""
        reason = _line(error.orig if isinstance(error, DBAPIError) else error)
        for secret in _secrets(self._url):
            reason = reason.replace(secret, "***")
        if patience_s and _may_pass(error):
            return HztuneError(
                f"the storage {self.shown} has not answered for {patience_s:g} s ({reason}); every "
                "block that was entered is kept: go on with the same command when it is back"
            )
        return HztuneError(f"the storage {self.shown} cannot be used: {reason}")


class StudyFile(Storage):
    """The database of a results directory: a file of SQLite that one process writes."""

    remedy = _RESTORE

    def __init__(self, path: Path, *, reading: bool = False) -> None:
        """Opens the file; before anything is written, it is looked through by a reader.

        A writer moves the write-ahead log that stands beside the file into the file, also a log
        that belongs to another file. A reader changes neither.

        Args:
            path: The file; it exists.
            reading: Whether nothing is written to it: it may be in use then.

        Raises:
            UsageError: It is no database, that of another program, or cannot be opened.
            HztuneError: It is damaged.
        """
        self.holds_samples = False
        """Whether it does, as far as is known: what writes the first one says so here."""
        if not reading and path.stat().st_size:
            reader = StudyFile(path, reading=True)
            reader.close()
            self.holds_samples = reader.holds_samples
        self._path = path
        self._url = URL.create("sqlite", database=str(path))
        self.shown = str(path)
        self._explain = self._unusable
        self._engine = _reading_engine(path) if reading else _engine(self._url)
        self._writer: sqlite3.Connection | None = None
        try:
            self.run(self._judge if reading else lambda connection: None, patience_s=0.0)
        except BaseException:
            self.close()
            raise

    def write(self, statement: str, value: str) -> None:
        """Carries out a statement by itself: kept when this process dies, not synced.

        Raises:
            HztuneError: It could not be written.
        """
        try:
            if self._writer is None:
                self._writer = _unsynced(self._path)
            self._writer.execute(statement, (value,))
        except sqlite3.Error as error:
            raise self._refusal(str(error)) from None

    def close(self) -> None:
        """Closes every connection."""
        if self._writer is not None:
            self._writer.close()
        super().close()

    def _judge(self, connection: Connection) -> None:
        """Looks through the whole file; what is in its blocks their checksums tell.

        Raises:
            UsageError: It is the database of another program.
            DatabaseError: Something does not fit together.
        """
        found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
        if found != "ok":
            raise _malformed(found)
        names = [name for (name,) in connection.exec_driver_sql(_TABLE_NAMES)]
        if names and not any(name.startswith(_OWN_TABLES) for name in names):
            raise self._refusal(f"not a database of hztune: it has a table {names[0]!r}")
        self.holds_samples = any(
            connection.exec_driver_sql(f"SELECT EXISTS (SELECT 1 FROM {table})").scalar()
            for table in _SAMPLES
            if table in names
        )

    def _unusable(self, error: SQLAlchemyError, patience_s: float) -> HztuneError:
        """What to tell the user of the file."""
        return self._refusal(_line(error.orig if isinstance(error, DBAPIError) else error))

    def _refusal(self, reason: str) -> HztuneError:
        """What to tell the user."""
        if len(reason) > _MOST_SHOWN:  # it quotes what is stored
            reason = reason[:_MOST_SHOWN] + "..."
        kept = _KEPT if self.holds_samples else ""
        for marks, kind, sentence in _REFUSALS:
            if any(mark in reason for mark in marks):
                return kind(sentence.format(path=self._path, reason=reason, kept=kept))
        return HztuneError(f"cannot use {self._path}: {reason}; {kept}go on with --resume")


def _malformed(why: object) -> DatabaseError:
    """What SQLAlchemy would raise for a file that is damaged."""
    return DatabaseError("", {}, sqlite3.DatabaseError(f"malformed: {why}"))


def _unsynced(path: Path) -> sqlite3.Connection:
    """A connection whose commits are appended to the write-ahead log, and never to the file.

    A process that is killed has them kept; a power cut may take those since the last synced commit.
    """
    connection = sqlite3.connect(
        path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
    )
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("PRAGMA wal_autocheckpoint=0")
    return connection


def _reading_engine(path: Path) -> Engine:
    """What makes connections that only read; beside a writer they see what it has committed."""

    def connect() -> sqlite3.Connection:
        is_open = path.with_name(f"{path.name}-wal").exists()
        uri = f"{path.absolute().as_uri()}?{'mode=ro' if is_open else 'immutable=1'}"
        return sqlite3.connect(uri, uri=True, timeout=_BUSY_S, check_same_thread=False)

    return create_engine("sqlite://", creator=connect, poolclass=QueuePool)


def _judged(text: str) -> URL:
    """The URL, with the driver that is used.

    Raises:
        UsageError: It is not legal, or something it needs is missing.
    """
    try:
        text.encode()
        url = make_url(text)
    except (SQLAlchemyError, ValueError):
        raise UsageError(f"--storage is no URL of a database; legal is {FORMS}") from None
    if url.drivername in ("postgresql", "postgres", _DRIVER):
        if find_spec("psycopg") is None:
            raise UsageError(
                "PostgreSQL needs the driver psycopg, which is not installed; "
                "install it with: pip install 'hztune[distributed]'"
            )
        return url.set(drivername=_DRIVER)
    if url.drivername in ("sqlite", "sqlite+pysqlite"):
        _judge_file(url)
        return url
    raise UsageError(f"--storage is for {url.get_backend_name()!r}; legal is {FORMS}")


def _judge_file(url: URL) -> None:
    """Sees to it that there can be such a file."""
    if not url.database or url.database == ":memory:":
        raise UsageError("--storage sqlite:// names no file; legal is sqlite:///FILE")
    folder = Path(url.database).absolute().parent
    if not folder.is_dir():
        raise UsageError(f"--storage: there is no directory {str(folder)!r}; make it first")


def _engine(url: URL) -> Engine:
    """What makes connections."""
    if url.get_backend_name() == "sqlite":
        engine = create_engine(url, connect_args={"timeout": _BUSY_S})
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    options = {} if "options" in url.query else {"options": _OPTIONS}
    return create_engine(
        url, pool_size=1, connect_args={"connect_timeout": 10, "keepalives_idle": 30, **options}
    )


def _prepare_sqlite(connection: Any, record: object) -> None:
    """Makes what was acknowledged outlast a power cut, and readers never wait."""
    connection.isolation_level = None  # transactions begin where _begin_sqlite says so
    _write_ahead(connection)
    connection.execute("PRAGMA synchronous=FULL")


def _write_ahead(connection: Any) -> None:
    """Turns the write-ahead log on, and waits while another process writes to a new file.

    SQLite does not apply its own timeout here: where another connection is about to write, the
    change of the mode fails at once.
    """
    give_up = time.monotonic() + _BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() >= give_up:
                raise
        time.sleep(_PAUSE_S)


def _begin_sqlite(connection: Connection) -> None:
    """Takes the lock at the beginning: one that is asked for in the middle can only fail."""
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _may_pass(error: SQLAlchemyError) -> bool:
    """Whether an error is of the connection, not of what was asked."""
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    if isinstance(error, DBAPIError) and isinstance(error.orig, sqlite3.Error):
        return "locked" in str(error.orig)
    return isinstance(error, (OperationalError, InterfaceError))


def _shown(url: URL) -> str:
    """A URL without its secrets."""
    hidden = {name: "hidden" for name in _SECRETS if name in url.query}
    return url.update_query_dict(hidden).render_as_string(hide_password=True)


def _secrets(url: URL) -> list[str]:
    """What must not be read."""
    named = [str(url.query[name]) for name in _SECRETS if name in url.query]
    return [secret for secret in (str(url.password or ""), *named) if secret]


def _line(error: BaseException | None) -> str:
    """The first line of what an error says."""
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__
