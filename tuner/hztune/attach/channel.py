"""Asks a process that takes requests (core/src/serve.c): one packet there, an object of JSON back.

The socket has the name hz-control-PID in the abstract namespace, by the number that the process has
in its own namespace of processes. Whoever answers must be that process: the kernel says so.
"""

from __future__ import annotations

import re
import socket
import struct
import time

from hztune.arguments import printable
from hztune.attach.outside import Process
from hztune.errors import HztuneError, UsageError
from hztune.strictjson import Fields, parse

ANSWER_PATIENCE_S = 5.0
"""How long a process may take to answer."""

_PROTOCOL = 1
_MOST_BYTES = 1 << 18
_CREDENTIALS = struct.Struct("iII")
_SWITCH = "HZ_CONTROL"
_PRELOAD = "LD_PRELOAD"
_LISTENS_SOON_S = 2.0
"""How long after the start of a process its thread may take to listen."""

_PAUSE_S = 0.02
_MESSAGE = b"hz: "
_SENTENCE = re.compile(r".{1,600}", re.S)


class Refused(UsageError):
    """The process understood the request and refuses it."""


def ask_process(process: Process, *lines: str, patience_s: float = ANSWER_PATIENCE_S) -> Fields:
    """Returns a process's answer to a request of these lines.

    Raises:
        UsageError: It takes no requests, or refuses this one (`Refused`).
        HztuneError: It did not answer in time, or ended.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(patience_s)
        _connect(connection, process)
        _require_it_is(connection, process)
        try:
            connection.send("\n".join(lines).encode("utf-8", "surrogateescape"))
            return _answer(connection, process)
        except TimeoutError:
            raise HztuneError(_silence(process, patience_s)) from None
        except (BrokenPipeError, ConnectionError):
            raise HztuneError(f"process {process.pid} ended while it was asked") from None


def _name(process: Process) -> str:
    return f"\0hz-control-{process.inner_pid}"


def _connect(connection: socket.socket, process: Process) -> None:
    """Connects, at once or as soon as a process that has just begun listens."""
    patience_s = connection.gettimeout() or 0.0
    began = time.monotonic()
    while True:
        try:
            connection.connect(_name(process))
            return
        except (BlockingIOError, TimeoutError):  # as many wait as may
            if time.monotonic() - began > patience_s:
                raise HztuneError(_silence(process, patience_s)) from None
        except OSError:
            if time.monotonic() - began > _LISTENS_SOON_S or not _is_meant_to_listen(process):
                raise UsageError(_why_deaf(process)) from None
        time.sleep(_PAUSE_S)


def _require_it_is(connection: socket.socket, process: Process) -> None:
    """Refuses an answer of any other process, which may have taken the name."""
    held = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid = _CREDENTIALS.unpack(held)[0]
    if pid != process.pid:
        other = f"process {pid}" if pid else "a process of another namespace"
        raise UsageError(
            f"the socket hz-control-{process.inner_pid} belongs to {other}, not to process "
            f"{process.pid}; nothing was asked"
        )


def _answer(connection: socket.socket, process: Process) -> Fields:
    """Reads the answer; messages of hz that come before it end up in the error, if there is one."""
    said = []
    while packet := connection.recv(_MOST_BYTES):
        if not packet.startswith(_MESSAGE):
            return _opened(packet, process)
        said.append(packet.decode("utf-8", "replace").strip())
    more = f"; it said: {' '.join(said)}" if said else ""
    raise HztuneError(f"process {process.pid} ended while it was asked{more}")


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


def _listens(process: Process) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(ANSWER_PATIENCE_S)
        return connection.connect_ex(_name(process)) == 0


def _instead_of(process: Process) -> str:
    """What to do where a process is the child of a fork, as a clause."""
    parent = process.parent()
    if parent is not None and _listens(parent):
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
    if process.is_of_another("net"):
        return (
            f"{what} is in another network namespace (a container); ask from inside it, for "
            f"example with: nsenter --net --target {process.pid} hztune ..."
        )
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
