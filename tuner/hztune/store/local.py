"""The study of a results directory: `study.db`, which one process measures at a time.

Each turn is in the database as soon as it has been measured, so that it outlasts its writer; it is
not synced, which would disturb the turns that follow. A block that is complete is synced. The lock
is on the directory and belongs to the open file: the kernel drops it with its holder.

A directory from before `study.db` has `samples.jsonl` alone: it is read as it is, and taken
over when its study goes on.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from hztune import files
from hztune.blocks import Block
from hztune.errors import HztuneError, UsageError
from hztune.gc_freeze import gc_frozen
from hztune.machine import Machine
from hztune.store.database import StudyFile
from hztune.store.lines import (
    Record,
    decoded,
    has_lines,
    numbered,
    packed,
    read,
    sealed,
)
from hztune.store.rows import SCHEMA, Plan, SampleRows, blocks_of, lean
from hztune.store.study import (
    ROWS,
    STUDIES,
    TABLES,
    StoredStudy,
    identity_differences,
    study_values,
)

DATABASE = "study.db"
SAMPLES = "samples.jsonl"

_NAME = "study"
_WORKER = "own"
"""How the only worker of such a study is called in its blocks."""

_ROW = f"INSERT INTO {ROWS.name} (study, worker, line) VALUES ('{_NAME}', '{_WORKER}', ?)"


class LocalStudy(SampleRows):
    """A study in its results directory, open for measuring by this process alone."""

    def __init__(
        self,
        folder: Path,
        identity: Mapping[str, str],
        machine: Machine,
        *,
        resume: bool = False,
    ) -> None:
        """Opens the study, or begins it.

        Args:
            folder: The results directory; it exists.
            identity: What makes the study this one and no other: workload, threads, allocator and
                the sum of its library, space, objective, limits, seed, ... by name.
            machine: Where it is measured.
            resume: Whether there may be a study already.

        Raises:
            UsageError: There is another study, or any without `resume`; or it is in use.
            HztuneError: It is damaged, or the disk is full.
        """
        self.path = folder / DATABASE
        self._is_new = False
        with contextlib.ExitStack() as opened:
            opened.callback(os.close, _locked(folder))
            if not self.path.exists():
                _judge_old(folder / SAMPLES, resume)
            self._storage = opened.enter_context(contextlib.closing(_file(self.path)))
            self._study = self._open(dict(identity), machine, resume)
            self._storage.run(self._settle)
            self._opened = opened.pop_all()
        self._last = True
        super().__init__(self._study.label, machine.fingerprint)

    def __enter__(self) -> LocalStudy:
        """Returns itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Writes all samples to `samples.jsonl`, too, and closes the study.

        One that was begun here, and refused before it had a sample, leaves no file.
        """
        if isinstance(error, UsageError) and self._is_new and not self._storage.holds_samples:
            for end in ("", "-wal", "-shm"):  # while the lock is held
                self.path.with_name(DATABASE + end).unlink(missing_ok=True)
            self.close()
            return
        try:
            self.export()
        except HztuneError:
            if error is None:
                raise
        finally:
            self.close()

    @property
    def folder(self) -> Path:
        """The results directory."""
        return self.path.parent

    def begin(self, plan: Plan) -> None:
        """Writes that a block begins; an earlier one that did not end is void."""
        self._last = plan.part == plan.parts - 1
        super().begin(plan)

    def append(self, row: Record) -> None:
        """Writes a row, at once and without a sync."""
        self._storage.write(_ROW, packed(row).decode())
        self._storage.holds_samples |= row["kind"] != "block"

    def end(self) -> None:
        """Enters the block, and waits until it is on the disk."""
        if self._last and self._plan is not None:
            number = self._plan.number
            self._storage.run(lambda connection: self._enter(connection, number))

    def conclude(self, ending: Mapping[str, Any]) -> None:
        """Writes what came out of the study, and waits until it is on the disk."""
        text = sealed({"machine": self.machine, **ending})
        self._storage.run(lambda connection: self._study.update(connection, ending=text))

    def ending(self) -> Record | None:
        """Returns what came out of the study, None while it has not ended."""
        return self._study.ending()

    def replay(self) -> tuple[Block, ...]:
        """Returns every complete block, in order, as it was measured."""
        with gc_frozen():
            return _blocks(self._study)

    def samples(self) -> Iterator[bytes]:
        """The lines of all samples, as `samples.jsonl` holds them."""
        return self._study.samples(self._study.request["machine"])

    def export(self) -> None:
        """Writes all samples to `samples.jsonl`.

        Raises:
            HztuneError: The file cannot be written.
        """
        files.write_whole(self.folder / SAMPLES, self.samples())

    def close(self) -> None:
        """Closes the study; another process may then go on with it."""
        self._opened.close()

    def _settle(self, connection: Connection) -> None:
        """Enters a block whose writer died between its last sample and its end."""
        begun = self._study.begun_lines(connection)
        rest = _enter_all(connection, self._study, begun)
        if len(rest) < len(begun):
            ids = select(ROWS.c.id).order_by(ROWS.c.id).limit(len(begun) - len(rest))
            connection.execute(delete(ROWS).where(ROWS.c.id.in_(ids)))

    def _enter(self, connection: Connection, number: int) -> None:
        """Moves the samples since the last complete block into the row of this one."""
        self._study.update(connection, begun=number + 1)
        lines = self._study.begun_lines(connection)
        self._study.enter(connection, number, _WORKER, 0.0, lines)
        connection.execute(delete(ROWS))

    def _open(
        self,
        identity: dict[str, str],
        machine: Machine,
        resume: bool,
    ) -> StoredStudy:
        """Returns the study: the one that is there and the same, or else a new one."""
        old = self.folder / SAMPLES
        study = StoredStudy.find(self._storage, _NAME)
        if study is not None and not resume:
            raise _holds_one(self.path)
        if study is None and old.is_file():
            self._storage.run(lambda connection: _take_over(self._storage, connection, old))
            study = StoredStudy.find(self._storage, _NAME)
        if study is None:
            values = _study_values(identity, machine)
            self._storage.run(lambda connection: _insert_study(connection, values))
            self._is_new = True
            study = StoredStudy.find(self._storage, _NAME)
            assert study is not None  # it has just been made
            return study
        there = Machine(**study.request["machine"])
        different = (
            *identity_differences(study.identity, identity),
            *machine.differences(there),
        )
        if different:
            raise UsageError(
                f"{self.path} belongs to another study ({'; '.join(different)}); "
                "repeat its command, or choose another --out"
            )
        return study


@dataclass(frozen=True, slots=True)
class Recording:
    """What a results directory holds of its study.

    Attributes:
        identity: What makes the study this one, by name.
        label: A short name of what it is.
        machine: Where it was measured.
        created: When it began, ISO 8601.
        blocks: Every complete block, in order.
        ending: What came out of it; None: it has not ended.
    """

    identity: Mapping[str, str]
    label: str
    machine: Machine
    created: str
    blocks: tuple[Block, ...]
    ending: Mapping[str, Any] | None

    @property
    def where(self) -> str:
        """What the rows call the machine on which the claim was proved."""
        return str((self.ending or {}).get("where", self.machine.fingerprint))


def recording(folder: Path) -> Recording:
    """Returns all that a results directory says of its study, which may be measured meanwhile.

    Raises:
        UsageError: It cannot be read, holds no study, or one of another version.
        HztuneError: It is damaged.
    """
    require_study(folder)
    path = folder / DATABASE
    if not path.is_file():
        return _read_samples(folder / SAMPLES)
    with contextlib.closing(StudyFile(path, reading=True)) as storage:
        study = StoredStudy.find(storage, _NAME)
        if study is None:
            return _read_samples(_samples_beside(path))
        ending = study.ending()
        return Recording(
            identity=study.identity,
            label=study.label,
            machine=Machine(**study.request["machine"]),
            created=study.created,
            blocks=_blocks(study),
            ending=ending,
        )


def samples(folder: Path) -> list[bytes]:
    """Returns the lines of all samples of a results directory, also of one in use.

    Raises:
        UsageError: It cannot be read, or holds no study.
        HztuneError: It is damaged.
    """
    require_study(folder)
    path = folder / DATABASE
    if not path.is_file():
        return read(folder / SAMPLES)[0]
    with contextlib.closing(StudyFile(path, reading=True)) as storage:
        study = StoredStudy.find(storage, _NAME)
        if study is None:
            return read(_samples_beside(path))[0]
        return list(study.samples(study.request["machine"]))


def is_there(folder: Path) -> bool:
    """Whether a results directory holds a study."""
    return any((folder / name).is_file() for name in (DATABASE, SAMPLES))


def require_study(folder: Path) -> None:
    """Sees to it that a results directory holds a study.

    Raises:
        UsageError: It does not, or is none.
    """
    if is_there(folder):
        return
    if folder.is_dir():
        why = f"it has no {DATABASE}, nor the {SAMPLES} of before there was one"
    else:
        why = "it is not a directory" if folder.exists() else "there is no such directory"
    beside = f" ({str(folder.parent)!r} is one)" if is_there(folder.parent) else ""
    raise UsageError(
        f"cannot read a study from {str(folder)!r}: {why}; "
        f"give the results directory that `hztune tune` made{beside}"
    )


def _samples_beside(path: Path) -> Path:
    """The samples of before there was a database, beside one in which no study has begun.

    Raises:
        UsageError: There are none.
    """
    samples = path.with_name(SAMPLES)
    if not samples.is_file():
        raise UsageError(f"cannot read a study from {str(path)!r}: none has begun in it yet")
    return samples


def _read_samples(path: Path) -> Recording:
    """What a file of samples says."""
    rows = list(decoded(read(path)[0], lean))
    if not rows or rows[0].get("schema") != SCHEMA:
        raise UsageError(f"{path} holds no study of schema {SCHEMA}")
    return Recording(
        identity=rows[0]["identity"],
        label=rows[0]["study"],
        machine=Machine(**rows[0]["machine"]),
        created=rows[0]["created"],
        blocks=tuple(blocks_of(rows)),
        ending=next((row for row in rows if row["kind"] == "end"), None),
    )


def _blocks(study: StoredStudy) -> tuple[Block, ...]:
    return tuple(blocks_of(row for block in study.blocks(lean=lean) for row in block.rows))


# ---- opening -------------------------------------------------------------------------------------


def _locked(folder: Path) -> int:
    """Opens the directory with the writer's lock, or says which process has it."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        refusal = _is_in_use(folder / DATABASE, fd)
        os.close(fd)
        raise refusal from None
    except OSError:
        pass  # a file system without such locks: the database has its own
    return fd


