"""What was measured, as values: arm, turn, outcome, block.

Glossary: an *arm* is one configuration of one allocator. A *turn* is a timed stretch of one of its
processes: a part of its work, or the whole run of a program. An *outcome* is everything that one
arm showed in one block. A *block* is a set of arms measured at the same moment, in fresh processes,
the control first: the only unit that may be compared, by the logarithm of a ratio.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import geometric_mean
from typing import Literal, NamedTuple

from hztune.params import Value
from hztune.rests import MemoryKind, Rested

Role = Literal["aa", "search", "confirm", "explore", "panel"]
Status = Literal[
    "ok",  # it ran, under the allocator and with the parameters that were asked
    "crash",  # a signal ended it
    "hang",  # it did not start, park or end in its time
    "oom",  # it passed its memory limit
    "rejected",  # the allocator refused the configuration (exit status 78)
    "wrong_allocator",  # another library than the one asked provides malloc
    "wrong_config",  # the allocator runs with other parameters than asked
    "bad_output",  # it ended well, but what it reports is no measurement
    "failed",  # any other exit status than 0, or it could not be started
]


class Ratio(NamedTuple):
    estimate: float
    low: float
    high: float

    @property
    def text(self) -> str:
        return f"{self.estimate:.3f}x [{self.low:.3f}, {self.high:.3f}]"


MAY_BE_CHANCE: tuple[Status, ...] = ("failed", "crash", "bad_output")
"""What the next run may not repeat; other statuses come from the setting, or take as long again."""

CPU_TIME = "cpu_us"
"""A fact: CPU time in microseconds, the mean of a program's runs, or a server's under its load."""

UNCHANGED_PROGRAM = "none"
"""Stands for an allocator where there is none: the program as its user starts it today."""

COMMAND = "command:"
"""Begins the allocator of an arm that is a command of the user's, run as it is."""

_KEY_LENGTH = 12


@dataclass(frozen=True, slots=True)
class Arm:
    """One configuration of one allocator; no parameters at all: its defaults."""

    allocator: str  # name of the adapter ("hz", "jemalloc", ...); "none" is the unchanged program
    # (name, value) in order of name; what was asked for. One that restates a default makes
    # another arm than one that leaves it out.
    params: tuple[tuple[str, Value], ...] = ()

    def __post_init__(self) -> None:
        """Puts the parameters into order, so that equal configurations are equal arms."""
        object.__setattr__(self, "params", tuple(sorted(self.params)))

    @classmethod
    def of(cls, allocator: str, config: Mapping[str, Value]) -> Arm:
        return cls(allocator, tuple(config.items()))

    @property
    def text(self) -> str:
        params = [f"{name}={value}" for name, value in self.params] or ["with its defaults"]
        return " ".join([self.allocator, *params])

    @property
    def config(self) -> dict[str, Value]:
        return dict(self.params)

    @property
    def key(self) -> str:
        """A short name that is the same in every process and on every machine."""
        text = json.dumps([self.allocator, self.params], separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:_KEY_LENGTH]

    @property
    def is_default(self) -> bool:
        return not self.params


@dataclass(frozen=True, slots=True)
class Turn:
    """One timed stretch of one process (built-in workloads), or one run of a whole program."""

    round: int  # the round it belongs to, from 0; every arm of a block has one turn a round
    position: int  # its place in the order of that round, from 0
    start_ns: int  # when the counted part began, CLOCK_MONOTONIC nanoseconds
    counted_ns: int  # length of the counted part, nanoseconds
    # operations completed in the counted part. For a whole program: the number that makes `rate`
    # its metric.
    ops: float
    # what disturbed it ("steal", "throttled", "pressure", "suspend"), several joined by a comma;
    # the empty string, false as a truth value, when nothing did
    disturbed: str = ""

    @property
    def rate(self) -> float:
        """Operations per second; higher is better, whatever the metric."""
        return self.ops / (self.counted_ns * 1e-9)


