"""Signals: the first one ends what is done in good order, the second one at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, current_thread, main_thread
from types import FrameType

from hztune.errors import StoppedByUser

_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_BY_SIGNAL = 128  # a shell adds it to the number of the signal that ended a process


def end_in_order() -> None:
    """Makes the first SIGTERM or SIGHUP a KeyboardInterrupt, as SIGINT is one already.

    Else temporary folders and control groups would be left. What the caller ignores stays ignored.
    A second signal ends the process at once, except SIGHUP: a closing terminal may send it twice.
    """
    ends = [
        one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) == signal.SIG_DFL
    ]

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for one in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(one) != signal.SIG_IGN:
                signal.signal(one, signal.SIG_DFL)
        raise KeyboardInterrupt

    for one in ends:
        signal.signal(one, interrupt)


def work_in_child_of_first() -> None:
    """Returns in a child, if this is the first process of a container; else at once.

    The first process itself waits for whatever ends there, as orphans would stay zombies, hands on
    signals, and ends as the child does.
    """
    if os.getpid() != 1 or not (child := os.fork()):
        return
    for one in _ENDS:
        is_for_both = one in (signal.SIGINT, signal.SIGQUIT) and os.isatty(0)  # the terminal's keys
        signal.signal(
            one, signal.SIG_IGN if is_for_both else lambda number, _: os.kill(child, number)
        )
    while (ended := os.wait())[0] != child:
        pass
    code = os.waitstatus_to_exitcode(ended[1])
    os._exit(code if code >= 0 else _BY_SIGNAL - code)


@contextmanager
def interruptible() -> Iterator[Event]:
    """Makes the first signal that asks for the end a KeyboardInterrupt, and the second one the end.

    A second SIGHUP is ignored, see `end_in_order`. What the caller ignores stays ignored.
    Where Python swallows exceptions (in a `__del__`, for one) the KeyboardInterrupt is lost: look
    at the event that is yielded before each new measurement. It is set from the first signal on.
    Signals are the main thread's: in another one the event is never set.
    """
    asked = Event()
    if current_thread() is not main_thread():
        yield asked
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        asked.set()
        for one in before:
            signal.signal(one, signal.SIG_IGN if one == signal.SIGHUP else leave)
        raise KeyboardInterrupt

    def leave(number: int, frame: FrameType | None) -> None:
        os._exit(StoppedByUser.exit_status)

    ends = [one for one in _ENDS if signal.getsignal(one) != signal.SIG_IGN]
    before = {one: signal.signal(one, interrupt) for one in ends}
    try:
        yield asked
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
