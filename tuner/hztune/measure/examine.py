"""Whether turns tell the truth about a program, found by measuring it: alone, then two copies.

By turns a program is measured while it goes on, and what goes on by itself meanwhile, such as a
timer, a disk or another machine, works for it for nothing. So it must be busy with itself; and
copies of it must not meet, in a file, a lock or a port.

Of a server, what is compared. Load and server share the machine, so that what a server gains is
diluted by the load's own time: of a server that takes half of it, 10 % look like 5 %. In use, load
comes from elsewhere. So, as long as the two keep the CPUs busy, requests are counted for each
second of the server's own CPU time; nothing that the server does is missed then. Where they leave
CPUs idle, the server waits, for a lock perhaps, which costs no CPU time but time: the time of both
is compared.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from hztune import process
from hztune.blocks import Arm
from hztune.errors import HztuneError
from hztune.measure.alternate import AlternateExecutor, NumberReading, Pace
from hztune.measure.identity import Fault
from hztune.measure.launch import Run
from hztune.measure.program import Program, placeholders
from hztune.measure.server import LOAD_PATIENCE_S, LOAD_SPAN_S
from hztune.measure.turns import LONGEST_TURN_MS, THREAD_MS
from hztune.measure.watch import Holdings

TURN_MS = 10.0

_MOST_CPUS = 1.1  # CPUs that a program uses which is measured on one of them

_MOST_BESIDE = 0.05  # share of turns at whose end such a program has a second thread busy

_MOST_IDLE = 0.05  # share of its turns in which a program may wait

_SEEN_IDLE = 0.1  # the same where it was only looked at, turn by turn

_ENOUGH_TURNS = 20
_START_S = 0.0005  # of each run: what it takes to wake a program that is about to begin

_OFF = math.log(1.5)  # how far its own time by turns may be from that of a run alone, log units

_METRIC_OFF = math.log(1.25)
"""How far a number by turns may be from what is expected of it, log units."""

_SHORT_S = 0.02
_TRIAL_S = 0.3
_MOST_RUNS = 10
_CUT_S = 5.0  # a copy that takes longer has shown enough

_TRIAL_SHARE, _AGAIN_SHARE = 0.25, 0.1
"""Most of the time left for a trial of copies, and for all of it once more."""

_ONE_THREAD = 1.6
"""Busy threads up to which a server is measured on one CPU: the second did a third of the first's
work. Memcached's cleaning thread does a seventh on a quiet machine, more beside other programs."""

_LEAST_S = 0.01  # a server's CPU time below which that is not known well, seconds

_BUSY = 0.9
"""Share of the CPUs that server and load keep busy where the server's CPU time tells all."""

_MOST_SERVERS = 8
"""Copies of a server that must fit into memory: as many as a large block has arms. What is compared
by turns is not what is compared by runs, and a study must not mix them."""

_LONGER = 1.25
"""How much longer a load takes, at least, where the server stands still half of the time."""

_LESS = 0.75
"""How much less a server works, at least, in the same time if it stands still for half of it."""


@dataclass(frozen=True, slots=True)
class Finding:
    reason: str  # why turns are not to be believed, as a sentence goes on; "": they are
    pace: Pace  # how copies of it alternate
    reading: NumberReading = field(default_factory=NumberReading)  # how the speed of a run is read
    remark: str = ""  # what else the user should know; "": nothing
    # whether a machine that was slower for a moment could be the reason
    may_be_chance: bool = False
    hangs: Fault | None = None  # how it hangs by itself; None: it does not
    # what a run of it alone took, seconds; 0: it showed nothing
    run_s: float = field(default=0.0, compare=False)


def fixed_port(program: Program) -> str:
    """Why two copies of a server cannot live in one network, in words; "": they can."""
    service = program.service
    if service is None or (placeholders(*program.argv, program.prepare) and not service.port):
        return ""
    port = f"port {service.port}" if service.port else "the port that its command names"
    return (
        f"two copies of the server cannot both have {port}; write {{port}} in --server and --load "
        "in its place"
    )


