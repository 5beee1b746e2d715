"""What each copy of a server has for itself: a free port `{port}` and a scratch directory `{dir}`.

So what one leaves behind (files, connections that the kernel has not forgotten) is not there for
the next one, and two may live at once.
"""

from __future__ import annotations

import contextlib
import errno
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
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


@contextmanager
def with_port_and_dir(program: Program) -> Iterator[Program]:
    """Gives a server its own for as long as the block lasts; other programs stay as they are.

    Raises:
        HztuneError: There is no free port, or no directory can be made.
    """
    service = program.service
    if service is None:
        yield program
        return
    around = program.prepare, program.cleanup, service.load, service.ready
    asked = placeholders(*program.argv, *around)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(scratch_folder()) if "dir" in asked else None
        port = _free_port() if "port" in asked else 0
        values = {"port": str(port), "dir": str(folder)}
        prepare, cleanup, load, ready = (filled(each, values) for each in around)
        yield replace(
            program,
            argv=tuple(filled(word, values) for word in program.argv),
            prepare=prepare,
            cleanup=cleanup,
            service=replace(service, load=load, ready=ready, port=service.port or port),
        )


def _free_port() -> int:
    """Returns a port on which nothing listens and which no outgoing connection gets by chance.

    It is drawn at random: two processes that look at the same moment hardly find the same one. The
    kernel's own choices are left out, but where they are nearly all.
    """
    end = _LAST_PORT + 1
    with contextlib.suppress(OSError, ValueError):
        first = int(_EPHEMERAL.read_text().split()[0])
        end = first if first >= _FIRST_PORT + _LEAST_PORTS else end
    for _ in range(_TRIES):
        port = _PORTS.randrange(_FIRST_PORT, end)
        if _is_free(port):
            return port
    raise HztuneError(
        f"{_TRIES} ports from {_FIRST_PORT} to {end - 1} were tried for {{port}}, and each is in "
        "use; end what holds them"
    )


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
