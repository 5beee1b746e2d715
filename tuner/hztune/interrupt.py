"""Ctrl-C: the first one ends the measuring in good order, the second one at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from types import FrameType

from hztune.errors import StoppedByUser


@contextmanager
def interruptible() -> Iterator[Event]:
    """Makes the first SIGINT or SIGTERM a KeyboardInterrupt, and the second one the end.

    Where Python swallows exceptions (in a `__del__`, for one) the KeyboardInterrupt is lost: look
    at the event that is yielded before each new measurement. It is set from the first signal on.
    """
    asked = Event()

    def interrupt(number: int, frame: FrameType | None) -> None:
        asked.set()
        for one in (signal.SIGINT, signal.SIGTERM):
            signal.signal(one, leave)
        raise KeyboardInterrupt

    def leave(number: int, frame: FrameType | None) -> None:
        os._exit(StoppedByUser.exit_status)

    before = {one: signal.signal(one, interrupt) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