def _is_in_use(path: Path, fd: int) -> UsageError:
    return UsageError(
        f"{path} is being written by {_holder(fd)}; wait for it or choose another --out"
    )


def _holder(fd: int) -> str:
    """Returns "process N" for the holder of the lock, as far as the kernel tells."""
    inode = str(os.fstat(fd).st_ino)
    with contextlib.suppress(OSError):
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            words = line.split()
            if words[1] == "FLOCK" and words[5].rpartition(":")[2] == inode:
                return f"process {words[4]}"
    return "another process"


def _file(path: Path) -> StudyFile:
    """Opens the database, creating it if need be, and looks whether it is sound."""
    for each in (path, path.with_name(SAMPLES)):
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        flags |= os.O_CREAT if each == path else 0
        try:
            fd = os.open(each, flags, 0o644)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise UsageError(f"cannot open {each}: {error.strerror}") from error
        is_regular = stat.S_ISREG(os.fstat(fd).st_mode)
        os.close(fd)
        if not is_regular:
            raise UsageError(f"cannot open {each}: it is not a regular file; choose another --out")
    return StudyFile(path)


def _judge_old(path: Path, resume: bool) -> None:
    """Looks whether a file of samples may be taken over, before anything is made beside it.

    Raises:
        UsageError: It holds a study that shall not be resumed, or something else.
        HztuneError: It is damaged.
    """
    if path.is_file() and not path.is_symlink():
        with _first_version(path):
            read(path)
        if not resume:
            raise _holds_one(path)


