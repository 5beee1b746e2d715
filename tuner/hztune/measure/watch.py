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
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import Event, Thread

from hztune import artifacts
from hztune.allocator import live
from hztune.allocator.live import Running
from hztune.errors import HztuneError, UsageError
from hztune.files import text_or_empty
from hztune.measure.identity import Fault
from hztune.rests import Rested, RestPlan, RestRound

Look = Callable[[Running], "Fault | None"]  # judges a process; None: nothing is wrong with it

_FIRST_S = 0.003
_GROWTH = 1.3
_LAST_S = 0.25
_MOST_TRIES = 8  # a process without malloc yet is looked at again; it may be static

_HOLDINGS_S = 0.002
_LISTENS = "0A"
_SOCKET = re.compile(r"socket:\[(\d+)\]")
_FLAGS = re.compile(r"^flags:\s*(\d+)", re.MULTILINE)

_FIGURES = re.compile(r"^(Pss_Anon|Pss_Shmem|LazyFree): +(\d+) kB$", re.M)
_PAUSE_S = 0.02
_MOST_POINTS = 240
_COST_SHARE = 0.01  # most of the time that may go into reading: it walks all pages of a process

_READINGS = 5
_READ_FOR = 0.2  # share of a rest, at its end, over which the readings are spread

_READ_FOR_S = 0.25  # most seconds of it


