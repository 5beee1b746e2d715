"""How much of what an allocator holds the program has, where the allocator can tell.

It is asked when everything has been measured, in one more run of each arm, so that it costs the
measurement nothing. In that run the process takes requests, as for `hztune doctor --pid`: the agent
is preloaded behind its allocator, and hz answers by itself. It is asked again and again as long as
it lives.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event

from msgspec import structs

from hztune import artifacts
from hztune.allocator.live import Running
from hztune.attach.outside import Process
from hztune.attach.questions import statistics_of
from hztune.blocks import Arm
from hztune.errors import HztuneError
from hztune.measure.identity import Fault, IdentityCheck
from hztune.measure.program import Program
from hztune.measure.watch import alongside
from hztune.measure.whole import RunExecutor

_PAUSE_S = 0.01
_ASKED_SHARE = 0.2
"""Most of the time that goes into asking: the kernel walks all pages of a process for it."""

_SLOWEST = 10.0
"""A run that takes so many times as long as there was time for it is ended: it hangs."""

_SERVES = "hz-control"
"""The name of the thread that answers, in hz and in the agent; a fork's child has none."""

_INSIDE = "inside:"
_KIB = 1024

_SILENT = (
    "no process of it took requests: it is static, was started without LD_PRELOAD, or was over at "
    "once"
)

_OVER = "it was over before it could be asked"


@dataclass(frozen=True, slots=True)
class LiveReading:
    """One answer."""

    held_kb: int  # what the allocator has of the system's memory, KiB
    # What of it the program has, KiB; None: the allocator does not count that
    live_kb: int | None = None

    @property
    def ratio(self) -> float | None:
        """What is held for each byte that the program has; None: it is not known."""
        return self.held_kb / self.live_kb if self.live_kb else None

    @property
    def words(self) -> str:
        """In words: "21.9 MiB held for 13.5 MiB live (1.62x)"."""
        held = f"{self.held_kb / _KIB:.1f} MiB held"
        if self.live_kb is None:
            return held
        ratio = f" ({self.ratio:.2f}x)" if self.ratio is not None else ""
        return f"{held} for {self.live_kb / _KIB:.1f} MiB live{ratio}"


@dataclass(frozen=True, slots=True)
class LiveShare:
    """What one arm's allocator answered: of several processes, the one that holds most."""

    allocator: str = ""  # which allocator that is; "": none answered
    most: LiveReading | None = None  # when it held most; None: it is not known
    # when it was asked for the last time; of a server, after its load
    last: LiveReading | None = None
    why: str = ""  # why something is not known, in a sentence; "": all is

    @property
    def words(self) -> str:
        """In words; what is not known is said with its reason."""
        why = [f"not known: {self.why}"] if self.why else []
        if self.most is None or self.last is None:
            return "; ".join(why)
        if self.most.words == self.last.words:
            return "; ".join([f"at most {self.most.words}, the same at the last reading", *why])
        told = [f"at most {self.most.words}", f"{self.last.words} at the last reading"]
        return "; ".join([*told, *why])


def common_silence(shares: Sequence[LiveShare]) -> str:
    """Why no arm has answered, where the reason is one; "": one has, or the reasons differ."""
    reasons = {share.why for share in shares}
    is_one = len(reasons) == 1 and all(share.most is None for share in shares)
    return reasons.pop() if is_one else ""


def live_shares(
    program: Program,
    arms: Sequence[Arm],
    identity: IdentityCheck,
    *,
    seed: int,
    seconds: float,
    usual_s: float = 0.0,
) -> tuple[LiveShare, ...]:
    """Runs each arm once more, and asks it.

    Args:
        program: What runs; the load of a server is told to end in time.
        arms: In the order of the answers.
        identity: Prepares their processes.
        seed: Of the requests.
        seconds: For all of them.
        usual_s: What a run takes; where that is more than there is time for, nothing is run.
    """
    each_s = seconds / max(1, len(arms))
    rest_s = program.rest.idle_s * program.rest.rounds if program.rest else 0.0
    if program.service is None and usual_s + rest_s > each_s:
        why = f"one more run takes {usual_s + rest_s:.3g} s, and there were {each_s:.3g} s for it"
        return (LiveShare(why=why),) * len(arms)
    timeout_s = min(program.timeout_s, _SLOWEST * (each_s + 1.0))
    program = replace(program, by="", timeout_s=timeout_s)
    if program.service is not None:
        span_s = min(each_s, program.span_s or each_s)
        rest = program.rest and structs.replace(program.rest, rounds=1)
        program = replace(program, span_s=span_s, rest=rest)
    return tuple(_asked(program, arm, identity, seed) for arm in arms)