@contextlib.contextmanager
def _first_version(path: Path) -> Iterator[None]:
    """Keeps an older hztune from writing its samples for as long as the block lasts.

    Raises:
        UsageError: It is writing them.
    """
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _is_in_use(path, file.fileno()) from None
        yield


def _holds_one(path: Path) -> UsageError:
    return UsageError(
        f"{path} holds a study already; go on with it (--resume), or choose another --out"
    )


def _study_values(identity: dict[str, str], machine: Machine) -> dict[str, Any]:
    """The row of a study that begins."""
    text = json.dumps([identity, asdict(machine)], sort_keys=True)
    label = hashlib.sha256(text.encode()).hexdigest()[:12]
    return study_values(_NAME, identity, {"label": label, "machine": asdict(machine)})


def _insert_study(connection: Connection, values: Mapping[str, Any]) -> None:
    TABLES.create_all(connection)
    connection.execute(insert(STUDIES).values(**values))


# ---- a study of before study.db ------------------------------------------------------------------


def _take_over(storage: StudyFile, connection: Connection, path: Path) -> None:
    """Takes a study of before `study.db` into the empty database; `path` stays as it is.

    Raises:
        UsageError: Another process writes it, or it holds no study that can be taken over.
        HztuneError: It is damaged.
    """
    with _first_version(path):
        lines, rest = read(path)
    if not lines:
        return
    study = _insert_first(storage, connection, path, lines)
    again = numbered(study.unnumbered(connection, study.request["machine"]))
    if list(again) != lines:
        raise HztuneError(
            f"{path} cannot be taken over without loss; go on with the hztune that wrote it, or "
            "start anew with another --out"
        )
    if has_lines(rest):
        _set_aside(path, rest, len(lines))


