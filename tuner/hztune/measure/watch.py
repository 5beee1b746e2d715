"""Looking at the processes of a run while it runs, from a thread that sleeps most of the time.

What a process was started with, and which library provides its malloc, can only be seen while it
lives. Every run is looked at, the control's too, so that looking costs all arms the same.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event
from typing import NamedTuple

from hztune.allocator import live
from hztune.allocator.live import Running
from hztune.errors import UsageError
from hztune.measure.alongside import alongside
from hztune.measure.identity import Fault

Look = Callable[[Running], "Fault | None"]
"""Judges a process; None: nothing is wrong with it."""

_FIRST_S = 0.003
_GROWTH = 1.3
_LAST_S = 0.25
_MOST_TRIES = 8
"""A process that shows no malloc yet is looked at again, but not for ever: it may be static."""


class _Image(NamedTuple):
    """A process between two calls of exec: its auxiliary vector holds addresses of that image."""

    pid: int
    auxv: bytes


@dataclass
class Watcher:
    """What was seen of one run.

    Attributes:
        look: Judges each process.
        helpers: Programs of hztune's own in the tree; they are not judged.
        fault: The first fault that two looks at the same process agreed on.
        library: The file that provides malloc in the process that was last found right; "" as long
            as none was.
    """

    look: Look
    helpers: Collection[Path]
    fault: Fault | None = None
    library: str = ""
    _done: set[_Image] = field(default_factory=set)
    _suspects: dict[_Image, Fault] = field(default_factory=dict)
    _tries: Counter[_Image] = field(default_factory=Counter)

    def follow(self, root: int, ended: Event) -> None:
        """Looks at the tree below `root` until the run has ended or something is wrong."""
        pause = _FIRST_S
        while self.fault is None and not ended.wait(pause):
            pause = min(_LAST_S, pause * _GROWTH)
            for pid in live.descendants(root):
                with contextlib.suppress(OSError, UsageError):
                    self._visit(pid)

    def _visit(self, pid: int) -> None:
        """Looks at a process that was not judged since its last exec.

        A process in the middle of an exec shows parts of two programs. So one look is no proof.
        """
        image = _Image(pid, Path("/proc", str(pid), "auxv").read_bytes())
        if image in self._done or Path("/proc", str(pid), "exe").readlink() in self.helpers:
            return
        self._tries[image] += 1
        if self._tries[image] > _MOST_TRIES:
            self._done.add(image)
        running = live.look(pid)
        found = self.look(running)
        if found is None:
            self._done.add(image)
            self.library = str(running.provider)
        elif self._suspects.get(image) == found:
            self.fault = found
        else:
            self._suspects[image] = found


@contextmanager
def watching(root: int, look: Look, helpers: Collection[Path]) -> Iterator[Watcher]:
    """Looks at what `root` starts, as long as the block lasts."""
    watcher = Watcher(look, helpers)
    with alongside(partial(watcher.follow, root), "watcher"):
        yield watcher
