"""A process that runs: what the kernel tells of it, and how it is asked (core/src/serve.c).

A request is one packet, an object of JSON comes back. The name of the socket and the key that a
request begins with are a descriptor of the process's thread hz-control: the kernel shows that to
those that may read the process's memory.
"""

from __future__ import annotations

import os
import re
import socket
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from hztune import schema
from hztune.allocator.live import ProcessMemory
from hztune.arguments import printable
from hztune.errors import HztuneError, UsageError, no_look_at

_PATIENCE_S = 5.0  # how long a process may take to answer
_LISTENS_SOON_S = 2.0  # how long after its start its thread may take to listen
_PAUSE_S = 0.02
_PROTOCOL = 3
_MOST_BYTES = 1 << 18
_NAME_AND_KEY = re.compile(r"/memfd:(hz-control-[0-9a-f]{16})-([0-9a-f]{32}) \(deleted\)")
_ENDED = "ended while it was asked"
_SWITCH, _PRELOAD = "HZ_CONTROL", "LD_PRELOAD"
_FIGURES = re.compile(r"^(Rss|Anonymous|LazyFree|Swap|AnonHugePages): +(\d+) kB$", re.M)
_MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ .*\n((?:[A-Z][A-Za-z_]+:.*\n)*)", re.M)
_KIB = 1024
_T = TypeVar("_T")


class _Head(Struct):
    protocol: int
    refused: str = ""
    sentence: str = ""


class Governed(Struct, frozen=True):
    """A lease: the values of its levers, read back, and which of them others have changed.

    `began`: it is a new one, so that all levers had their own values before.
    """

    values: dict[str, schema.Setting]
    taken: tuple[schema.Word, ...]
    began: bool


@dataclass(frozen=True, slots=True)
class SeenMemory:
    """The memory of a process as the kernel counts it, in bytes.

    Anonymous is what of the resident bytes is of no file: heaps, stacks. Lazy is what of that was
    given back, and goes when memory is short (MADV_FREE).
    """

    resident_bytes: int
    anonymous_bytes: int
    lazy_bytes: int
    swapped_bytes: int
    huge_bytes: int


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    name: str

    def __str__(self) -> str:
        return f"process {self.pid} ({self.name})"

    @classmethod
    def of(cls, pid: int) -> Process:
        """Finds a process; UsageError: there is none."""
        status = cls(pid, "").status()
        if not status:
            raise UsageError(f"there is no process {pid}")
        if status["Tgid"] != str(pid):
            raise UsageError(f"{pid} is a thread of process {status['Tgid']}; give that number")
        return cls(pid, printable(status["Name"]))

    def status(self) -> dict[str, str]:
        with suppress(OSError):
            told = Path("/proc", str(self.pid), "status").read_text("utf-8", "replace")
            pairs = (line.partition(":") for line in told.splitlines())
            return {name: value.strip() for name, _, value in pairs}
        return {}

    def state(self) -> str:
        """Its state, one letter; "": it is gone."""
        return self.status().get("State", "")[:1]

    def exists(self) -> bool:
        return self.state() not in ("", "Z", "X")

    def memory(self) -> SeenMemory:
        found = dict(_FIGURES.findall(self._smaps("smaps_rollup")))
        names = ("Rss", "Anonymous", "LazyFree", "Swap", "AnonHugePages")
        return SeenMemory(*(_KIB * int(found.get(name, 0)) for name in names))

    def resident_between(self, first: int, last: int) -> int:
        """Bytes in memory of the mappings between two addresses, but for lazy ones."""
        total = 0
        for start, end, about in _MAPPING.findall(self._smaps("smaps")):
            if int(start, 16) < last and first < int(end, 16):
                found = dict(_FIGURES.findall(about))
                total += int(found.get("Rss", 0)) - int(found.get("LazyFree", 0))
        return total * _KIB

    def _smaps(self, name: str) -> str:
        try:
            return Path("/proc", str(self.pid), name).read_text("utf-8", "replace")
        except PermissionError:
            raise no_look_at(str(self)) from None
        except OSError:
            if self.state():
                raise UsageError(
                    f"{self} has no memory: it is a thread of the kernel, or has ended and its "
                    "parent has not asked for its exit status"
                ) from None
            raise UsageError(f"{self} has ended") from None


def ask_process(
    process: Process, kind: type[_T], *lines: str, patience_s: float = _PATIENCE_S
) -> _T:
    """A process's answer; UsageError: it takes no requests, or refuses; HztuneError: none came."""
    try:
        name, key = address = _await_address(process)
    except PermissionError:
        raise no_look_at(str(process)) from None
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        patience = struct.pack("ll", *divmod(int(patience_s * 1e6), 1_000_000))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, patience)
        try:
            connection.connect(f"\0{name}")
            if socket_of(process.pid) != address:  # another process may have the name by now
                raise ConnectionError
            connection.send("\n".join([key, *lines]).encode("utf-8", "surrogateescape"))
            packet = connection.recv(_MOST_BYTES)
        except BlockingIOError:
            raise HztuneError(_why_silent(process, patience_s)) from None
        except ConnectionError:
            packet = b""
    if not packet:
        if not process.exists():
            raise HztuneError(f"{process} {_ENDED}")
        if socket_of(process.pid) != address:
            why = "it is another program now, or a sandbox forbids it to answer"
            raise HztuneError(f"{process} takes no requests any more: {why}")
        _require_same("user", process.pid, Path("/proc/self"), Path("/proc", str(process.pid)))
        raise HztuneError(f"{process} gave no answer: others are asking it; try again")
    return _opened(packet, process, kind)


