"""What the load of a process is, in one word: settings are compared within it."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable

from hztune.errors import HztuneError, UsageError
from hztune.govern.observe import Observation

Context = Callable[[Observation], str]
"""Called at each look; its answer should not depend on the setting."""

_FORGOTTEN_S = 1800.0  # the peak of the load halves in that time
_IDLE, _BURST = 0.1, 0.6  # shares of the peak
_SLACK = 1.25  # by so much it must pass a border to be told otherwise
_NOTHING = 0.005  # CPUs


class ByLoad:
    """idle, steady or burst: by CPU time and by work where it is counted, beside their own peaks.

    One of both is enough for a burst, as a setting that costs CPU time takes more of it or has less
    work done, and for rest, as a process may be busy with itself.
    """

    def __init__(self) -> None:
        self._before: Observation | None = None
        self._rates, self._peaks = [0.0, 0.0], [0.0, 0.0]
        self._told = "steady"

    def __call__(self, sight: Observation) -> str:
        before, self._before = self._before, sight
        if before is None or sight.at_s <= before.at_s:
            return self._told
        passed_s = sight.at_s - before.at_s
        done = (sight.cpu_s - before.cpu_s, (sight.work or 0.0) - (before.work or 0.0))
        for at, each in enumerate(done):
            rate = each / passed_s  # a rise counts at once, a fall slowly
            fallen = self._rates[at] + (rate - self._rates[at]) * -math.expm1(-passed_s)
            self._rates[at] = max(rate, fallen)
            forgotten = self._peaks[at] * 0.5 ** (passed_s / _FORGOTTEN_S)
            self._peaks[at] = max(self._rates[at], forgotten, _NOTHING)
        both = zip(self._rates, self._peaks, strict=True)
        shares = [rate / peak for rate, peak in both][: 1 if sight.work is None else 2]
        idle = _IDLE * (_SLACK if self._told == "idle" else 1.0 / _SLACK)
        burst = _BURST * (1.0 / _SLACK if self._told == "burst" else _SLACK)
        is_idle = min(shares) < idle or self._rates[0] < _NOTHING
        self._told = "idle" if is_idle else "burst" if max(shares) > burst else "steady"
        return self._told


def named(name: str) -> Context:
    """The context function of a policy: "load", or "module:Class", which is made without arguments.

    UsageError: there is none of that name.
    """
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
