"""The log of a study: `samples.jsonl` in its results directory, which one process writes.

Each turn is in the file as soon as it has been measured, so that it outlasts its writer; it is not
synced, which would disturb the turns that follow. A block that is complete is synced. A study that
goes on reads its blocks back and decides the same again. The lock is on the directory and belongs
to the open file: the kernel drops it with its holder.

A row is a line of JSON that ends with the CRC-32 of what stands before it. A writer that was
killed, or a full disk, leaves no more than an unfinished last line; a power cut may also lose what
was not synced, and leave zeros. Both are recognized: what stands before counts. Damage anywhere
else is refused.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import hashlib
import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from hztune import files
from hztune.blocks import Block, Outcome, ProofPlan, Turn
from hztune.errors import HztuneError, UsageError
from hztune.machine import Machine
from hztune.store import rows
from hztune.store.rows import AnyRow, Evidence, Plan, Row

SAMPLES = "samples.jsonl"
SCHEMA = 1

_FIRST = b'{"kind":"study","seq":0,'
_AFTER_SYNC = (b'{"kind":"block",', b'{"kind":"end",')  # lines before which all is on the disk

_ROW = msgspec.json.Decoder(AnyRow)


def _ended(text: bytes) -> bytes:
    """The line of a row's text, which lacks its last brace."""
    return text + b',"crc":"%08x"}\n' % zlib.crc32(text)


_END_BYTES = len(_ended(b""))


def packed(row: Row) -> bytes:
    return _ended(msgspec.json.encode(row)[:-1])


def _is_whole(line: bytes) -> bool:
    return line == _ended(line[:-_END_BYTES])


def _read(path: Path) -> list[bytes]:
    """The whole lines of a file that may be being written."""
    try:
        with files.opened(path) as file:
            content = file.read()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    lines: list[bytes] = []
    for line in content.splitlines(keepends=True):
        if not (b'","seq":%d,' % len(lines) in line[:40] and _is_whole(line)):
            break
        lines.append(line)
    rest = content[sum(map(len, lines)) :]
    if not lines and not _FIRST.startswith(rest.rstrip(b"\0")[: len(_FIRST)]):
        raise UsageError(f"{path} holds something else than samples; choose another --out")
    if b"\n" in rest.rstrip(b"\0\n") and not _is_torn(rest):
        raise _damaged(path, len(lines))
    return lines


def _is_torn(rest: bytes) -> bool:
    """Whether a power cut can have left this: zeros, and no sign behind them of a later sync."""
    first, *others = rest.splitlines(keepends=True)
    return b"\0" in first and not any(
        line.startswith(_AFTER_SYNC) and _is_whole(line) for line in others
    )


def _damaged(path: Path, line: int) -> HztuneError:
    return HztuneError(
        f"{path} is damaged in line {line + 1}; restore it from a copy, "
        "or start anew with another --out"
    )


@dataclass(frozen=True)
class Recording:
    path: Path  # the log
    lines: list[bytes]
    identity: Mapping[str, str]  # what makes the study this one, by name
    machine: Machine  # where it was begun
    created: str  # when, ISO 8601
    ending: Mapping[str, Any] | None  # what came out of it; None: it has not ended

    @classmethod
    def of(cls, path: Path) -> Recording | None:
        """What the log says; None: not even its first line is there.

        UsageError: it cannot be read, or is of another version. HztuneError: it is damaged.
        """
        lines = _read(path)
        if not lines:
            return None
        head = _row(lines[0], path, 0)
        if not isinstance(head, rows.StudyRow):
            raise _damaged(path, 0)
        last = _row(lines[-1], path, len(lines) - 1)
        ending = last.ending if isinstance(last, rows.EndRow) else None
        return cls(path, lines, head.identity, head.machine, head.created, ending)

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """Every complete block, in order."""
        with rows.gc_frozen():
            return tuple(
                rows.blocks_of(_row(line, self.path, n) for n, line in enumerate(self.lines))
            )


def _row(line: bytes, path: Path, number: int) -> AnyRow:
    try:
        found: AnyRow = _ROW.decode(line[:-_END_BYTES] + b"}")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(  # it is as its writer wrote it
            f"{path} was written by another version of hztune (line {number + 1}: "
            f"{ascii(str(error))[1:-1]}); read it with that version, or choose another --out"
        ) from None
    return found


def _text(text: str) -> str:
    return text.encode(errors="replace").decode()


