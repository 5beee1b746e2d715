"""The log of a study: `samples.jsonl` in its results directory, which one process writes.

Each turn is in the file as soon as it has been measured, so that it outlasts its writer; it is not
synced, which would disturb the turns that follow. A block that is complete is synced. A study that
goes on reads its blocks back and decides the same again: there is nothing else to restore. The lock
is on the directory and belongs to the open file: the kernel drops it with its holder.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

from hztune import files
from hztune.blocks import Block
from hztune.errors import HztuneError, UsageError
from hztune.gc_freeze import gc_frozen
from hztune.machine import Machine
from hztune.store.lines import Record, decoded, packed, read
from hztune.store.rows import SCHEMA, Plan, SampleRows, blocks_of, lean

SAMPLES = "samples.jsonl"


@dataclass(frozen=True)
class Recording:
    """What a results directory holds of its study.

    Attributes:
        lines: The log, a line each.
        identity: What makes the study this one, by name.
        label: A short name of what it is.
        machine: Where it was measured.
        created: When it began, ISO 8601.
        ending: What came out of it; None: it has not ended.
    """

    lines: list[bytes]
    identity: Mapping[str, str]
    label: str
    machine: Machine
    created: str
    ending: Mapping[str, Any] | None

    @classmethod
    def of(cls, path: Path) -> Recording | None:
        """What the log says; None: not even its first line is there.

        Raises:
            UsageError: It cannot be read, or is of another version.
            HztuneError: It is damaged.
        """
        lines = read(path)
        if not lines:
            return None
        head, last = decoded([lines[0], lines[-1]])
        if head.get("schema") != SCHEMA or head["kind"] != "study":
            raise UsageError(
                f"{path} holds no study of schema {SCHEMA}; report it with the hztune that began it"
            )
        machine = Machine(**head["machine"])
        ending = last if last["kind"] == "end" else None
        return cls(lines, head["identity"], head["study"], machine, head["created"], ending)

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """Every complete block, in order."""
        with gc_frozen():
            return tuple(blocks_of(decoded(self.lines, lean)))


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
        self.folder = folder
        self.path = folder / SAMPLES
        with contextlib.ExitStack() as opened:
            opened.callback(os.close, _locked(folder))
            self._file = _opened(self.path)
            opened.callback(os.close, self._file)
            there = Recording.of(self.path)
            if there is not None and not resume:
                raise UsageError(
                    f"{self.path} holds a study already; go on with it (--resume), or choose "
                    "another --out"
                )
            if there is not None:
                _require_same(self.path, there, identity, machine)
            text = json.dumps([dict(identity), asdict(machine)], sort_keys=True)
            label = hashlib.sha256(text.encode()).hexdigest()[:12]
            super().__init__(there.label if there else label, machine.fingerprint)
            self._seq = len(there.lines) if there else 0
            self._size = sum(map(len, there.lines)) if there else 0
            os.ftruncate(self._file, self._size)  # what was torn behind the whole lines goes
            self._is_new, self._last = there is None, True
            self._ending = there.ending if there else None
            if there is None:
                self._begin_study(identity, machine)
            self._opened = opened.pop_all()

    def _begin_study(self, identity: Mapping[str, str], machine: Machine) -> None:
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        head = {"schema": SCHEMA, "kind": "study", "study": self.study}
        about = {"identity": dict(identity), "machine": asdict(machine), "created": now}
        self.append({**head, **about})
        self._sync()

    def __enter__(self) -> LocalStudy:
        """Returns itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes the study; one that was refused before it had a sample leaves no file."""
        if isinstance(error, UsageError) and self._is_new and self._seq == 1:
            self.path.unlink(missing_ok=True)  # while the lock is held
        self.close()

    def begin(self, plan: Plan) -> None:
        """Writes that a block begins; an earlier one that did not end is void."""
        self._last = plan.part == plan.parts - 1
        super().begin(plan)

    def append(self, row: Record) -> None:
        """Writes a row, at once and without a sync.

        Raises:
            HztuneError: It cannot be written; what was written before stays.
        """
        line = packed(row, self._seq)
        try:
            if os.write(self._file, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            os.ftruncate(self._file, self._size)
            raise HztuneError(
                f"cannot write {self.path}: {error.strerror}; what was measured before is kept: "
                "make room, and go on with --resume"
            ) from error
        self._seq, self._size = self._seq + 1, self._size + len(line)

    def end(self) -> None:
        """Waits until the block is on the disk."""
        if self._last:
            self._sync()

    def conclude(self, ending: Mapping[str, Any]) -> None:
        """Writes what came out of the study, and waits until it is on the disk."""
        self._sync()
        head = {"schema": SCHEMA, "kind": "end", "study": self.study}
        self.append({**head, "machine": self.machine, **ending})
        self._sync()

    def ending(self) -> Mapping[str, Any] | None:
        """Returns what came out of the study when it was opened; None: it had not ended."""
        return self._ending

    def replay(self) -> tuple[Block, ...]:
        """Returns every complete block, in order, as it was measured."""
        found = Recording.of(self.path)
        return found.blocks if found else ()

    def close(self) -> None:
        """Closes the study; another process may then go on with it."""
        self._opened.close()

    def _sync(self) -> None:
        try:
            os.fdatasync(self._file)
        except OSError as error:
            raise HztuneError(f"cannot write {self.path}: {error.strerror}") from error


def recording(folder: Path) -> Recording:
    """Returns all that a results directory says of its study, which may be measured meanwhile.

    Raises:
        UsageError: It cannot be read, holds no study, or one of another version.
        HztuneError: It is damaged.
    """
    require_study(folder)
    found = Recording.of(folder / SAMPLES)
    if found is None:
        raise UsageError(f"cannot read a study from {str(folder)!r}: none has begun in it yet")
    return found


def is_there(folder: Path) -> bool:
    """Whether a results directory holds a study."""
    return (folder / SAMPLES).is_file()


def require_study(folder: Path) -> None:
    """Sees to it that a results directory holds a study.

    Raises:
        UsageError: It does not, or is none.
    """
    if is_there(folder):
        return
    if folder.is_dir():
        why = f"it has no {SAMPLES}"
    else:
        why = "it is not a directory" if folder.exists() else "there is no such directory"
    beside = f" ({str(folder.parent)!r} is one)" if is_there(folder.parent) else ""
    raise UsageError(
        f"cannot read a study from {str(folder)!r}: {why}; "
        f"give the results directory that `hztune tune` made{beside}"
    )


def _require_same(
    path: Path, there: Recording, identity: Mapping[str, str], machine: Machine
) -> None:
    """Sees to it that a study goes on with what it was begun with.

    Raises:
        UsageError: It would measure something else, or on another machine.
    """
    different = [
        f"{name}: {there.identity.get(name, 'nothing')} there, {identity.get(name, 'nothing')} here"
        for name in dict.fromkeys([*identity, *there.identity])
        if there.identity.get(name) != identity.get(name)
    ]
    different += machine.differences(there.machine)
    if different:
        raise UsageError(
            f"{path} belongs to another study ({'; '.join(different)}); "
            "repeat its command, or choose another --out"
        )


def _locked(folder: Path) -> int:
    """Opens the directory with the writer's lock, or says which process has it."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if not isinstance(error, BlockingIOError):
            return fd  # a file system without such locks
        holder = _holder(fd)
        os.close(fd)
        raise UsageError(
            f"{folder / SAMPLES} is being written by {holder}; wait for it or choose another --out"
        ) from None
    return fd


def _holder(fd: int) -> str:
    """Returns "process N" for the holder of the lock, as far as the kernel tells."""
    inode = str(os.fstat(fd).st_ino)
    with contextlib.suppress(OSError):
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            words = line.split()
            if words[1] == "FLOCK" and words[5].rpartition(":")[2] == inode:
                return f"process {words[4]}"
    return "another process"


def _opened(path: Path) -> int:
    """Opens the log, creating it if need be; a link or another kind of file is refused."""
    try:
        return files.regular(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW)
    except OSError as error:
        why = f"cannot open {path}: {error.strerror}; choose another --out"
        raise UsageError(why) from error
