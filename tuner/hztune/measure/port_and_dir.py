"""What each copy of a server has for itself: a free port `{port}` and a scratch directory `{dir}`.

A server and what is run around it are a *unit*. Each unit has both for itself, so that what one
leaves behind (files, connections that the kernel has not forgotten) is not there for the next one,
and two may live at once.
"""

from __future__ import annotations

import contextlib
import errno
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from hztune.errors import HztuneError
from hztune.measure.program import Program, filled, placeholders
from hztune.scratch import scratch_folder

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST_PORT = 10_000
_LEAST_PORTS = 1_000
_LAST_PORT = 65_535
_TRIES = 100
_PORTS = random.SystemRandom()


@dataclass(frozen=True, slots=True)
class PortAndDir:
    """What one unit has for itself.

    Attributes:
        port: A TCP port that was free a moment ago; 0: none is asked for.
        folder: An empty directory; None: none is asked for.
    """

    port: int = 0
    folder: Path | None = None

    def fill(self, text: str) -> str:
        """Returns a command with this port and this directory in it."""
        return filled(text, {"port": str(self.port), "dir": str(self.folder)})


@contextmanager
def with_port_and_dir(program: Program) -> Iterator[Program]:
    """Gives a server its own for as long as the block lasts; other programs stay as they are.

    Raises:
        HztuneError: There is no free port, or no directory can be made.
    """
    asked = placeholders(*program.texts()) if program.service else set()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(scratch_folder()) if "dir" in asked else None
        yield _with(program, PortAndDir(_free_port() if "port" in asked else 0, folder))


def _with(program: Program, own: PortAndDir) -> Program:
    """Returns a server with its port and directory."""
    if program.service is None:
        return program
    return replace(
        program,
        argv=tuple(own.fill(word) for word in program.argv),
        prepare=own.fill(program.prepare),
        cleanup=own.fill(program.cleanup),
        service=replace(
            program.service,
            load=own.fill(program.service.load),
            ready=own.fill(program.service.ready),
            port=program.service.port or own.port,
        ),
    )


# ---- ports ---------------------------------------------------------------------------------------


def _free_port() -> int:
    """Returns a port on which nothing listens and which no outgoing connection gets by chance.

    It is drawn at random: two processes that look at the same moment hardly find the same one.
    """
    for _ in range(_TRIES):
        port = _PORTS.randrange(_FIRST_PORT, _end_of_ports())
        if _is_free(port):
            return port
    raise HztuneError(
        f"{_TRIES} ports from {_FIRST_PORT} to {_end_of_ports() - 1} were tried for {{port}}, and "
        "each is in use; end what holds them"
    )


def _end_of_ports() -> int:
    """Returns where the kernel's own choices begin, or the end of all ports where they are many."""
    with contextlib.suppress(OSError, ValueError):
        first = int(_EPHEMERAL.read_text().split()[0])
        if first >= _FIRST_PORT + _LEAST_PORTS:
            return first
    return _LAST_PORT + 1


def _is_free(port: int) -> bool:
    """Whether a server could take a port, whichever address it binds."""
    for family, address in ((socket.AF_INET, ""), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((address, port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False  # any other error: that family is not there
    return True