def _asked(program: Program, arm: Arm, identity: IdentityCheck, seed: int) -> LiveShare:
    """What one arm answers; how its run ends does not matter."""
    asker = _Asker(arm, identity)
    executor = RunExecutor(program, seed=seed, identity=asker, warmups=0)
    try:
        with alongside(asker.follow, "asker"):
            block = executor.measure([arm], role="explore", rounds=1, number=0)
    except HztuneError as error:
        return replace(asker.share(), why=str(error))
    return asker.share(block.control.detail)


class _Asker:
    """Lets the processes of an arm take requests, asks them, and keeps what they answer.

    As a check of identity it finds nothing wrong: the measured runs were judged.
    """

    def __init__(self, arm: Arm, others: IdentityCheck) -> None:
        self._arm, self._others, self.base = arm, others, others.base
        self._pids: dict[int, None] = {}
        self._most: dict[int, tuple[str, LiveReading]] = {}
        self._last: dict[int, LiveReading] = {}
        self._why = ""
        self._was_found = False

    def prepare(self, arm: Arm) -> dict[str, str] | Fault:
        given = self._others.prepare(arm)
        if isinstance(given, Fault):
            return given
        before = given.get("LD_PRELOAD") or self.base.get("LD_PRELOAD", "")
        preload = ":".join([*([before] if before else []), str(artifacts.agent())])
        return {**given, "LD_PRELOAD": preload, "HZ_CONTROL": "1"}

    def program(self, arm: Arm) -> Path | None:
        return self._others.program(arm)

    def inspect(self, arm: Arm, running: Running) -> Fault | None:
        self._pids.setdefault(running.pid)
        return None

    def judge(self, arm: Arm, library: str, stderr: str) -> Fault | None:
        return None

    def share(self, failure: str = "") -> LiveShare:
        """Returns what was answered; `failure` tells how the run failed."""
        if not self._most:
            return LiveShare(why=self._why or failure or (_OVER if self._was_found else _SILENT))
        pid = max(self._most, key=lambda each: self._most[each][1].held_kb)
        name, most = self._most[pid]
        why = f"{name} does not count live bytes" if most.live_kb is None else ""
        return LiveShare(name, most, self._last[pid], why)

    def follow(self, ended: Event) -> None:
        pause_s = _PAUSE_S
        while not ended.wait(pause_s):
            began_s = time.monotonic()
            for pid in [*self._pids]:
                with contextlib.suppress(OSError):
                    if _serves(pid):
                        self._ask(pid)
            pause_s = max(_PAUSE_S, (time.monotonic() - began_s) / _ASKED_SHARE)

    def _ask(self, pid: int) -> None:
        self._was_found, process = True, None
        try:
            process = Process.of(pid)
            found = statistics_of(process)
        except HztuneError as error:
            if process is not None and process.exists():
                self._why = str(error)
            return
        # Meant is the allocator inside the program, or that of malloc.
        name = self._arm.allocator
        parts = [
            part
            for part in found.parts
            if not name.startswith(_INSIDE) or name.endswith(part.allocator)
        ]
        if not parts or (held := parts[0].held_bytes) is None:
            self._why = "its allocator is none that tells what it holds"
            return
        live = parts[0].live_bytes
        reading = LiveReading(held // _KIB, None if live is None else live // _KIB)
        self._last[pid] = reading
        if pid not in self._most or _fullness(reading) > _fullness(self._most[pid][1]):
            self._most[pid] = parts[0].allocator, reading


def _fullness(reading: LiveReading) -> tuple[int, int]:
    """What readings are ordered by: as much may be held when little is live as when much is."""
    return reading.held_kb, reading.live_kb or 0


def _serves(pid: int) -> bool:
    tasks = Path("/proc", str(pid), "task").iterdir()
    return any((task / "comm").read_text(errors="replace").strip() == _SERVES for task in tasks)
