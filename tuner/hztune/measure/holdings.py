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
_PORT = "the port "
_SOCKET = re.compile(r"socket:\[(\d+)\]")
_FLAGS = re.compile(r"^flags:\s*(\d+)", re.MULTILINE)


@dataclass
class Holdings:
    """What the copies of a program hold.

    Attributes:
        has_networks: Whether each copy has a network, and so all ports, of its own.
        of: By copy, in words.
    """

    has_networks: bool = False
    of: dict[int, set[str]] = field(default_factory=dict)

    def shared(self) -> list[str]:
        """Returns what more than one copy holds."""
        each = list(self.of.values())
        twice = {
            what
            for index, held in enumerate(each)
            for other in each[:index]
            for what in held & other
            if not (self.has_networks and what.startswith(_PORT))
        }
        return sorted(twice)

    def watching(self, copy: int, root: int) -> AbstractContextManager[None]:
        """Looks at the tree below a process for as long as the block lasts."""
        held = self.of.setdefault(copy, set())

        def follow(ended: Event) -> None:
            while not ended.wait(_PAUSE_S):
                for pid in live.descendants(root):
                    held.update(_held(pid))

        return alongside(follow, "holdings")


def _held(pid: int) -> Iterator[str]:
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
                    yield f"the file {target}"
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
    return {what for what in _held(pid) if what.startswith(_PORT)}


def port_in_words(port: int) -> str:
    """How a port is called here."""
    return f"{_PORT}{port}"


def _listening(pid: int) -> Iterator[tuple[str, str]]:
    """Yields the inode of each listening TCP socket in a process's network, and what it holds."""
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            lines = Path("/proc", str(pid), "net", name).read_text(encoding="ascii").splitlines()
            for words in map(str.split, lines[1:]):
                if words[3] == _LISTENS:
                    yield words[9], port_in_words(int(words[1].rpartition(":")[2], 16))
