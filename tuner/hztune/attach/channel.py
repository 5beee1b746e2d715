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

from hztune.arguments import printable
from hztune.attach.outside import Process
from hztune.errors import HztuneError, UsageError, no_look_at
from hztune.strictjson import Fields, parse

ANSWER_PATIENCE_S = 5.0
"""How long a process may take to answer."""

_PROTOCOL = 2
_MOST_BYTES = 1 << 18
_TIMEVAL = struct.Struct("ll")
_THREAD = "hz-control\n"
_LABEL = "1"
"""The descriptor of that thread which has the name and the key as its own name."""

_NAME_AND_KEY = re.compile(r"/memfd:(hz-control-[0-9a-f]{16})-([0-9a-f]{32}) \(deleted\)")
_NAMESPACES = {"net": "network", "user": "user"}
_SWITCH = "HZ_CONTROL"
_PRELOAD = "LD_PRELOAD"
_LISTENS_SOON_S = 2.0
"""How long after the start of a process its thread may take to listen."""

_PAUSE_S = 0.02
_SENTENCE = re.compile(r".{1,600}", re.S)


class Refused(UsageError):
    """The process understood the request and refuses it."""


def ask_process(process: Process, *lines: str, patience_s: float = ANSWER_PATIENCE_S) -> Fields:
    """Returns a process's answer to a request of these lines.

    Raises:
        UsageError: It takes no requests, or refuses this one (`Refused`).
        HztuneError: It did not answer in time, or ended.
    """
    try:
        name, key = address = _await_address(process)
    except PermissionError:
        raise no_look_at(process.pid) from None
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        patience = _TIMEVAL.pack(*divmod(int(patience_s * 1e6), 1_000_000))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, patience)
        try:
            connection.connect(f"\0{name}")
            if _address(process) != address:  # another process may have the name by now
                raise ConnectionError
            connection.send("\n".join([key, *lines]).encode("utf-8", "surrogateescape"))
            packet = connection.recv(_MOST_BYTES)
        except BlockingIOError:
            raise HztuneError(_silence(process, patience_s)) from None
        except ConnectionError:
            packet = b""
    if not packet:
        raise _unanswered(process, address)
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
                if (task / "comm").read_text("utf-8", "replace") != _THREAD:
                    continue
                found = _NAME_AND_KEY.fullmatch(os.readlink(task / "fd" / _LABEL))
                if found is not None:
                    _require_same_network(process, task)
                    return found[1], found[2]
    return None


def _require_same_network(process: Process, task: Path) -> None:
    """Refuses a socket of another network namespace: here, anybody can have its name."""
    own, its = (os.readlink(who / "ns/net") for who in (Path("/proc/thread-self"), task))
    if own != its:
        raise UsageError(_from_inside(process, "net"))


def _from_inside(process: Process, namespace: str) -> str:
    """Where to ask a process of another namespace."""
    return (
        f"process {process.pid} ({process.name}) is in another {_NAMESPACES[namespace]} namespace "
        f"(a container); ask from inside it, for example with: nsenter --{namespace} --target "
        f"{process.pid} hztune ..."
    )


def _unanswered(process: Process, address: tuple[str, str]) -> HztuneError:
    """Why a process closed the connection."""
    if not process.exists() or _address(process) != address:
        return HztuneError(f"process {process.pid} ended while it was asked")
    if process.is_of_another("user"):
        return UsageError(_from_inside(process, "user"))
    return HztuneError(f"process {process.pid} gave no answer: others are asking it; try again")


def _opened(packet: bytes, process: Process) -> Fields:
    answer = Fields(parse(packet), f"the answer of process {process.pid}")
    protocol = answer.whole("protocol", 0, 1 << 31)
    if protocol != _PROTOCOL:
        raise UsageError(
            f"process {process.pid} has an hz of another version: it speaks protocol {protocol}, "
            f"and this hztune {_PROTOCOL}; use the hztune that came with its library"
        )
    if answer.has("refused"):
        sentence = printable(answer.text("sentence", _SENTENCE))
        raise Refused(f"process {process.pid} refuses: {sentence}")
    return answer


def _silence(process: Process, patience_s: float) -> str:
    """Why nothing came, as far as it shows."""
    state = process.state()
    if state in ("T", "t"):
        return (
            f"process {process.pid} is stopped (by a signal or a debugger) and cannot answer; let "
            f"it go on with: kill -CONT {process.pid}"
        )
    if not state or state == "Z":
        return f"process {process.pid} ended while it was asked"
    return (
        f"process {process.pid} did not answer within {patience_s:g} s: others are asking it, or "
        "its CPUs are busy; try again"
    )


def _is_meant_to_listen(process: Process) -> bool:
    """Whether its variables say that it takes requests, or will in a moment."""
    variables = process.variables()
    return variables.get(_SWITCH) == "1" or "libhz-agent.so" in variables.get(_PRELOAD, "")


def _instead_of(process: Process) -> str:
    """What to do where a process is the child of a fork, as a clause."""
    parent = process.parent()
    with contextlib.suppress(PermissionError):
        if parent is not None and _address(parent) is not None:
            return f"ask its parent, process {parent.pid}"
    return "if it is a daemon, start it so that it stays in the foreground"


def how_to_start(process: Process) -> str:
    """Returns how to start a process so that it can be asked, as a clause."""
    if process.has_mapped("libhz.so"):
        return f"start it with {_SWITCH}=1"
    return (
        "start it with LD_PRELOAD=$(hztune paths --agent), behind its own allocator if that is "
        f"preloaded, too, or on hz with {_SWITCH}=1 LD_PRELOAD=$(hztune paths --lib)"
    )


def _why_deaf(process: Process) -> str:
    """Why there is no socket."""
    what = f"process {process.pid} ({process.name})"
    if process.has_lost_main():
        return f"{what} takes no requests any more: its main thread has ended"
    if not process.exists():
        return f"there is no process {process.pid}"
    if _is_meant_to_listen(process):
        return (
            f"{what} was started so that it takes requests, but does not: either it is the child "
            f"of a fork, where no thread of hz lives on ({_instead_of(process)}), or it said on "
            "stderr why"
        )
    deaf = f"{what} takes no requests: {how_to_start(process)}"
    if process.has_mapped("libhz.so") and "libhz.so" not in process.variables().get(_PRELOAD, ""):
        return (
            f"{deaf}; if it was, it is the child of a fork that has written its title over its "
            f"variables, as redis-server and nginx do: {_instead_of(process)}"
        )
    return deaf
