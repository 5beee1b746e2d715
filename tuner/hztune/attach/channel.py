"""Asks a process that takes requests (core/src/serve.c): one packet there, an object of JSON back.

The name of its socket and the key that a request begins with are a descriptor of its thread
hz-control: the kernel shows that to those that may read the process's memory.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
import time
from pathlib import Path
from typing import Any

from msgspec import Struct

from hztune import schema
from hztune.arguments import printable
from hztune.attach.outside import Process, is_of_another
from hztune.errors import HztuneError, UsageError, no_look_at

_PATIENCE_S = 5.0
"""How long a process may take to answer."""

_LISTENS_SOON_S = 2.0
"""How long after the start of a process its thread may take to listen."""

_PAUSE_S = 0.02
_PROTOCOL = 2
_MOST_BYTES = 1 << 18
_NAME_AND_KEY = re.compile(r"/memfd:(hz-control-[0-9a-f]{16})-([0-9a-f]{32}) \(deleted\)")
_SWITCH, _PRELOAD = "HZ_CONTROL", "LD_PRELOAD"


class Refused(UsageError):
    """The process understood the request and refuses it."""


class _Head(Struct):
    """What every answer begins with."""

    protocol: int
    refused: str = ""
    sentence: str = ""


def ask_process(process: Process, *lines: str, patience_s: float = _PATIENCE_S) -> dict[str, Any]:
    """A process's answer to a request of these lines.

    Raises:
        UsageError: It takes no requests, or refuses this one (`Refused`).
        HztuneError: It did not answer in time, or ended.
    """
    try:
        name, key = address = _await_address(process)
    except PermissionError:
        raise no_look_at(process.pid) from None
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        patience = struct.pack("ll", *divmod(int(patience_s * 1e6), 1_000_000))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, patience)
        try:
            connection.connect(f"\0{name}")
            if _address(process) != address:  # another process may have the name by now
                raise ConnectionError
            connection.send("\n".join([key, *lines]).encode("utf-8", "surrogateescape"))
            packet = connection.recv(_MOST_BYTES)
        except BlockingIOError:
            raise HztuneError(_why_silent(process, patience_s)) from None
        except ConnectionError:
            packet = b""
    if not packet:
        if not process.exists() or _address(process) != address:
            raise HztuneError(f"process {process.pid} ended while it was asked")
        _require_same("user", process, Path("/proc/self"), Path("/proc", str(process.pid)))
        raise HztuneError(f"process {process.pid} gave no answer: others are asking it; try again")
    return _opened(packet, process)


def _await_address(process: Process) -> tuple[str, str]:
    """The address of a process, at once or as soon as one that has just begun listens."""
    began = time.monotonic()
    while (address := _address(process)) is None:
        if time.monotonic() - began > _LISTENS_SOON_S or not _is_meant_to_listen(process):
            raise UsageError(_why_deaf(process))
        time.sleep(_PAUSE_S)
    return address


def _address(process: Process) -> tuple[str, str] | None:
    """The name of a process's socket and the key to it; None: it takes no requests."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in Path("/proc", str(process.pid), "task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if (task / "comm").read_text("utf-8", "replace") != "hz-control\n":
                    continue
                found = _NAME_AND_KEY.fullmatch(os.readlink(task / "fd/1"))
                if found is not None:  # in another network, anybody can have that name here
                    _require_same("net", process, Path("/proc/thread-self"), task)
                    return found[1], found[2]
    return None


def _require_same(namespace: str, process: Process, ours: Path, theirs: Path) -> None:
    """Says where to ask a process of another namespace."""
    if is_of_another(namespace, ours, theirs):
        what = {"net": "network"}.get(namespace, namespace)
        raise UsageError(
            f"process {process.pid} ({process.name}) is in another {what} namespace (a container); "
            f"ask from inside it, for example with: nsenter --{namespace} --target {process.pid} "
            "hztune ..."
        )


def _opened(packet: bytes, process: Process) -> dict[str, Any]:
    try:
        answer = schema.parse(packet)
        head = schema.judged(answer, _Head)
    except UsageError as error:
        raise UsageError(f"the answer of process {process.pid}: {error}") from None
    if head.protocol != _PROTOCOL:
        raise UsageError(
            f"process {process.pid} has an hz of another version: it speaks protocol "
            f"{head.protocol}, and this hztune {_PROTOCOL}; use the hztune that came with its "
            "library"
        )
    if head.refused:
        raise Refused(f"process {process.pid} refuses: {printable(head.sentence[:600])}")
    found: dict[str, Any] = answer
    return found


def _is_meant_to_listen(process: Process) -> bool:
    """Whether its variables say that it takes requests, or will in a moment."""
    variables = process.variables()
    return variables.get(_SWITCH) == "1" or "libhz-agent.so" in variables.get(_PRELOAD, "")


# ---- why there is no answer ----------------------------------------------------------------------


def _why_silent(process: Process, patience_s: float) -> str:
    what = f"process {process.pid}"
    state = process.state()
    if state in ("T", "t"):
        return (
            f"{what} is stopped (by a signal or a debugger) and cannot answer; let it go on with: "
            f"kill -CONT {process.pid}"
        )
    if state in ("", "Z"):
        return f"{what} ended while it was asked"
    return (
        f"{what} did not answer within {patience_s:g} s: others are asking it, or its CPUs are "
        "busy; try again"
    )


def _why_deaf(process: Process) -> str:
    """Why there is no socket, and what to do."""
    what = f"process {process.pid} ({process.name})"
    if process.has_lost_main():
        return f"{what} takes no requests any more: its main thread has ended"
    if not process.exists():
        return f"there is no process {process.pid}"
    instead, parent = "if it is a daemon, start it so that it stays in the foreground", None
    with contextlib.suppress(PermissionError):
        if (parent := process.parent()) is not None and _address(parent) is not None:
            instead = f"ask its parent, process {parent.pid}"
    if _is_meant_to_listen(process):
        return (
            f"{what} was started so that it takes requests, but does not: either it is the child "
            f"of a fork, where no thread of hz lives on ({instead}), or it said on stderr why"
        )
    if not process.has_mapped("libhz.so"):
        return (
            f"{what} takes no requests: start it with LD_PRELOAD=$(hztune paths --agent), behind "
            f"its own allocator if that is preloaded, too, or on hz with {_SWITCH}=1 "
            "LD_PRELOAD=$(hztune paths --lib)"
        )
    deaf = f"{what} takes no requests: start it with {_SWITCH}=1"
    if "libhz.so" in process.variables().get(_PRELOAD, ""):
        return deaf
    return (
        f"{deaf}; if it was, it is the child of a fork that has written its title over its "
        f"variables, as redis-server and nginx do: {instead}"
    )
