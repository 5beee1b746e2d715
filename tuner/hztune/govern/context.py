"""What the load of a process is, in one word: settings are compared within it."""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Callable
from operator import truediv

from hztune.errors import HztuneError, UsageError
from hztune.govern.observe import Observation

Context = Callable[[Observation], str]
"""Called at each look; its answer should not depend on the setting."""

LASTED_S = 1.0  # a fall of the load is told when it has lasted so long

_FORGOTTEN_S = 1800.0  # the peak of the load halves in that time
_IDLE, _BURST = 0.1, 0.6  # shares of the peak
_SLACK = 1.25  # by so much it must pass a border to be told otherwise
_NOTHING = 0.02  # CPUs: less is rest, and no peak


class ByLoad:
    """idle, steady or burst: by CPU time and by work where it is counted, beside their own peaks.

    The greater share tells: a setting that costs CPU time takes more of it, or has less work done.
    A rise is told at once, a fall when it has lasted: a load that falls to rest was never steady.
    """

    def __init__(self) -> None:
        self._before: Observation | None = None
        self._recent = deque[tuple[float, float, float]]()  # seconds, CPU time and work
        self._peaks = [0.0, 0.0]
        self._told = "steady"

    def __call__(self, sight: Observation) -> str:
        before, self._before = self._before, sight
        if before is None or sight.at_s <= before.at_s:
            return self._told
        passed_s = sight.at_s - before.at_s
        worked = (sight.work or 0.0) - (before.work or 0.0)
        self._recent.append((passed_s, sight.cpu_s - before.cpu_s, worked))
        while len(self._recent) > 1 and sum(each[0] for each in self._recent) > LASTED_S:
            self._recent.popleft()
        seconds, *amounts = zip(*self._recent, strict=True)
        shares = []
        for at, done in enumerate(amounts if sight.work is not None else amounts[:1]):
            mean = sum(done) / sum(seconds)
            forgotten = self._peaks[at] * 0.5 ** (passed_s / _FORGOTTEN_S)
            self._peaks[at] = max(mean, forgotten, _NOTHING)
            shares.append(max(map(truediv, done, seconds)) / self._peaks[at])
        idle = _IDLE * (_SLACK if self._told == "idle" else 1.0 / _SLACK)
        burst = _BURST * (1.0 / _SLACK if self._told == "burst" else _SLACK)
        is_idle = max(shares) < idle or sum(amounts[0]) / sum(seconds) < _NOTHING
        self._told = "idle" if is_idle else "burst" if max(shares) > burst else "steady"
        return self._told


def named(name: str) -> Context:
    """A policy's context: "load", or "module:Class", called without arguments; else UsageError."""
    if name == "load":
        return ByLoad()
    module, colon, own = name.partition(":")
    try:
        made = getattr(importlib.import_module(module), own)()
    except Exception as error:  # it is the user's code
        why = f"{type(error).__name__}: {error}" if colon else "it has no colon"
        raise UsageError(
            f"context {name!r} cannot be used ({why}); legal is load, or module:Class of your own"
        ) from None

    def told(sight: Observation) -> str:
        try:
            return str(made(sight))
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            raise HztuneError(f"context {name!r} has failed ({why})") from None

    return told
