"""The executor that suits what is measured: turns where they tell the truth, else whole runs."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from hztune.allocator import Installed
from hztune.blocks import COMMAND, Arm, Block, Role
from hztune.errors import UsageError
from hztune.machine import Machine, timed_window
from hztune.measure import Accounting, Executor, SeveralExecutor
from hztune.measure.alternate import BY_TURNS, AlternateExecutor
from hztune.measure.examine import Finding, Tryout, fixed_port
from hztune.measure.identity import AllocatorIdentity
from hztune.measure.program import (
    DEFAULT_TIMEOUT_S,
    Program,
    can_have_networks,
)
from hztune.measure.turns import TurnExecutor, bench_program, tempo_for
from hztune.measure.whole import MEMORY_SHARE, CallExecutor, Part, RunExecutor
from hztune.store import Sink
from hztune.workload import WorkloadSpec

RUN_S = 1.0  # seconds of a run of a workload that turns cannot measure

Say = Callable[[str], None]  # tells the user a sentence

_USUAL = 4  # arms of a usual block

_OWN_TIME = (
    "the time that is told is that of its turns, and what goes on while others have theirs, such "
    "as a sleep or a disk, is not in it"
)
"""Said of times by turns where turns were asked for although they are not to be trusted."""


def say_nothing(sentence: str) -> None:
    """Keeps a sentence from the user."""


class ProgramExecutor(AlternateExecutor):
    """Measures by turns or by runs; which is found out before the first block."""

    def __init__(
        self,
        program: Program,
        sink: Sink | None = None,
        *,
        seed: int,
        identity: AllocatorIdentity | None = None,
        memory_mb: int = 0,
        say: Say = say_nothing,
    ) -> None:
        super().__init__(program, sink, seed=seed, identity=identity, memory_mb=memory_mb)
        self._by, self._say = program.by, say
        self._is_by_turns: bool | None = None

    def prepare(self, *arms: Arm) -> None:
        self._choose(arms)
        if not self._is_by_turns:
            super().prepare(*arms)

    def recall(self, blocks: Sequence[Block]) -> None:
        super().recall(blocks)
        if blocks and not self._by:
            by_turns = any(BY_TURNS in outcome.facts for b in blocks for outcome in b.outcomes)
            self._by = "turns" if by_turns else "runs"

    def measure(self, arms: Sequence[Arm], *, role: Role, rounds: int, number: int) -> Block:
        self._choose(arms)
        return super().measure(arms, role=role, rounds=rounds, number=number)

    def _play(self, parts: list[Part], rounds: int, number: int, rng: random.Random) -> float:
        way = AlternateExecutor if self._is_by_turns and self.fits(len(parts)) else RunExecutor
        return way._play(self, parts, rounds, number, rng)

    def _choose(self, arms: Sequence[Arm]) -> None:
        if self._is_by_turns is not None:
            return
        finding, said = Finding("", self.pace), fixed_port(self.program)
        reason = self._against_turns(said)
        if self.program.service is not None or not reason:
            self.program = replace(self.program, has_network=bool(said and not reason))
            with timed_window():
                started = time.monotonic()
                tryout = Tryout(self, self.program, arms[0])
                finding = tryout.of_load(reason) if reason else tryout.finding()
                commands = [arm for arm in arms[1:] if arm.allocator.startswith(COMMAND)]
                while commands and not finding.reason:
                    other = Tryout(self, self.program, commands.pop(0)).finding()
                    self.pace = max(finding.pace, other.pace, key=lambda each: each.cpu is None)
                    finding = replace(finding, reason=other.reason, pace=self.pace)
                took_s = time.monotonic() - started
            self._accounting += Accounting(warmup_s=took_s, wall_s=took_s)
        if finding.remark:
            self._say(finding.remark)
        self._is_by_turns = not (
            reason or finding.hangs or (finding.reason and self._by != "turns")
        )
        if self._is_by_turns:
            self.reading = finding.reading
            self._say_turns(finding, said)
            return
        why = reason or finding.reason
        if said and not reason:
            why = f"in a network of its own, {why}; {said}"
        else:
            self.hangs = finding.hangs
        if self.program.service is None and finding.run_s:  # that was a warm-up
            self._warmups, self._is_warm = max(0, self._warmups - 1), True
        self._say(f"measured by whole runs, one after the other: {why}")

    def _say_turns(self, finding: Finding, said: str) -> None:
        where = "on all CPUs" if finding.pace.cpu is None else f"on CPU {finding.pace.cpu}"
        told = f"measured by turns of {finding.pace.turn_ms:g} ms, {where}"
        if finding.reading.counts_standing:
            told += "; its number is corrected by the time that it stood still"
        self._say(f"{told}, although {finding.reason}; {_OWN_TIME}" if finding.reason else told)
        if said:
            self._say("each copy of the server has a network of its own, and its port there")
        if not self.fits(_USUAL):
            self._say(
                f"{_USUAL} copies of it take more memory than there is: those are measured by runs"
            )

    def _against_turns(self, fixed: str) -> str:
        """Returns why turns need not be tried; "": they are tried."""
        if self._by == "runs":
            return "as was asked" if self.program.by else "as the study began"
        rest, quota = self.program.rest, self.program.quota
        box = f"each in {quota.text}" if quota is not None else ""
        if rest is not None:
            return ", ".join(filter(None, [f"{rest.text}, of which the memory is read", box]))
        if box or not fixed or can_have_networks():
            return box
        return f"{fixed}, or run hztune where it may give each a network of its own"


def executor_for(
    targets: Sequence[Program | WorkloadSpec],
    sink: Sink | None = None,
    *,
    seed: int,
    machine: Machine,
    processes: int = 1,
    identity: AllocatorIdentity | None = None,
    inside: Sequence[Installed] = (),
    say: Say = say_nothing,
    run_s: float = RUN_S,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> Executor:
    """What measures here: a program, a workload, or several of one kind together.

    Args:
        sink: Where every turn goes as soon as it exists; None: nowhere.
        seed: Of requests, orders and environment sizes.
        processes: Most that live at once where turns measure a workload.
        identity: None: by the allocators' adapters.
        inside: The allocators that were found in the programs.
        run_s: Seconds of a run of a workload where turns do not measure it.
        timeout_s: Seconds after which such a run hangs.
    """
    refuse_mixture([each for each in targets if isinstance(each, WorkloadSpec)])
    memory_mb = machine.memory_gib * 1024  # or that of its control group; 0: unknown
    if machine.memory_limit_kb is not None:
        memory_mb = min(memory_mb or machine.memory_limit_kb, machine.memory_limit_kb // 1024)

    def made(target: Program | WorkloadSpec, sink: Sink | None) -> Executor:
        if isinstance(target, Program):
            seen = target.call is None
            own = identity or AllocatorIdentity(target.argv[0], inside, seen=seen)
            if target.call is not None:
                return CallExecutor(target, sink, seed=seed, identity=own)
            prefix = f"{target.label}: " if len(targets) > 1 else ""
            return ProgramExecutor(
                target,
                sink,
                seed=seed,
                identity=own,
                memory_mb=memory_mb,
                say=lambda words: say(prefix + words),
            )
        most_mb = MEMORY_SHARE * memory_mb  # of all processes, before they are ended
        if target.steady:
            tempo = tempo_for(target, int(most_mb / processes))
            return TurnExecutor(target, sink, seed=seed, tempo=tempo, identity=identity)
        whole = bench_program(target, run_s, int(most_mb), timeout_s)
        return RunExecutor(whole, sink, seed=seed, identity=identity)

    if len(targets) == 1:
        return made(targets[0], sink)
    return SeveralExecutor([(each.label, partial(made, each)) for each in targets], sink)


def refuse_mixture(specs: Sequence[WorkloadSpec]) -> None:
    """UsageError where workloads cannot be measured together, for want of one kind of rounds."""
    labels = [spec.label for spec in specs]
    if twice := next((label for label in labels if labels.count(label) > 1), ""):
        raise UsageError(f"--workload names {twice} twice; once is enough")
    if len({spec.steady for spec in specs}) > 1:
        unsteady = next(spec.name for spec in specs if not spec.steady)
        raise UsageError(
            f"{unsteady} is measured by whole runs and the others by turns, so that they cannot "
            "be tuned for together; leave it out, or tune for it alone"
        )