class Tryout:
    def __init__(self, turns: AlternateExecutor, program: Program, control: Arm) -> None:
        self.turns, self.program, self.control = turns, program, control
        self._left, self._run_s = 0, 0.0

    def finding(self) -> Finding:
        """Judges a run alone and two copies; what may be chance must show twice, if time allows."""
        found = self._seen_once()
        if found.may_be_chance and self._has_time(_AGAIN_SHARE, self._run_s):
            found = self._seen_once()
        remark = found.remark
        if self._left:
            some = "a process that it started lives"
            each = some if self._left == 1 else f"{self._left} processes live"
            remark = (
                f"when the program ends, {each} on and what is done there is not measured; if that "
                "is its work, let it stay in the foreground"
            )
        return replace(found, remark=remark, run_s=self._run_s)

    def of_load(self, reason: str) -> Finding:
        """Finds out how the load of a server ends that is measured by runs, for that reason."""
        alone, fault = self._server_alone()
        if alone is not None and self.program.rate is None and not fixed_port(self.program):
            copies, failed = self._copies(alone)
            if failed is None:
                _refuse_fixed_time(alone, copies)
        hangs = fault if fault is not None and fault.status == "hang" else None
        return replace(self._against(reason), hangs=hangs)

    def _has_time(self, share: float, before_s: float = 0.0) -> bool:
        """Whether a trial of copies, and what is done before it, take no more of the time left."""
        is_cut = self.program.rate is None and self.program.service is None
        copies_s = 2.0 * max(_TRIAL_S, min(self._run_s, _CUT_S) if is_cut else self._run_s)
        return before_s + copies_s <= share * process.left_s()

    def _seen_once(self) -> Finding:
        turns, service = self.turns, self.program.service
        alone, fault = self._alone() if service is None else self._server_alone()
        if alone is None:
            why = fault or Fault("failed", "it showed nothing")
            hangs = why if why.status == "hang" else None
            return replace(self._against(f"it fails by itself: {why.detail}"), hangs=hangs)
        turns.control_kb = max(turns.control_kb, alone.rss_peak_kb)
        self._run_s = turns.first_s = alone.wall_s
        if service and not turns.fits(_MOST_SERVERS):
            return self._against(f"{_MOST_SERVERS} copies of it take more memory than there is")
        if not self._has_time(_TRIAL_SHARE):
            return self._against(
                f"a run takes {self._run_s:.3g} s, and --budget leaves no time to try turns"
            )
        holdings = Holdings()
        copies, failed = self._copies(alone, holdings)
        self._left = min(run.left for run in (alone, *copies))
        if failed is not None:
            return self._against(f"a second copy of it beside the first fails: {failed.detail}")
        if shared := holdings.shared():
            return self._against(f"two copies of it share {shared[0]}")
        if waiting := self._waiting(alone, copies):
            waits = "server and load wait" if service else "it waits"
            why_not = f"{waits} for something else than a CPU {waiting:.0%} of the time"
            return self._against(why_not, may_be_chance=True)
        if service is not None:
            return self._judged_server(alone, copies)
        return (self._by_time if self.program.rate is None else self._by_number)(alone, copies)

    def _against(self, reason: str, *, may_be_chance: bool = False) -> Finding:
        return Finding(reason, self.turns.pace, may_be_chance=may_be_chance)

    def _once(self) -> tuple[Run | None, Fault | None]:
        runs, fault = self.turns.try_out(self.control, 1)
        return (runs[0], None) if runs and fault is None else (None, fault)

    def _alone(self) -> tuple[Run | None, Fault | None]:
        """Runs the control alone, on all CPUs, and sets the pace by it; returns as `_once` does.

        Where only one thread is busy (`threads`), it may be another than the first.
        """
        turns, cpus = self.turns, os.sched_getaffinity(0)
        turns.pace = Pace(TURN_MS, cpu=None)
        alone, fault = self._once()
        if alone is not None:
            used = alone.cpu_ns * 1e-9 / alone.wall_s
            is_one = self.program.threads == 1 or alone.beside <= _MOST_BESIDE * alone.turns
            if used <= _MOST_CPUS and is_one:
                turns.pace = Pace(TURN_MS, cpu=max(cpus))
            else:
                crowd_ms = THREAD_MS * alone.threads / len(cpus)
                turns.pace = Pace(min(LONGEST_TURN_MS, max(TURN_MS, crowd_ms)), cpu=None)
        return alone, fault

    def _server_alone(self) -> tuple[Run | None, Fault | None]:
        """Runs the control alone, on one CPU; where its threads could use more, once more on all.

        A load that prints a number and goes on for long is told to end; if it then prints the
        number, that is how its runs end from then on. What hangs is not run again.
        """
        turns, program = self.turns, self.program
        turns.pace = Pace(TURN_MS, cpu=max(os.sched_getaffinity(0)))
        turns.tell_load(min(LOAD_PATIENCE_S, program.timeout_s / 2) if program.rate else 0.0)
        alone, fault = self._once()
        may_end_otherwise = fault is not None and fault.status != "hang"
        if program.rate and (may_end_otherwise or (alone is not None and alone.was_told)):
            turns.tell_load(LOAD_SPAN_S if alone else 0.0)
            alone, fault = self._once()
        else:
            turns.tell_load(0.0)
        if alone is not None and alone.busy_threads > _ONE_THREAD:
            turns.pace = Pace(TURN_MS, cpu=None)
            alone, fault = self._once()
        return alone, fault

    def _copies(
        self, alone: Run, holdings: Holdings | None = None
    ) -> tuple[list[Run], Fault | None]:
        """Runs two copies by turns, a short program several times and a long one not to its end."""
        if self.program.service is not None:
            return self.turns.try_out(self.control, 2, holdings=holdings)
        runs = max(1, min(_MOST_RUNS, math.ceil(_TRIAL_S / alone.wall_s)))
        is_cut = self._is_cut(alone)
        limit_s = _CUT_S if is_cut else None
        copies, fault = self.turns.try_out(
            self.control, 2, runs=runs, limit_s=limit_s, holdings=holdings
        )
        is_end_of_cut = is_cut and fault is not None and fault.status == "hang"
        return copies, None if is_end_of_cut else fault

    def _is_cut(self, alone: Run) -> bool:
        return alone.wall_s > _CUT_S and self.program.rate is None

    def _waiting(self, alone: Run, copies: Sequence[Run]) -> float:
        """The share of its own time in which it waited; 0: no more than it may.

        What looks like waiting may be time that the machine was taken away. The ends of enough
        turns tell the two apart, so a short program that seems to wait alone is run again.
        """
        pace, lonely = self.turns.pace, [alone]
        if (of_copies := _idle(copies, pace)) or not _idle(lonely, pace):
            return of_copies
        while sum(each.turns for each in lonely) < _ENOUGH_TURNS and len(lonely) < _MOST_RUNS:
            again, _ = self._once()
            if again is None:
                break
            lonely.append(again)
        return _idle(lonely, pace)

    def _by_time(self, alone: Run, copies: Sequence[Run]) -> Finding:
        own_s, alone_s = fmean(run.own_s for run in copies), alone.own_s
        is_comparable = alone_s >= _SHORT_S and not self._is_cut(alone)
        if is_comparable and abs(math.log(own_s / alone_s)) > _OFF:
            return self._against(
                f"by turns it takes {own_s:.2g} s of its own time, and alone {alone_s:.2g} s",
                may_be_chance=True,
            )
        return Finding("", self.turns.pace)

    def _log_rate(self, run: Run) -> float:
        rate = self.program.measure(run.wall_s, run.stdout)
        assert not isinstance(rate, Fault), "a run that is judged has a number"
        return math.log(rate)

    def _by_number(self, alone: Run, copies: Sequence[Run]) -> Finding:
        """Judges by its own number, of which the factor from alone to turns must be explained.

        Some programs do a certain work, so that the speed of the machine in that very run explains
        a part of the factor, and some work for a certain time.
        """
        factor = fmean(map(self._log_rate, copies)) - self._log_rate(alone)
        own = fmean(math.log(each.wall_s) for each in copies)
        alive = fmean(math.log(each.alive_s) for each in copies)
        before = math.log(alone.wall_s)
        distances = {
            False: min(abs(factor), abs(factor - (before - own))),
            True: min(abs(factor - (before - alive)), abs(factor - (own - alive))),
        }
        counts_standing = min(distances, key=distances.__getitem__)
        if distances[counts_standing] <= _METRIC_OFF:
            return Finding("", self.turns.pace, NumberReading(counts_standing))
        return self._against(
            f"the number that it prints is {math.exp(factor):.2g} times as high by turns as alone, "
            "and neither its own time nor that of all turns explains that",
            may_be_chance=True,
        )

    def _judged_server(self, alone: Run, copies: Sequence[Run]) -> Finding:
        """Judges by what the load prints, or else by the server's CPU time, which must be the same.

        What the load prints counts requests over all its time, or is as it was. The first is seen
        in requests for each second of the server's CPU time, which no other program on the machine
        changes.
        """
        alone_s, by_turns_s = _server_s([alone]), _server_s(copies)
        if self.program.rate is None:
            _refuse_fixed_time(alone, copies)
            if abs(math.log(by_turns_s / alone_s)) <= _OFF:
                return self._in_favour(NumberReading(), alone, copies)
            why = f"by turns the server takes {by_turns_s:.2g} s of CPU time under the load, and "
            return self._against(f"{why}alone {alone_s:.2g} s", may_be_chance=True)

        def per_cpu(run: Run) -> float:
            server_s = max(1e-6, run.server_cpu_ns * 1e-9)
            return self._log_rate(run) + math.log(run.alive_s / server_s)

        for counts_standing, told in ((True, per_cpu), (False, self._log_rate)):
            off_by = fmean(map(told, copies)) - told(alone)
            if abs(off_by) <= _METRIC_OFF:
                return self._in_favour(NumberReading(counts_standing), alone, copies)
        return self._against(
            f"the number that the load prints is {math.exp(off_by):.2g} times as high by turns as "
            "alone, and the time that it stood still does not explain that",
            may_be_chance=True,
        )

    def _in_favour(self, reading: NumberReading, alone: Run, copies: Sequence[Run]) -> Finding:
        """Chooses what a second is, and says what server and load take."""
        runs = [alone, *copies]
        server_s = fmean(run.server_cpu_ns for run in runs) * 1e-9
        both_s = fmean(run.cpu_ns for run in runs) * 1e-9
        active_s = fmean(run.wall_s for run in runs)
        pace = self.turns.pace
        counts_all = self.program.rate is None or reading.counts_standing
        is_busy = pace.cpu is not None or both_s >= _BUSY * len(os.sched_getaffinity(0)) * active_s
        per_cpu = counts_all and is_busy and server_s > 0.0
        what = "the time of both, since they leave CPUs idle" if counts_all else "what it prints"
        remark = (
            f"under the load the server takes {server_s:.3g} s of CPU time, and the load "
            f"{both_s - server_s:.3g} s; compared is " + ("the server's own" if per_cpu else what)
        )
        return Finding("", pace, replace(reading, per_server_cpu=per_cpu), remark)


