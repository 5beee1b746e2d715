"""A program of the user's: by turns where they tell the truth about it, else by whole runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from hztune.machine import timed_window
from hztune.measure import Accounting, Arm, Block, Executor, Role, network
from hztune.measure.alternate import BY_TURNS, AlternateExecutor
from hztune.measure.examine import Finding, Tryout
from hztune.measure.examine_server import ServerTryout, fixed_port
from hztune.measure.program import Program
from hztune.measure.runs import RunExecutor

Say = Callable[[str], None]
"""Tells the user a sentence."""


def say_nothing(sentence: str) -> None:
    """Keeps a sentence from the user."""


class ProgramExecutor(Executor):
    """Measures arms by turns or by runs; which of them is found out before the first block."""

    def __init__(
        self,
        program: Program,
        runs: RunExecutor,
        turns: AlternateExecutor,
        say: Say = say_nothing,
    ) -> None:
        """Makes the executor of a study.

        Args:
            program: What is run; `program.by` says how, where the user knows better.
            runs: Measures by runs.
            turns: Measures by turns.
            say: Tells the user how it is measured, and why.
        """
        self._program = program
        self._runs = runs
        self._turns = turns
        self._say = say
        self._chosen: Executor | None = None
        self._tried = Accounting()
        self._by = program.by

    @property
    def accounting(self) -> Accounting:
        """Where the time went, by runs and by turns, the trial of them included."""
        return self._runs.accounting + self._turns.accounting + self._tried

    def prepare(self, control: Arm) -> None:
        """Finds out how to measure, and what a run takes."""
        if self._chosen is None:
            self._chosen = self._choose(control)
            self._chosen.prepare(control)

    def cost(self, arms: int, rounds: int) -> float:
        """Returns the wall seconds that a block will take."""
        return (self._chosen or self._runs).cost(arms, rounds)

    def recall(self, blocks: Sequence[Block]) -> None:
        """Learns from earlier blocks; a study goes on as it began."""
        self._runs.recall(blocks)
        self._turns.recall(blocks)
        if blocks and not self._by:
            by_turns = any(BY_TURNS in outcome.facts for b in blocks for outcome in b.outcomes)
            self._by = "turns" if by_turns else "runs"

    def measure(self, arms: Sequence[Arm], *, role: Role, rounds: int, number: int) -> Block:
        """Measures a block; see `Executor.measure`."""
        executor = self._chosen = self._chosen or self._choose(arms[0])
        if executor is self._turns and not self._turns.fits(len(arms)):
            executor = self._runs
        return executor.measure(arms, role=role, rounds=rounds, number=number)

    def _choose(self, control: Arm) -> Executor:
        """Finds out how to measure, and says so."""
        program, service = self._program, self._program.service
        said = fixed_port(program, service) if service is not None else ""
        if reason := self._against_turns(said):
            return self._by_runs(reason)
        if said:
            program = self._turns.give_networks()
        kind = Tryout if service is None else ServerTryout
        with timed_window():
            started = time.monotonic()
            finding = kind(self._turns, program, control).finding()
            took_s = time.monotonic() - started
        self._tried = Accounting(warmup_s=took_s, wall_s=took_s)
        if finding.remark:
            self._say(finding.remark)
        if finding.hangs is not None or (finding.reason and self._by != "turns"):
            if said:
                return self._by_runs(f"in a network of its own, {finding.reason}; {said}")
            self._runs.hangs = finding.hangs
            if service is None and finding.run_s:
                self._runs.take_warmup(finding.run_s)
            return self._by_runs(finding.reason)
        self._turns.reading = finding.reading
        self._say(_by_turns(finding))
        if said:
            self._say("each copy of the server has a network of its own, and its port there")
        if not self._turns.fits(_USUAL):
            self._say(
                f"{_USUAL} copies of it take more memory than there is: those are measured by runs"
            )
        return self._turns

    def _against_turns(self, fixed: str) -> str:
        """Returns why turns need not be tried; "": they are tried.

        Args:
            fixed: Why two copies cannot live in one network; "": they can.
        """
        if self._by == "runs":
            return "as was asked" if self._program.by else "as the study began"
        rest, quota = self._program.rest, self._program.quota
        box = f"each in {quota.text}" if quota is not None else ""
        if rest is not None:
            return ", ".join(filter(None, [f"{rest.text}, of which the memory is read", box]))
        if box:
            return box
        if fixed and not network.can_be_had():
            return f"{fixed}, or run hztune where it may give each a network of its own"
        return ""

    def _by_runs(self, reason: str) -> Executor:
        self._say(f"measured by whole runs, one after the other: {reason}")
        return self._runs


_USUAL = 4
"""Arms of a usual block."""


_OWN_TIME = (
    "the time that is told is that of its turns, and what goes on while others have theirs, such "
    "as a sleep or a disk, is not in it"
)
"""What is said of times by turns where turns were asked for although they are not to be trusted."""


def _by_turns(finding: Finding) -> str:
    """Returns what the user is told of turns."""
    pace = finding.pace
    where = "on all CPUs" if pace.cpu is None else f"on CPU {pace.cpu}"
    told = f"measured by turns of {pace.turn_ms:g} ms, {where}"
    if finding.reading.counts_standing:
        told += "; its number is corrected by the time that it stood still"
    return f"{told}, although {finding.reason}; {_OWN_TIME}" if finding.reason else told
