"""What the blocks of one row say of its contenders; and of a gate: has the second lost too much?

The number of pairs is planned before any ratio is known, from how long runs take, and the log
ratios have the planned interval of `stats.intervals`: three looks, nearly all of the error at the
last one, or at the moment at which time is up. "No worse": the 95 % interval excludes a greater
loss than the margin. "Worse": it excludes that the loss is no greater. Between the two nothing is
said: a pipeline must not read silence as consent.

Memory is one more question of each row, at its peak and, where it rests, what it keeps: "no worse"
excludes that it takes more than the margin.

Of several rows and questions, all must be no worse for the whole to be so, and each is tested at
the full error (an intersection-union test: Berger, Technometrics 24, 1982). One that is worse is
enough to say so: they share that error.

How often each answer is given is simulated in tests/tuner/test_gate.py; README.md has the figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import Annotated, Literal, NamedTuple

from msgspec import Meta, Struct

from hztune.arguments import margin
from hztune.blocks import CPU_TIME, MAY_BE_CHANCE, Block, Outcome, Status
from hztune.comparing.contenders import Amount
from hztune.rests import MEMORIES
from hztune.result.kept import Keeper, keeper
from hztune.stats.intervals import (
    MOST_TIMES,
    REPORTED_ERROR,
    Answer,
    Interval,
    Looks,
    Question,
    all_of,
    fixed_interval,
)
from hztune.stats.noise import pooled_mean
from hztune.stats.ratios import logs_of

GateAnswer = Literal["no worse", "worse", "not enough data"]

_MORE = "--no-more-memory"

MOST_PAIRS = 100  # of a row

GATE_ANSWERS: dict[Answer, GateAnswer] = {  # each is wrong in at most 2.5 % of cases
    "yes": "no worse",
    "no": "worse",
    "open": "not enough data",
}

_NOT_AS_ASKED: tuple[Status, ...] = ("rejected", "wrong_allocator", "wrong_config")
_FAILING_PAIRS = 3  # pairs before a contender is judged by failures of these kinds:
_NO_PROOF = (*MAY_BE_CHANCE, "hang")


class Horizon(Struct, frozen=True, forbid_unknown_fields=True):
    # pairs, decided before the ratio of any was known
    planned: Annotated[int, Meta(ge=1, le=MOST_PAIRS)]
    is_last: bool = False  # whether time was up before all of them were there

    def question(self, logs: Sequence[float]) -> Question:
        """Is the second one faster? Asked now, of log ratios in order of time, shape (pairs,)."""
        looks = Looks((len(logs),), max(self.planned, len(logs)), self.is_last)
        return Question(logs, looks, REPORTED_ERROR)


Tested = Literal["speed", "rss", "kept"]

_WORDS: dict[Tested, tuple[str, str]] = {  # what is tested, and what the second one may not have
    "speed": ("speed", "a loss of more than"),
    **{of: (words, f"{words} greater by more than") for of, words in MEMORIES.items()},
}


class PartAnswer(NamedTuple):
    of: Tested
    answer: Answer
    interval: Interval | None  # 95 %, of the log ratio, second to first; None: too few pairs


class Ruling(NamedTuple):
    label: str
    answer: GateAnswer
    why: str  # in one sentence, which names what failed
    pairs: int = 0  # that were measured
    planned: int = 0  # pairs; 0: it is not known
    parts: tuple[PartAnswer, ...] = ()  # of each thing that is tested; none where one failed

    def interval(self, of: Tested) -> Interval | None:
        return next((each.interval for each in self.parts if each.of == of), None)


@dataclass(frozen=True, slots=True)
class Gate:
    """What the second one may lose of its speed and take more of memory, on each of its rows."""

    no_worse: str = ""  # a percentage, as the user wrote it; "": speed is not tested
    no_more_memory: str = ""  # the same of memory
    rows: int = 1

    def __post_init__(self) -> None:
        for text, option in ((self.no_worse, "--no-worse"), (self.no_more_memory, _MORE)):
            if text:
                margin(text, option)

    @property
    def options(self) -> str:
        both = ("--no-worse", self.no_worse), (_MORE, self.no_more_memory)
        return " ".join(f"{option} {text}" for option, text in both if text)

    def rule(self, label: str, blocks: Sequence[Block], horizon: Horizon) -> Ruling:
        """Judges blocks of (base, new) in order of time: those up to a look of the plan, or all."""
        answer: GateAnswer = "not enough data"
        parts: tuple[PartAnswer, ...] = ()
        of = len(blocks)
        if failures := failures_of(blocks, 0):
            why = f"the base failed{how_often(failures, of)}"
        elif (failures := failures_of(blocks, 1)) and failures[0].status in _NOT_AS_ASKED:
            why = f"the new one cannot be used ({failures[0].words})"
        elif failures:
            why = f"the new one failed{how_often(failures, of)}"
            answer = "worse" if len(failures) == of and is_settled_by_failure(blocks) else answer
        else:
            parts = tuple(self.judge(self._logs(blocks), horizon))
            answer = GATE_ANSWERS[all_of(each.answer for each in parts)]
            decisive = [each for each in parts if GATE_ANSWERS[each.answer] == answer]
            why = "; ".join(self._why(each, of) for each in decisive)
        return Ruling(label, answer, why, of, horizon.planned, parts)

    def _logs(self, blocks: Sequence[Block]) -> dict[Tested, list[float]]:
        """The log ratios of each thing that is tested, new to base, in order of time."""
        pairs = [(block.outcomes[0], block.outcomes[1]) for block in blocks]
        has_rested = all(outcome.rested for pair in pairs for outcome in pair)
        tested: list[tuple[Tested, object]] = [
            ("speed", self.no_worse),
            ("rss", self.no_more_memory),
            ("kept", self.no_more_memory and has_rested),
        ]
        return {of: logs_of(of, pairs) for of, is_asked in tested if is_asked}

    def judge(
        self, tested: Mapping[Tested, Sequence[float]], horizon: Horizon
    ) -> Iterator[PartAnswer]:
        """What a row's log ratios show, new to base, in order of time, shape (pairs,) each.

        The error of "worse" is shared by the rows, and a row's share by all that it is asked.
        """
        for of, logs in tested.items():
            sign = 1.0 if of == "speed" else -1.0  # so that more is better
            asked = replace(
                horizon.question([sign * each for each in logs]),
                margin=self._margin(of),
                refusal=REPORTED_ERROR / (self.rows * len(tested)),
                may_touch=True,
            )
            seen = asked.reported()
            shown = seen if seen is None or sign > 0.0 else seen.reciprocal
            yield PartAnswer(of, asked.answer, shown)

    def _margin(self, of: Tested) -> float:
        if of == "speed":
            return math.log1p(-margin(self.no_worse, "--no-worse"))
        return -math.log1p(margin(self.no_more_memory, _MORE))

    def _why(self, found: PartAnswer, pairs: int) -> str:
        what, more_than = _WORDS[found.of]
        may, seen = self.no_worse if found.of == "speed" else self.no_more_memory, found.interval
        if seen is None:
            return f"too few pairs of {what}, {pairs}; give more time with --budget"
        if found.answer == "yes":
            return f"the 95 % interval excludes {more_than} {may}"
        if found.answer == "no":
            return f"the whole 95 % interval has {more_than} {may}"
        why = f"{more_than} {may} is neither shown nor excluded"
        end = 1.0 - seen.ratio.low if found.of == "speed" else seen.ratio.high - 1.0
        if end > 0.0:
            why += f"; more than {100.0 * end:.2g} % is excluded"
        sign = 1.0 if found.of == "speed" else -1.0
        times = seen.times_for(abs(sign * seen.estimate - self._margin(found.of)))
        if times > MOST_TIMES:
            return f"{why}; it is too close to {may} to decide in a reasonable time"
        return f"{why}; about {max(1.5, times):.1f} times the time (--budget) would decide"


def whole(rulings: Sequence[Ruling]) -> GateAnswer:
    answers = {each.answer for each in rulings}
    is_open = "worse" not in answers and answers != {"no worse"}
    return "not enough data" if is_open else "worse" if "worse" in answers else "no worse"


def is_settled_by_failure(blocks: Sequence[Block]) -> bool:
    """Whether a contender has failed, and to run both again would tell nothing new.

    A program that fails now and then fails on either side. Three pairs tell one that always does.
    """
    failures = [*failures_of(blocks, 0), *failures_of(blocks, 1)]
    if not failures:
        return False
    return len(blocks) >= _FAILING_PAIRS or any(f.status not in _NO_PROOF for f in failures)


def failures_of(blocks: Sequence[Block], index: int) -> list[Outcome]:
    return [b.outcomes[index] for b in blocks if not b.outcomes[index].ok]


def how_often(failures: Sequence[Outcome], pairs: int) -> str:
    """How often a contender failed, and how at first: " in 5 of 6 pairs (failed: ...)"."""
    told = f" ({failures[0].words})"
    if pairs == 1:
        return told
    return f" in {'each' if len(failures) == pairs else len(failures)} of {pairs} pairs{told}"


# ---- what the blocks of a row say ----------------------------------------------------------------


ALPHA = 0.05  # every interval covers with 95 %


@dataclass(frozen=True, slots=True)
class Standing:
    name: str
    ops_per_s: float  # median over the blocks in which it ran well; 0.0 if there is none
    rss_mb: float  # median of its peak resident memory, MiB; 0.0 when unknown
    speed: Interval | None  # log of it over the first one's; None when they were never both well
    memory: Interval | None  # the same of its peak memory
    cpu: Interval | None = None  # the same of the CPU time of a program's run
    failures: tuple[str, ...] = ()  # how it failed, one phrase for each block in which it did
    # what the allocator counted in a process, and what is known of the process itself (ops,
    # minor_faults), mean over the blocks; by name
    counters: Mapping[str, float] = field(default_factory=dict)
    keeps: Keeper | None = None  # what it keeps at rest; None: it was not looked at then
    kept: Interval | None = None  # log of that over what the first one keeps


@dataclass(frozen=True, slots=True)
class Standings:
    """All contenders on one row, the first one first."""

    label: str  # the row, as WorkloadSpec.label has it
    all: tuple[Standing, ...]
    best: str  # name of the fastest of the others; "" when none of them ran
    # Log of the first one's speed over that one's. The best is chosen by the same measurements, so
    # that with several of nearly the same speed this leans against the first one.
    lead: Interval | None
    amount: Amount = "ops_per_s"  # what `ops_per_s` of its contenders is

    def of(self, name: str) -> Standing:
        return next(each for each in self.all if each.name == name)

    def rate(self, standing: Standing) -> float:
        """The first one's median times the ratio: a median of other moments may contradict that."""
        first = self.all[0].ops_per_s
        is_paired = standing.speed is not None and first > 0.0
        return first * math.exp(_estimate(standing.speed)) if is_paired else standing.ops_per_s

    def cpu_s(self, standing: Standing) -> float | None:
        """The same of its CPU time, seconds; None where that is not known."""
        first = self.all[0].counters.get(CPU_TIME)
        return 1e-6 * first * math.exp(standing.cpu.estimate) if first and standing.cpu else None


