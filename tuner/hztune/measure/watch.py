"""Looking at the processes of a run while it runs, from a thread that sleeps most of the time.

What a process was started with, which library provides its malloc, and what it holds can only be
seen while it lives. Every run is looked at, the control's too, so that looking costs all arms the
same.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import NamedTuple

from hztune import artifacts
from hztune.allocator import live
from hztune.allocator.live import Running
from hztune.errors import UsageError
from hztune.measure.identity import Fault

Look = Callable[[Running], "Fault | None"]
"""Judges a process; None: nothing is wrong with it."""

_FIRST_S = 0.003
_GROWTH = 1.3
_LAST_S = 0.25
_MOST_TRIES = 8
"""A process that shows no malloc yet is looked at again, but not for ever: it may be static."""

_HOLDINGS_S = 0.002
_LISTENS = "0A"
_SOCKET = re.compile(r"socket:\[(\d+)\]")
_FLAGS = re.compile(r"^flags:\s*(\d+)", re.MULTILINE)


@contextmanager
def alongside(follow: Callable[[Event], object], name: str) -> Iterator[None]:
    """Runs a function in a thread until the event is set, when the block has ended."""
    ended = Event()
    thread = Thread(target=follow, args=(ended,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class Watcher:
    """What was seen of one run.

    Attributes:
        fault: The first fault that two looks at the same process agreed on.
        library: The file that provides malloc in the process that was last found right; "": none.
    """

    def __init__(self, look: Look, helpers: Collection[Path] = ()) -> None:
        """Takes what judges each process but those of hztune's own `helpers` in the tree."""
        self._look, self._helpers = look, {*helpers}
        self.fault: Fault | None = None
        self.library = ""
        # By process and auxiliary vector, which holds addresses of an image: one between two execs.
        self._done: set[tuple[int, bytes]] = set()
        self._suspects: dict[tuple[int, bytes], Fault] = {}
        self._tries: Counter[tuple[int, bytes]] = Counter()

    def follow(self, root: int, ended: Event) -> None:
        """Looks at the tree below `root` until the run has ended or something is wrong."""
        pause = _FIRST_S
        while self.fault is None and not ended.wait(pause):
            pause = min(_LAST_S, pause * _GROWTH)
            for pid in live.descendants(root):
                with contextlib.suppress(OSError, UsageError):
                    self._visit(pid)

    def _visit(self, pid: int) -> None:
        """Looks at a process not judged since its last exec; amid one it shows parts of two."""
        image = pid, Path("/proc", str(pid), "auxv").read_bytes()
        if image in self._done or Path("/proc", str(pid), "exe").readlink() in self._helpers:
            return
        self._tries[image] += 1
        if self._tries[image] > _MOST_TRIES:
            self._done.add(image)
        running = live.look(pid)
        found = self._look(running)
        if found is None:
            self._done.add(image)
            self.library = str(running.provider)
        elif self._suspects.get(image) == found:
            self.fault = found
        else:
            self._suspects[image] = found


@contextmanager
def watching(root: int, look: Look, helpers: Collection[Path]) -> Iterator[Watcher]:
    """Looks at what `root`, a hz-launch or one of `helpers`, starts, as long as the block lasts."""
    watcher = Watcher(look, [artifacts.launch().resolve(), *helpers])
    with alongside(partial(watcher.follow, root), "watcher"):
        yield watcher


# ---- files and ports -----------------------------------------------------------------------------


class Held(NamedTuple):
    """Something that another copy of a program cannot hold as well."""

    what: str  # in words
    network: str = ""  # of a port, the network that it belongs to: each has all ports


class Holdings:
    """What the copies of a program hold.

    Two copies that write the same file spoil each other's work, and one that waits for the other's
    lock waits as long as that one stands still. So a copy is looked at all the time.
    """

    def __init__(self) -> None:
        self._of: dict[int, set[Held]] = {}

    def shared(self) -> list[str]:
        """Returns what more than one copy holds, in words."""
        count = Counter(one for held in self._of.values() for one in held)
        return sorted({one.what for one, copies in count.items() if copies > 1})

    def watching(self, copy: int, root: int) -> AbstractContextManager[None]:
        """Looks at the tree below a process for as long as the block lasts."""
        held = self._of.setdefault(copy, set())

        def follow(ended: Event) -> None:
            while not ended.wait(_HOLDINGS_S):
                for pid in live.descendants(root):
                    held.update(_held(pid))

        return alongside(follow, "holdings")


def ports_of(pid: int) -> set[str]:
    """The TCP ports on which a process listens ("the port 6379"), as far as it may be looked at."""
    return {held.what for held in _held(pid) if held.network}


def port_in_words(port: int) -> str:
    """How a port is called here."""
    return f"the port {port}"


def _held(pid: int) -> Iterator[Held]:
    """Yields what a process holds, as far as it may be looked at."""
    folder = Path("/proc", str(pid), "fd")
    sockets = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                target = os.readlink(folder / name)
                if found := _SOCKET.fullmatch(target):
                    sockets.add(found[1])
                elif _is_written(folder / name):
                    yield Held(f"the file {target}")
    for table in ("tcp", "tcp6") if sockets else ():
        with contextlib.suppress(OSError):
            network = os.readlink(f"/proc/{pid}/ns/net")
            lines = Path("/proc", str(pid), "net", table).read_text(encoding="ascii").splitlines()
            for words in map(str.split, lines[1:]):
                if words[3] == _LISTENS and words[9] in sockets:
                    yield Held(port_in_words(int(words[1].rpartition(":")[2], 16)), network)


def _is_written(fd: Path) -> bool:
    """Whether a descriptor is that of a file with a name, open for writing."""
    about = fd.stat()
    if not stat.S_ISREG(about.st_mode) or about.st_nlink == 0:
        return False
    told = (fd.parents[1] / "fdinfo" / fd.name).read_text(encoding="ascii")
    flags = _FLAGS.search(told)
    return flags is not None and int(flags[1], 8) & os.O_ACCMODE != os.O_RDONLY