def _insert_first(
    storage: StudyFile, connection: Connection, path: Path, lines: list[bytes]
) -> StoredStudy:
    """Inserts the study, its blocks and its end."""
    first, last = (next(decoded([line])) for line in (lines[0], lines[-1]))
    if first.get("schema") != SCHEMA or first.get("kind") != "study":
        raise UsageError(f"{path} holds no study of schema {SCHEMA}")
    request = {"label": first["study"], "machine": first["machine"]}
    values = study_values(_NAME, first["identity"], request, first["created"])
    has_ended = last["kind"] == "end"
    if has_ended:
        named = ("seq", "schema", "kind", "study")
        ending = {name: value for name, value in last.items() if name not in named}
        values["ending"] = sealed(ending)
    _insert_study(connection, values)
    study = StoredStudy(storage, _NAME, values)
    begun = _enter_all(connection, study, lines[1 : len(lines) - has_ended])
    if begun:
        head = {"study": _NAME, "worker": _WORKER}
        rows = [{**head, "line": line.decode()} for line in begun]
        connection.execute(insert(ROWS), rows)
    return study


def _enter_all(connection: Connection, study: StoredStudy, lines: list[bytes]) -> list[bytes]:
    """Enters every complete block that the lines hold; returns the lines behind the last one."""
    taken: list[bytes] = []

    def records() -> Iterator[Record]:
        for line in lines:
            taken.append(line)
            yield json.loads(line)

    for block in blocks_of(records()):
        study.update(connection, begun=block.number + 1)
        study.enter(connection, block.number, _WORKER, 0.0, taken)
        taken.clear()
    return taken


def _set_aside(path: Path, rest: bytes, count: int) -> None:
    """Keeps in a file beside what a power cut tore, and says so."""
    number = 1
    while (beside := path.with_name(f"{path.name}.torn-{number}")).exists():
        number += 1
    files.write_whole(beside, [rest])
    logging.getLogger(__name__).warning(
        "%s is torn in line %d, as a power cut leaves it; what stands from there on, of the "
        "last block, is kept in %s",
        path,
        count + 1,
        beside.name,
    )
