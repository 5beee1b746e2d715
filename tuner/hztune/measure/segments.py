"""System V shared memory that a killed server leaves behind: the kernel keeps it without an owner.

PostgreSQL has such a segment, and the machine allows 4096 of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TABLE = Path("/proc/sysvipc/shm")
_NUMBER, _CREATOR, _ATTACHED, _CHANGED = 1, 4, 6, 13
_REMOVE = 0
_libc = ctypes.CDLL(None)


@contextmanager
def swept() -> Iterator[set[int]]:
    """Removes what processes leave that ended while the block lasted; they are put into the set.

    Only what they made meanwhile and nothing is attached to any more.
    """
    began_s, pids = int(time.time()), set[int]()
    yield pids
    with contextlib.suppress(OSError):
        for row in _TABLE.read_text(encoding="ascii").splitlines()[1:]:
            words = [int(word) for word in row.split()]
            is_theirs = words[_CREATOR] in pids and words[_CHANGED] >= began_s
            if is_theirs and words[_ATTACHED] == 0:
                _libc.shmctl(words[_NUMBER], _REMOVE, None)
