"""Which process owns what in a shared study, and whether that process still lives.

A heartbeat fails processes that are merely stopped, and keeps dead ones for as long as its timeout
is. The kernel knows better: a process of this host is dead when the host was started anew, when its
number is gone, or when the number belongs to a process that was started at another time. Of other
hosts nothing can be known from here, and two of them may have one name; a user that knows one is
gone says so (`--forget HOST`).
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from hztune import machine

_DEAD_STATES = "ZX"


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process that can be told from every other one.

    Attributes:
        host: Name of its host, a slash, and the host's identity.
        boot: When its host was started: a number that every start makes anew.
        namespace: In which its number counts: a container has one of its own.
        pid: Its number.
        started: When it was started, ticks since the host was.
    """

    host: str
    boot: str
    namespace: str
    pid: int
    started: int

    @classmethod
    def here(cls) -> ProcessId:
        """This one."""
        pid = os.getpid()
        host = f"{socket.gethostname()}/{machine.identity()}"
        started = _started(pid)
        assert started is not None  # it is running
        return cls(host, machine.boot_id(), os.readlink("/proc/self/ns/pid"), pid, started)

    def sees_dead(self, other: ProcessId) -> bool:
        """Whether this process knows that the other one has ended."""
        if other.host != self.host:
            return False
        if other.boot != self.boot:
            return True
        return other.namespace == self.namespace and _started(other.pid) != other.started


def _started(pid: int) -> int | None:
    """When a process was started, ticks; None: there is none, or it is only left to be reaped."""
    try:
        text = Path("/proc", str(pid), "stat").read_text(errors="replace")
    except OSError:
        return None
    words = text[text.rindex(")") + 2 :].split()
    return None if words[0] in _DEAD_STATES else int(words[19])