def govern(process: Process, token: str, seconds: int, settings: Mapping[str, str]) -> Governed:
    """Sets levers under a lease that the process ends by itself if it is not renewed in time.

    `token` is drawn once by the governor: 8 to 32 hexadecimal digits. `seconds`: 1 to 60; 0 ends
    the lease. At its end the levers have the values of before, but for those that others changed.

    UsageError, HztuneError: as `ask_process`; the lease is then as it was.
    """
    lines = (f"{name}={value}" for name, value in {"token": token, **settings}.items())
    return ask_process(process, Governed, f"govern {seconds}", *lines)


def _await_address(process: Process) -> tuple[str, str]:
    """The address of a process, at once or as soon as one that has just begun listens."""
    began = time.monotonic()
    while (address := socket_of(process.pid)) is None:
        is_late = time.monotonic() - began > _LISTENS_SOON_S
        if is_late or not _is_meant_to_listen(process.pid, if_unknown=True):
            raise UsageError(_why_deaf(process))
        time.sleep(_PAUSE_S)
    return address


def socket_of(pid: int) -> tuple[str, str] | None:
    """The name of a process's socket and the key to it; None: it takes no requests."""
    with suppress(FileNotFoundError, ProcessLookupError):
        for task in Path("/proc", str(pid), "task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                if (task / "comm").read_text("utf-8", "replace") != "hz-control\n":
                    continue
                found = _NAME_AND_KEY.fullmatch(os.readlink(task / "fd/1"))
                if found is not None:  # in another network, anybody can have that name here
                    _require_same("net", pid, Path("/proc/thread-self"), task)
                    return found[1], found[2]
    return None


def _require_same(namespace: str, pid: int, ours: Path, theirs: Path) -> None:
    """Says where to ask a process of another namespace, where that may be read."""
    with suppress(OSError):
        if os.readlink(ours / "ns" / namespace) != os.readlink(theirs / "ns" / namespace):
            raise UsageError(
                f"{Process.of(pid)} is in another {namespace.replace('net', 'network')} namespace "
                f"(a container); ask in it: nsenter --{namespace} --target {pid} hztune ..."
            )


def _opened(packet: bytes, process: Process, kind: type[_T]) -> _T:
    try:
        answer = schema.parse(packet)
        head = schema.judged(answer, _Head)
        if head.protocol == _PROTOCOL and not head.refused:
            return schema.judged(answer, kind)
    except UsageError as error:
        raise UsageError(f"the answer of {process}: {error}") from None
    if head.protocol != _PROTOCOL:
        raise UsageError(
            f"{process} has an hz or agent of another version: it speaks protocol {head.protocol}, "
            f"and this hztune {_PROTOCOL}; use the hztune that came with its library"
        )
    raise UsageError(f"{process} refuses: {printable(head.sentence[:600])}")


def _is_meant_to_listen(pid: int, *, if_unknown: bool = False) -> bool:
    """Whether its variables say that it takes requests, or will in a moment."""
    with suppress(OSError):
        variables = ProcessMemory.of(pid).variables()
        if not variables:  # it has none, or has hardly begun
            return if_unknown
        return variables.get(_SWITCH) == "1" or "libhz-agent.so" in variables.get(_PRELOAD, "")
    return False


def _why_silent(process: Process, patience_s: float) -> str:
    stopped = (
        "is stopped (by a signal or a debugger) and cannot answer; let it go on with: "
        f"kill -CONT {process.pid}"
    )
    late = f"did not answer within {patience_s:g} s: others are asking it, or its CPUs are busy"
    why = {"T": stopped, "t": stopped, "": _ENDED, "Z": _ENDED}
    return f"{process} {why.get(process.state(), f'{late}; try again')}"


def _why_deaf(process: Process) -> str:
    if not process.exists():
        return f"there is no process {process.pid}"
    instead = "if it is a daemon, start it so that it stays in the foreground"
    with suppress(PermissionError):
        if socket_of(int(process.status().get("PPid", "0"))) is not None:
            instead = f"ask its parent, process {process.status()['PPid']}"
    if _is_meant_to_listen(process.pid):
        return (
            f"{process} was started so that it takes requests, but does not: either it is the "
            f"child of a fork, where no thread of hz lives on ({instead}), or it said on stderr why"
        )
    return (
        f"{process} takes no requests: start it on hz with {_SWITCH}=1, or with "
        "LD_PRELOAD=$(hztune paths --agent), behind its own allocator if that is preloaded. If you "
        f"did, it is the child of a fork: {instead}"
    )