def overall_rate(turns: Sequence[Turn]) -> float:
    """Returns operations per second over the undisturbed turns, over all if there is no other."""
    counted = [turn for turn in turns if not turn.disturbed] or turns
    return sum(turn.ops for turn in counted) / sum(turn.counted_ns * 1e-9 for turn in counted)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything that one arm showed in one block."""

    arm: Arm  # whose it is
    status: Status  # "ok", or how it failed; only an "ok" outcome may enter an estimate of speed
    # one sentence about a failure (signal, exit status, last line of stderr); "" when ok
    detail: str = ""
    ops_per_s: float = 0.0  # operations per second over all undisturbed turns; 0.0 unless ok
    turns: tuple[Turn, ...] = ()  # all turns, the disturbed ones too, in order of time
    rss_peak_kb: int = 0  # peak resident memory of the whole process tree, KiB; 0 when unknown
    live_kb: int = 0  # peak of the memory that the workload asked for, KiB; 0 when unknown
    # what the allocator counted on its slow paths, by name; empty when it counts nothing
    counters: Mapping[str, int] = field(default_factory=dict)
    # what it showed on each workload, in their order, where a block is measured on several; then
    # the fields above sum them up, and `turns` is empty. Else empty.
    parts: tuple[Outcome, ...] = ()
    # what is known of the whole process, by name (ops, minor_faults), where it says so
    facts: Mapping[str, int] = field(default_factory=dict, compare=False)
    # its rounds of load and rest in its last run; None: it was not looked at
    rested: Rested | None = None

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    @property
    def words(self) -> str:
        """What a sentence says of a failure: "crash: ended by SIGSEGV"."""
        return f"{self.status}: {self.detail}" if self.detail else self.status

    @property
    def counted(self) -> dict[str, int]:
        return {**self.facts, **self.counters}

    @property
    def failure(self) -> str:
        """How it failed, as failures are counted: "crash", "refused by jemalloc"."""
        return f"refused by {self.arm.allocator}" if self.status == "rejected" else self.status

    def memory_kb(self, of: MemoryKind) -> int:
        """Its peak memory or what it keeps at rest, KiB; 0 when unknown."""
        if of == "rss":
            return self.rss_peak_kb
        return self.rested.kept_kb if self.rested is not None else 0

    @property
    def all_turns(self) -> tuple[Turn, ...]:
        return self.turns or tuple(turn for part in self.parts for turn in part.turns)

    @property
    def rounds(self) -> int:
        """Number of turns that it had, on each workload."""
        return max((len(part.turns) for part in self.parts), default=len(self.turns))


Pair = tuple[Outcome, Outcome]  # of the control and another arm in one block


@dataclass(frozen=True, slots=True)
class ProofPlan:
    """How a proof was planned before its first block: its looks and its claims keep to it."""

    pairs: int  # fresh pairs of each configuration, at most
    rounds: int  # of each process
    floor: float  # a smaller gain is not claimed, log units


@dataclass(frozen=True, slots=True)
class Block:
    """Arms measured at the same moment, in fresh processes."""

    number: int  # of the block in its study, from 0
    role: Role  # what it was measured for
    # one for each arm that was asked, in that order; the first is the control
    outcomes: tuple[Outcome, ...]
    # what tells the machine that measured it from others; "" where it does not matter
    machine: str = field(default="", compare=False)
    # of a block of the panel, on which of its workloads; of one of the program itself, where its
    # trace is tuned, the program; "" for what is tuned
    workload: str = ""
    plan: ProofPlan | None = None  # of the proof that it belongs to; None: it belongs to none

    @property
    def control(self) -> Outcome:
        return self.outcomes[0]


def times_of(blocks: Iterable[Block]) -> Iterator[tuple[float, float]]:
    """Yields when each block began and ended, in seconds of measuring since the first one began.

    What lies before a block (starts, warm-up, the user's commands, proposing) is measuring, too, up
    to as much as the block itself took. Beyond that the study was stopped; or the machine was
    started again, and with it the clock of the turns.
    """
    now, last_ns = 0.0, None
    for block in blocks:
        turns = [turn for outcome in block.outcomes for turn in outcome.all_turns]
        if not turns:
            yield now, now
            continue
        begin_ns = min(turn.start_ns for turn in turns)
        end_ns = max(turn.start_ns + turn.counted_ns for turn in turns)
        if last_ns is not None and begin_ns < last_ns < end_ns:
            begin_ns = last_ns  # another worker measured meanwhile
        length = (end_ns - begin_ns) * 1e-9
        gap = 0.0 if last_ns is None else (begin_ns - last_ns) * 1e-9
        now += min(max(0.0, gap), length)
        yield now, now + length
        now, last_ns = now + length, end_ns


def spent_s(blocks: Iterable[Block]) -> float:
    return max((end for _, end in times_of(blocks)), default=0.0)


def joined(blocks: Sequence[Block], workloads: Sequence[str]) -> Block:
    """One block from a pair's blocks on several workloads, whose names stand in its failures."""
    if len(blocks) == 1:
        return blocks[0]
    columns = zip(*(block.outcomes for block in blocks), strict=True)
    outcomes = tuple(_joined(parts, workloads) for parts in columns)
    return replace(blocks[0], outcomes=outcomes, workload="")


def _joined(parts: tuple[Outcome, ...], workloads: Sequence[str]) -> Outcome:
    """One arm's outcomes as one: it is ok where it is ok everywhere; speeds by geometric mean."""
    named = zip(parts, workloads, strict=True)
    first, name = next(((part, name) for part, name in named if not part.ok), (parts[0], ""))
    counters: Counter[str] = Counter()
    for part in parts:
        counters.update(part.counters)
    return Outcome(
        arm=first.arm,
        status=first.status,
        detail="" if first.ok else f"on {name}: {first.detail}",
        ops_per_s=geometric_mean(part.ops_per_s for part in parts) if first.ok else 0.0,
        rss_peak_kb=max(part.rss_peak_kb for part in parts),
        live_kb=max(part.live_kb for part in parts),
        counters=counters,
        parts=parts,
    )
