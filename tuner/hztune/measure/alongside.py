"""A thread that looks at what runs, for as long as a block of code lasts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread


@contextmanager
def alongside(follow: Callable[[Event], object], name: str) -> Iterator[None]:
    """Runs a function in a thread of its own, and waits for its end when the block has ended.

    Args:
        follow: What the thread does until the event is set: the block has ended.
        name: Of the thread.
    """
    ended = Event()
    thread = Thread(target=follow, args=(ended,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
