"""What the kernel tells of a process, whatever its allocator is."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from hztune.arguments import printable
from hztune.errors import UsageError, no_look_at
from hztune.files import variables_of

_FIGURES = re.compile(r"^(Rss|Anonymous|LazyFree|Swap|AnonHugePages): +(\d+) kB$", re.M)
_MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ .*\n((?:[A-Z][A-Za-z_]+:.*\n)*)", re.M)
_KIB = 1024


@dataclass(frozen=True, slots=True)
class SeenMemory:
    """The memory of a process as the kernel counts it, in bytes.

    Anonymous is what of the resident bytes is of no file: heaps, stacks. Lazy is what of that was
    given back, and goes when memory is short (MADV_FREE).
    """

    resident_bytes: int
    anonymous_bytes: int
    lazy_bytes: int
    swapped_bytes: int
    huge_bytes: int


@dataclass(frozen=True, slots=True)
class Process:
    """A process that was found; its name has a question mark for what cannot be printed."""

    pid: int
    name: str

    @classmethod
    def of(cls, pid: int) -> Process:
        """Finds a process."""
        status = _status(pid)
        if not status:
            raise UsageError(f"there is no process {pid}")
        if status["Tgid"] != str(pid):
            raise UsageError(f"{pid} is a thread of process {status['Tgid']}; give that number")
        return cls(pid, printable(status["Name"]))

    def state(self) -> str:
        """Its state, one letter; "": it is gone."""
        return _status(self.pid).get("State", "")[:1]

    def exists(self) -> bool:
        return self.state() not in ("", "Z", "X")

    def has_lost_main(self) -> bool:
        """Whether its main thread has ended and others run on."""
        return self.state() == "Z" and self.thread_count() > 1

    def parent(self) -> Process | None:
        """The process that started it, or adopted it; None: it does not show."""
        with contextlib.suppress(UsageError):
            return Process.of(int(_status(self.pid).get("PPid", "0")))
        return None

    def thread_count(self) -> int:
        return int(_status(self.pid).get("Threads", "0"))

    def variables(self) -> dict[str, str]:
        """The variables that it was started with; none where they may not be read."""
        with contextlib.suppress(OSError):
            texts = (each.decode(errors="replace") for each in variables_of(self.pid))
            return dict(text.split("=", 1) for text in texts if "=" in text)
        return {}

    def has_mapped(self, file: str) -> bool:
        """Whether a file of this name is in its address space; False where that may not be read."""
        with contextlib.suppress(OSError):
            maps = Path("/proc", str(self.pid), "maps").read_text("utf-8", "replace")
            return f"/{file}\n" in maps
        return False

    def memory(self) -> SeenMemory:
        """Its memory now."""
        found = dict(_FIGURES.findall(self._smaps("smaps_rollup")))
        names = ("Rss", "Anonymous", "LazyFree", "Swap", "AnonHugePages")
        return SeenMemory(*(_KIB * int(found.get(name, 0)) for name in names))

    def resident_between(self, first: int, last: int) -> int:
        """Bytes in memory of the mappings between two addresses, but for lazy ones."""
        total = 0
        for start, end, about in _MAPPING.findall(self._smaps("smaps")):
            if int(start, 16) < last and first < int(end, 16):
                found = dict(_FIGURES.findall(about))
                total += int(found.get("Rss", 0)) - int(found.get("LazyFree", 0))
        return total * _KIB

    def _smaps(self, name: str) -> str:
        try:
            return Path("/proc", str(self.pid), name).read_text("utf-8", "replace")
        except PermissionError:
            raise no_look_at(self.pid) from None
        except OSError:
            if Path("/proc", str(self.pid)).exists():
                raise UsageError(
                    f"process {self.pid} has no memory: it is a thread of the kernel, or has ended "
                    "and its parent has not asked for its exit status"
                ) from None
            raise UsageError(f"process {self.pid} has ended") from None


def _status(pid: int) -> dict[str, str]:
    """What /proc/PID/status says; nothing: there is no such process."""
    with contextlib.suppress(OSError):
        told = Path("/proc", str(pid), "status").read_text("utf-8", "replace")
        pairs = (line.partition(":") for line in told.splitlines())
        return {name: value.strip() for name, _, value in pairs}
    return {}


def is_of_another(namespace: str, ours: Path, theirs: Path) -> bool:
    """Whether two tasks are in different namespaces; False where that may not be read."""
    with contextlib.suppress(OSError):
        return os.readlink(ours / "ns" / namespace) != os.readlink(theirs / "ns" / namespace)
    return False