def standings(
    label: str,
    names: Sequence[str],
    blocks: Sequence[Block],
    *,
    amount: Amount = "ops_per_s",
    horizon: Horizon | None = None,
) -> Standings:
    """What the blocks of a row say; under a gate (`horizon`) its intervals allow for the looks."""
    found = tuple(_standing(name, i, blocks, horizon) for i, name in enumerate(names))
    others = [each for each in found[1:] if each.speed is not None]
    best = max(others, key=lambda each: _estimate(each.speed), default=None)
    lead = best.speed.reciprocal if best is not None and best.speed is not None else None
    return Standings(label, found, best.name if best else "", lead, amount)


def between(
    blocks: Sequence[Block], over: int, arm: int, horizon: Horizon | None = None
) -> tuple[Interval | None, Interval | None]:
    """Logs of speed and of peak memory, contender `arm` over contender `over`; None: unknown."""
    pairs = [(block.outcomes[over], block.outcomes[arm]) for block in blocks]
    return _interval(logs_of("speed", pairs), horizon), _interval(logs_of("rss", pairs))


def geometric_mean(intervals: Sequence[Interval]) -> Interval | None:
    """The mean of independent log ratios (`stats.noise.pooled_mean`); None: there are none."""
    known = [each for each in intervals if math.isfinite(each.half_width)]
    return pooled_mean(known, ALPHA) if known else None


