"""How a process ended, in words: its status or signal, and the last line that it wrote itself."""

from __future__ import annotations

import re

from hztune.allocator.tables import tables
from hztune.blocks import Status
from hztune.measure.identity import Fault
from hztune.process import last_words, signal_name


def ending_fault(status: Status, signal: int, code: int, stderr: str) -> Fault:
    """Returns why a process that ended badly does not count: "exit status 1: cannot open a.conf".

    One whose allocator refused its settings, and said so, did not crash.

    Args:
        status: How it ended, as what started it tells.
        signal: What ended it; 0: it ended by itself.
        code: Its exit status, if it ended by itself.
        stderr: What it wrote there.
    """
    stderr = _without_chatter(stderr)
    for name, table in tables().items() if status == "crash" else ():
        if table.refusal and (said := re.search(table.refusal, stderr, re.M)):
            return Fault("rejected", f"{name} refuses it: {said['why']}")
    end = f"ended by {signal_name(signal)}" if signal else f"exit status {code}"
    return Fault(status, with_last_line(end, stderr))


def with_last_line(told: str, stderr: str) -> str:
    """Returns `told` with the last line that a program wrote, if any."""
    said = last_words(_without_chatter(stderr))
    return f"{told}: {said}" if said else told


def _without_chatter(stderr: str) -> str:
    """What an allocator says of its settings is no reason for anything."""
    for table in tables().values():
        if table.chatter:
            stderr = re.sub(table.chatter, "", stderr, flags=re.M)
    return stderr