class LocalStudy(rows.Sink):
    """A study, open for this process alone; `ending`: what came out of it, None: not ended."""

    def __init__(
        self, folder: Path, identity: Mapping[str, str], machine: Machine, *, resume: bool = False
    ) -> None:
        """Opens the study, or begins it in its folder, which exists.

        `identity`: what makes the study this one: workload, library, space, objective, seed, ...
        `resume`: whether there may be a study already. UsageError: there is another study, or any
        without `resume`; or it is in use. HztuneError: it is damaged, or the disk is full.
        """
        self.folder, self.path = folder, folder / SAMPLES
        identity = {_text(name): _text(value) for name, value in identity.items()}
        text = json.dumps([identity, asdict(machine)], sort_keys=True)
        self.study = hashlib.sha256(text.encode()).hexdigest()[:12]
        self.machine = machine.fingerprint
        self._proof: ProofPlan | None = None
        with contextlib.ExitStack() as opened:
            opened.callback(os.close, _locked(folder))
            try:
                flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
                self._file = files.regular(self.path, flags)
            except OSError as error:
                why = f"cannot open {self.path}: {error.strerror}; choose another --out"
                raise UsageError(why) from error
            opened.callback(os.close, self._file)
            there = Recording.of(self.path)
            lines = there.lines if there else []
            if there is not None:
                if not resume:
                    raise UsageError(
                        f"{self.path} holds a study already; go on with it (--resume), or choose "
                        "another --out"
                    )
                _require_same(there, identity, machine)
            self._seq, self._size = len(lines), sum(map(len, lines))
            os.ftruncate(self._file, self._size)  # what was torn behind the whole lines goes
            self._is_new, self.ending = there is None, there.ending if there else None
            if there is None:
                now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
                head = {"schema": SCHEMA, "identity": identity, "machine": machine}
                self._append(rows.StudyRow, **head, created=now)
                self._sync()
            self._opened = opened.pop_all()

    def __enter__(self) -> LocalStudy:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Closes the study; one that was refused before it had a sample leaves no file."""
        if isinstance(error, UsageError) and self._is_new and self._seq == 1:
            self.path.unlink(missing_ok=True)  # while the lock is held
        self.close()

    def note(self, proof: ProofPlan | None) -> None:
        """Takes note of the proof that the next blocks belong to; None: they belong to none."""
        self._proof = proof

    def begin(self, plan: Plan) -> None:
        machine = plan.machine or self.machine
        head = {"machine": machine, "block": plan.number, "role": plan.role}
        self._arms = [
            {**head, "index": index, "arm": arm.key, "allocator": arm.allocator,
             "params": arm.config}
            for index, arm in enumerate(plan.arms)
        ]  # fmt: skip
        self._is_last = plan.part == plan.parts - 1
        self._append(
            rows.BlockRow,
            **head,
            arms=[arm.key for arm in plan.arms],
            rounds=plan.rounds,
            workload=_text(plan.workload),
            part=plan.part,
            parts=plan.parts,
            proof=self._proof,
        )

    def turn(self, index: int, pid: int, turn: Turn, evidence: Evidence) -> None:
        values = {**dict(zip(rows.TURN, astuple(turn), strict=True)), **asdict(evidence)}
        self._append(rows.TurnRow, **self._arms[index], pid=pid, **values)

    def outcome(self, index: int, pid: int, outcome: Outcome) -> None:
        values = {name: getattr(outcome, name) for name in rows.OUTCOME}
        values["detail"] = _text(outcome.detail)
        self._append(rows.OutcomeRow, **self._arms[index], pid=pid, **values)

    def _append(self, kind: type[Row], **fields: Any) -> None:
        line = packed(kind(seq=self._seq, study=self.study, **fields))
        try:
            rest = line
            while rest:  # after a part, the next call says why there is no room for all
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            os.ftruncate(self._file, self._size)
            raise HztuneError(
                f"cannot write {self.path}: {files.reason_of(error)}; what was measured before is "
                "kept: make room, and go on with --resume"
            ) from error
        self._seq, self._size = self._seq + 1, self._size + len(line)

    def end(self) -> None:
        """Waits until the block is on the disk."""
        if self._is_last:
            self._sync()

    def conclude(self, ending: Mapping[str, Any]) -> None:
        self._sync()
        self._append(rows.EndRow, ending=dict(ending))
        self._sync()

    def replay(self) -> tuple[Block, ...]:
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

    UsageError: it cannot be read, or holds no study of this version. HztuneError: it is damaged.
    """
    if not is_there(folder):
        why = "there is no such directory"
        if folder.exists():
            why = f"it has no {SAMPLES}" if folder.is_dir() else "it is not a directory"
        beside = f" ({str(folder.parent)!r} is one)" if is_there(folder.parent) else ""
        raise UsageError(
            f"cannot read a study from {str(folder)!r}: {why}; "
            f"give the results directory that `hztune tune` made{beside}"
        )
    found = Recording.of(folder / SAMPLES)
    if found is None:
        raise UsageError(f"cannot read a study from {str(folder)!r}: none has begun in it yet")
    return found


def is_there(folder: Path) -> bool:
    return (folder / SAMPLES).is_file()


def _require_same(there: Recording, identity: Mapping[str, str], machine: Machine) -> None:
    different = [
        f"{name}: {there.identity.get(name, 'nothing')} there, {identity.get(name, 'nothing')} here"
        for name in dict.fromkeys([*identity, *there.identity])
        if there.identity.get(name) != identity.get(name)
    ]
    different += machine.differences(there.machine)
    if different:
        raise UsageError(
            f"{there.path} belongs to another study ({'; '.join(different)}); "
            "repeat its command, or choose another --out"
        )


def _locked(folder: Path) -> int:
    """Opens the directory with the writer's lock, or says that another process has it."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if not isinstance(error, BlockingIOError):
            return fd  # a file system without such locks
        os.close(fd)
        raise UsageError(
            f"{folder / SAMPLES} is being written by another process; wait for it or choose "
            "another --out"
        ) from None
    return fd