def _server_s(runs: Sequence[Run]) -> float:
    return max(_LEAST_S, fmean(run.server_cpu_ns for run in runs) * 1e-9)


def _refuse_fixed_time(alone: Run, copies: Sequence[Run]) -> None:
    alive_s = fmean(copy.alive_s for copy in copies)
    refuse_fixed_time(alone.alive_s, alive_s, _server_s(copies) / _server_s([alone]))


def refuse_fixed_time(alone_s: float, longer_s: float, worked: float) -> None:
    """Refuses a load whose time says nothing of the server, where only that is measured.

    `longer_s`: its time where the server stood still half of the time; `worked`: the server's CPU
    time there, as a share. Others may make any time longer, but do no work for the server.
    """
    if longer_s < _LONGER * alone_s and worked < _LESS:
        raise HztuneError(
            f"--load takes {alone_s:.3g} s, and {longer_s:.3g} s where the server stands still for "
            "half of the time: its time says nothing of the server; give --metric-regex or "
            "--metric-cmd for a number that it prints, or a load of a fixed number of requests"
        )


def _idle(runs: Sequence[Run], pace: Pace) -> float:
    """The share of its own time in which a program waited; 0: no more than it may.

    Beside other programs, the time that they took is known of the first thread only; whether
    anything wanted to run is seen at the end of each turn.
    """
    active_s = sum(run.wall_s for run in runs)
    busy_s = sum(run.cpu_ns * 1e-9 + run.delay_s + _START_S for run in runs)
    turns = sum(run.turns for run in runs)
    seen = 1.0 - sum(run.awake for run in runs) / turns if turns >= _ENOUGH_TURNS else None
    idle = 1.0 - busy_s / active_s
    if pace.cpu is None and seen is not None:
        return seen if seen > _SEEN_IDLE else 0.0
    if idle <= _MOST_IDLE or (seen is not None and seen <= _SEEN_IDLE):
        return 0.0
    return idle
