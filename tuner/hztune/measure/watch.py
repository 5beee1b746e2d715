"""Looking at the processes of a run while it runs, from a thread that sleeps most of the time.

What a process was started with, and who provides its malloc, can only be seen while it lives. Every
run is looked at, the control's too, so that looking costs all arms the same.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread

from hztune.allocator import live
from hztune.allocator.live import Running
from hztune.errors import UsageError
from hztune.measure.proof import Fault

Look = Callable[[Running], "Fault | None"]
"""Judges a process; None: nothing is wrong with it."""

_FIRST_S = 0.003
_GROWTH = 1.3
_LAST_S = 0.25
_MOST_TRIES = 8
"""A process that shows no malloc yet is looked at again, but not for ever: it may be static."""


@dataclass
class Watcher:
    """What was seen of one run.

    Attributes:
        look: Judges each process.
        helpers: Programs of hztune's own in the tree; they are not judged.
        fault: The first fault that two looks at the same process agreed on.
    """

    look: Look
    helpers: Collection[Path]
    fault: Fault | None = None
    _done: set[tuple[int, Path]] = field(default_factory=set)
    _suspects: dict[int, Fault] = field(default_factory=dict)
    _tries: Counter[int] = field(default_factory=Counter)

    def follow(self, root: int, ended: Event) -> None:
        """Looks at the tree below `root` until the run has ended or something is wrong."""
        pause = _FIRST_S
        while self.fault is None and not ended.wait(pause):
            pause = min(_LAST_S, pause * _GROWTH)
            for pid in live.descendants(root):
                with contextlib.suppress(OSError, UsageError):
                    self._visit(pid)

    def _visit(self, pid: int) -> None:
        """Looks at a process that was not judged yet.

        A process in the middle of an exec shows parts of two programs. So one look is no proof.
        """
        program = Path("/proc", str(pid), "exe").readlink()
        if program in self.helpers or (pid, program) in self._done:
            return
        self._tries[pid] += 1
        if self._tries[pid] > _MOST_TRIES:
            self._done.add((pid, program))
        found = self.look(live.look(pid))
        if found is None:
            self._done.add((pid, program))
        elif self._suspects.get(pid) == found:
            self.fault = found
        else:
            self._suspects[pid] = found


@contextmanager
def watching(root: int, look: Look, helpers: Collection[Path]) -> Iterator[Watcher]:
    """Looks at what `root` starts, as long as the block lasts."""
    watcher = Watcher(look, helpers)
    ended = Event()
    thread = Thread(target=watcher.follow, args=(root, ended), name="watcher", daemon=True)
    thread.start()
    try:
        yield watcher
    finally:
        ended.set()
        thread.join()