@contextmanager
def alongside(follow: Callable[[Event], object], name: str) -> Iterator[None]:
    ended = Event()
    thread = Thread(target=follow, args=(ended,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def visiting(
    root: int, visit: Callable[[int], object], first_s: float, growth: float, last_s: float
) -> AbstractContextManager[None]:
    """Visits each process below `root`, ever more seldom, for as long as the block lasts."""

    def follow(ended: Event) -> None:
        pause = first_s
        while not ended.wait(pause):
            pause = min(last_s, pause * growth)
            for pid in live.descendants(root):
                with contextlib.suppress(OSError, UsageError):
                    visit(pid)

    return alongside(follow, "visits")


class Watcher:
    def __init__(self, look: Look, helpers: Collection[Path] = ()) -> None:
        """Takes what judges each process but those of hztune's own `helpers` in the tree."""
        self._look, self._helpers = look, {*helpers}
        self.fault: Fault | None = None  # the first that two looks at a process agreed on
        self.library = ""  # what provides malloc in the process that was last found right
        # By process and auxiliary vector, which holds addresses of an image: one between two execs.
        self._done: set[tuple[int, bytes]] = set()
        self._suspects: dict[tuple[int, bytes], Fault] = {}
        self._tries: Counter[tuple[int, bytes]] = Counter()

    def visit(self, pid: int) -> None:
        """Looks at a process not judged since its last exec; amid one it shows parts of two."""
        image = pid, Path("/proc", str(pid), "auxv").read_bytes()
        is_helper = Path("/proc", str(pid), "exe").readlink() in self._helpers
        if self.fault or image in self._done or is_helper:
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
    with visiting(root, watcher.visit, _FIRST_S, _GROWTH, _LAST_S):
        yield watcher


# ---- files and ports -----------------------------------------------------------------------------


Held = tuple[str, str]
"""What it is, in words; and of a port the network that it belongs to: each has all ports."""


class Holdings:
    """What the copies of a program hold, looked at all the time.

    Two copies that write the same file spoil each other's work, and one that waits for the other's
    lock waits as long as that one stands still.
    """

    def __init__(self) -> None:
        self._of: dict[int, set[Held]] = {}

    def shared(self) -> list[str]:
        count = Counter(one for held in self._of.values() for one in held)
        return sorted({what for (what, _), copies in count.items() if copies > 1})

    def watching(self, copy: int, root: int) -> AbstractContextManager[None]:
        held = self._of.setdefault(copy, set())
        return visiting(root, lambda pid: held.update(_held(pid)), _HOLDINGS_S, 1.0, _HOLDINGS_S)


def ports_of(pid: int) -> set[str]:
    """The TCP ports on which a process listens ("the port 6379"), as far as it may be looked at."""
    return {what for what, network in _held(pid) if network}


def port_in_words(port: int) -> str:
    return f"the port {port}"


def _held(pid: int) -> Iterator[Held]:
    folder, sockets = Path("/proc", str(pid), "fd"), set()
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                target = os.readlink(folder / name)
                if found := _SOCKET.fullmatch(target):
                    sockets.add(found[1])
                elif _is_written(folder / name):
                    yield f"the file {target}", ""
    for table in ("tcp", "tcp6") if sockets else ():
        with contextlib.suppress(OSError):
            network = os.readlink(f"/proc/{pid}/ns/net")
            lines = Path("/proc", str(pid), "net", table).read_text(encoding="ascii").splitlines()
            for words in map(str.split, lines[1:]):
                if words[3] == _LISTENS and words[9] in sockets:
                    yield port_in_words(int(words[1].rpartition(":")[2], 16)), network


def _is_written(fd: Path) -> bool:
    """Whether a descriptor is that of a file with a name, open for writing."""
    about = fd.stat()
    if not stat.S_ISREG(about.st_mode) or about.st_nlink == 0:
        return False
    flags = _FLAGS.search((fd.parents[1] / "fdinfo" / fd.name).read_text(encoding="ascii"))
    return flags is not None and int(flags[1], 8) & os.O_ACCMODE != os.O_RDONLY


# ---- time and memory of a tree -------------------------------------------------------------------


def tree_cpu_ns(launcher: int) -> int:
    """CPU time of the processes below hz-launch, and of those that they have reaped, to 10 ms."""
    return _tree_sum(launcher, 11, 15) * 10**9 // os.sysconf("SC_CLK_TCK")


def tree_faults(launcher: int) -> int:
    """Their page faults without a disk."""
    return _tree_sum(launcher, 7, 9)


def _tree_sum(launcher: int, first: int, end: int) -> int:
    stats = [text_or_empty(Path(f"/proc/{pid}/stat")) for pid in live.descendants(launcher)]
    fields = (told.rpartition(")")[2].split()[first:end] for told in stats)
    return sum(int(word) for words in fields for word in words)


def tree_memory(launcher: int) -> tuple[int, int]:
    """KiB that the processes below hz-launch hold, and those given back lazily (MADV_FREE).

    Without pages of mapped files: how much of those each answers for depends on every other process
    that maps the same file. Of a page that several share it is a part.
    """
    resident = lazy = 0
    for pid in live.descendants(launcher):
        told = _FIGURES.findall(text_or_empty(Path(f"/proc/{pid}/smaps_rollup")))
        found = {name: int(kb) for name, kb in told}
        resident += found.get("Pss_Anon", 0) + found.get("Pss_Shmem", 0)
        lazy += found.get("LazyFree", 0)
    return resident, lazy


class MemoryWatch:
    def __init__(self, launcher: int, plan: RestPlan) -> None:
        """Begins now; the process has just been started."""
        self._launcher, self._plan = launcher, plan
        self._began_s = time.monotonic()
        # milliseconds since the start, resident KiB, KiB of it given back lazily
        self.points: list[tuple[int, int, int]] = []
        self.rounds: list[RestRound] = []  # those that are over
        self._load_ms = 0

    @property
    def load_s(self) -> float:
        """Seconds of all loads together; at least a millisecond, to which they are known."""
        return 1e-3 * max(1, sum(each.rest_ms - each.load_ms for each in self.rounds))

    def watching(self) -> AbstractContextManager[None]:
        return alongside(self._follow, "memory")

    def load(self) -> None:
        self._load_ms = self._now_ms()

    def rest(self, ended: Callable[[float], bool]) -> bool:
        """The load has ended: lets the process rest, and reads what it keeps; False: it ended."""
        rest_ms = self._now_ms()
        read_for_s = min(_READ_FOR_S, _READ_FOR * self._plan.idle_s)
        if ended(self._plan.idle_s - read_for_s):
            return False
        seen = []
        for _ in range(_READINGS):
            if ended(read_for_s / _READINGS):
                return False
            seen.append(tree_memory(self._launcher))
        if not any(resident_kb for resident_kb, _ in seen):
            raise HztuneError(
                "the memory of the program may not be read: it runs as another user, or forbids it "
                "(PR_SET_DUMPABLE); run hztune as root"
            )
        kept = sorted((max(0, resident_kb - lazy_kb), lazy_kb) for resident_kb, lazy_kb in seen)
        times = self._load_ms, rest_ms, self._now_ms()
        self.rounds.append(RestRound(*times, *kept[_READINGS // 2]))
        self.load()
        return True

    def rested(self, speed: float = 0.0) -> Rested:
        """What was seen, after one round at least; speed 0: what the program printed tells it."""
        points = [each for each in self.points if each[0] <= self.rounds[-1].end_ms]
        return Rested(speed, tuple(points), tuple(self.rounds))

    def _follow(self, ended: Event) -> None:
        least_s = pause_s = _PAUSE_S
        while not ended.wait(pause_s):
            began_s = time.monotonic()
            held = tree_memory(self._launcher)
            if held[0]:
                self.points.append((self._now_ms(), *held))
            if len(self.points) > _MOST_POINTS:
                self.points, least_s = self.points[::2], 2.0 * least_s
            pause_s = max(least_s, (time.monotonic() - began_s) / _COST_SHARE)

    def _now_ms(self) -> int:
        return round(1e3 * (time.monotonic() - self._began_s))
