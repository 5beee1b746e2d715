"""What a process tree holds that another copy of it cannot hold as well: files, ports.

Two copies that write the same file spoil each other's work, and one that waits for the other's lock
waits as long as that one stands still. So a copy is looked at again and again while it lives.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

from hztune.allocator import live
from hztune.measure.alongside import alongside

_PAUSE_S = 0.002
_LISTENS = "0A"
_SOCKET = re.compile(r"socket:\[(\d+)\]")
_FLAGS = re.compile(r"^flags:\s*(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Held:
    """Something that is held.

    Attributes:
        what: In words.
        network: Of a port, the network that it belongs to: each has all ports.
    """

    what: str
    network: str = ""


@dataclass
class Holdings:
    """What the copies of a program hold.

    Attributes:
        of: By copy.
    """

    of: dict[int, set[Held]] = field(default_factory=dict)

    def shared(self) -> list[str]:
        """Returns what more than one copy holds, in words."""
        each = list(self.of.values())
        twice = (held & other for index, held in enumerate(each) for other in each[:index])
        return sorted({both.what for common in twice for both in common})

    def watching(self, copy: int, root: int) -> AbstractContextManager[None]:
        """Looks at the tree below a process for as long as the block lasts."""
        held = self.of.setdefault(copy, set())

        def follow(ended: Event) -> None:
            while not ended.wait(_PAUSE_S):
                for pid in live.descendants(root):
                    held.update(_held(pid))

        return alongside(follow, "holdings")


def _held(pid: int) -> Iterator[Held]:
    """Yields what a process holds, as far as it may be looked at."""
    folder = Path("/proc", str(pid), "fd")
    sockets = []
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                target = os.readlink(folder / name)
                if found := _SOCKET.fullmatch(target):
                    sockets.append(found[1])
                elif _is_written(folder / name):
                    yield Held(f"the file {target}")
    if sockets:
        listening = dict(_listening(pid))
        yield from (listening[inode] for inode in sockets if inode in listening)


def _is_written(fd: Path) -> bool:
    """Whether a descriptor is that of a file with a name, open for writing."""
    about = fd.stat()
    if not stat.S_ISREG(about.st_mode) or about.st_nlink == 0:
        return False
    told = (fd.parents[1] / "fdinfo" / fd.name).read_text(encoding="ascii")
    flags = _FLAGS.search(told)
    return flags is not None and int(flags[1], 8) & os.O_ACCMODE != os.O_RDONLY


def ports_of(pid: int) -> set[str]:
    """The TCP ports on which a process listens ("the port 6379"), as far as it may be looked at."""
    return {held.what for held in _held(pid) if held.network}


def port_in_words(port: int) -> str:
    """How a port is called here."""
    return f"the port {port}"


def _listening(pid: int) -> Iterator[tuple[str, Held]]:
    """Yields the inode of each listening TCP socket in a process's network, and what it holds."""
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            network = os.readlink(f"/proc/{pid}/ns/net")
            lines = Path("/proc", str(pid), "net", name).read_text(encoding="ascii").splitlines()
            for words in map(str.split, lines[1:]):
                if words[3] == _LISTENS:
                    port = int(words[1].rpartition(":")[2], 16)
                    yield words[9], Held(port_in_words(port), network)