def _standing(name: str, index: int, blocks: Sequence[Block], horizon: Horizon | None) -> Standing:
    pairs = [(block.control, block.outcomes[index]) for block in blocks]
    outcomes = [outcome for _, outcome in pairs]
    well = [outcome for outcome in outcomes if outcome.ok]
    counted = [outcome.counted for outcome in well]
    shared = [key for key in counted[0] if all(key in each for each in counted)] if well else []
    speed, memory = between(blocks, 0, index, horizon)
    return Standing(
        name=name,
        ops_per_s=median([o.ops_per_s for o in well] or [0.0]),
        rss_mb=median([o.rss_peak_kb / 1024 for o in well] or [0.0]),
        speed=speed,
        memory=memory,
        cpu=_interval(logs_of("cpu", pairs)),
        failures=tuple(o.words for o in outcomes if not o.ok),
        counters={key: fmean(each[key] for each in counted) for key in shared},
        keeps=keeper([o.rested for o in well]),
        kept=_interval(logs_of("kept", pairs)),
    )


def _interval(logs: Sequence[float], horizon: Horizon | None = None) -> Interval | None:
    """The interval of log ratios; infinitely wide where they are too few, None: there are none."""
    if not logs or horizon is None:
        return fixed_interval(logs, ALPHA) if logs else None
    endless = Interval(fmean(logs), -math.inf, math.inf, len(logs))
    return horizon.question(logs).reported() or endless


def _estimate(interval: Interval | None) -> float:
    return interval.estimate if interval is not None else -math.inf
