"""A gate: has the second contender lost more than it may? A test of non-inferiority.

The number of pairs is planned before any ratio is known, from how long runs take, and the log
ratios have the planned interval of `stats.intervals`: three looks, nearly all of the error at the
last one, or at the moment at which time is up. "No worse": the 95 % interval excludes a greater
loss than the margin. "Worse": it excludes that the loss is no greater. Between the two nothing is
said: a pipeline must not read silence as consent.

Of several rows, all must be no worse for the whole to be so, and each is tested at the full error
(an intersection-union test: Berger, Technometrics 24, 1982). One that is worse is enough to say so:
they share that error.

How often each answer is given is simulated in tests/tuner/test_gate.py; README.md has the figures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Annotated, Literal, NamedTuple

from msgspec import Meta, Struct

from hztune.arguments import margin
from hztune.blocks import MAY_BE_CHANCE, Block, Outcome, Status
from hztune.stats.intervals import MOST_TIMES, Interval
from hztune.stats.question import REPORTED_ERROR, Answer, Looks, Question
from hztune.stats.ratios import log_memory_ratio, pair_ratio
from hztune.study.limits import LossLimit

GateAnswer = Literal["no worse", "worse", "not enough data"]

MOST_PAIRS = 100  # of a row

_ANSWERS: dict[Answer, GateAnswer] = {  # each is wrong in at most 2.5 % of cases
    "yes": "no worse",
    "no": "worse",
    "open": "not enough data",
}

_NOT_AS_ASKED: tuple[Status, ...] = ("rejected", "wrong_allocator", "wrong_config")
_FAILING_PAIRS = 3  # pairs before a contender that fails is judged


class Horizon(Struct, frozen=True, forbid_unknown_fields=True):
    # pairs, decided before the ratio of any was known
    planned: Annotated[int, Meta(ge=1, le=MOST_PAIRS)]
    is_last: bool = False  # whether time was up before all of them were there

    def question(self, logs: Sequence[float]) -> Question:
        """Is the second one faster? Asked now, of log ratios in order of time, shape (pairs,)."""
        looks = Looks((len(logs),), max(self.planned, len(logs)), self.is_last)
        return Question(logs, looks, REPORTED_ERROR)


class Ruling(NamedTuple):
    label: str
    answer: GateAnswer
    why: str  # in one sentence
    speed: Interval | None  # 95 %, of the log ratio of speed, second to first; None: too few pairs
    memory: float | None  # mean log ratio of peak memory; None: unknown
    pairs: int  # that were measured
    planned: int  # pairs; 0: it is not known


@dataclass(frozen=True, slots=True)
class Gate:
    """What may be lost: of speed, on each of so many rows."""

    limit: LossLimit
    rows: int = 1

    @classmethod
    def of(cls, text: str, rows: int = 1) -> Gate:
        """The gate of a margin that a user wrote; UsageError: no percentage between 0 and 100."""
        return cls(LossLimit(text, -math.log1p(-margin(text, "--no-worse"))), rows)

    def rule(self, label: str, blocks: Sequence[Block], horizon: Horizon) -> Ruling:
        """What the blocks of a row show, the base their first outcome, the new one the second.

        `blocks`: in order of time, as many as there were at a look of the plan, or in the end.
        """
        answer: GateAnswer = "not enough data"
        speed, of = None, len(blocks)
        if failures := failures_of(blocks, 0):
            why = f"the base failed{how_often(failures, of)}"
        elif (failures := failures_of(blocks, 1)) and failures[0].status in _NOT_AS_ASKED:
            why = f"the new one cannot be used ({_told(failures[0])})"
        elif failures:
            why = f"the new one failed{how_often(failures, of)}"
            answer = "worse" if len(failures) == of else answer
        else:
            pairs = [pair_ratio(b.outcomes[0], b.outcomes[1]) for b in blocks]
            logs = [pair.log_ratio for pair in pairs if pair is not None]
            answer, speed = self.judge(logs, horizon)
            why = f"too few pairs, {len(logs)}; give more time with --budget"
            if speed is not None:
                why = self._why(answer, speed)
        ratios = [log_memory_ratio(b.outcomes[0], b.outcomes[1]) for b in blocks]
        known = [each for each in ratios if each is not None]
        memory = round(fmean(known), 6) if known else None
        return Ruling(label, answer, why, speed, memory, of, horizon.planned)

    def judge(self, logs: Sequence[float], horizon: Horizon) -> tuple[GateAnswer, Interval | None]:
        """What log ratios of speed show, new to base, shape (pairs,), and their 95 % interval."""
        asked = replace(
            horizon.question(logs),
            margin=-self.limit.log,
            refusal=REPORTED_ERROR / self.rows,
            may_touch=True,
        )
        return _ANSWERS[asked.answer], asked.reported()

    def _why(self, answer: GateAnswer, speed: Interval) -> str:
        """The reason for an answer, and how many times as many pairs would tell."""
        may = self.limit.text
        if answer == "no worse":
            return f"the 95 % interval excludes a loss of more than {may}"
        if answer == "worse":
            return f"the whole 95 % interval is beyond a loss of {may}"
        excluded = -100.0 * math.expm1(speed.low)
        why = f"a loss of more than {may} is neither shown nor excluded"
        if excluded > 0.0:
            why += f"; one of more than {excluded:.2g} % is excluded"
        times = speed.times_for(abs(speed.estimate + self.limit.log))
        if times > MOST_TIMES:
            return f"{why}; it is too close to {may} to decide in a reasonable time"
        return f"{why}; about {max(1.5, times):.1f} times the time (--budget) would decide"


def whole(rulings: Sequence[Ruling]) -> GateAnswer:
    """The answer for all rows together."""
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
    return len(blocks) >= _FAILING_PAIRS or any(f.status not in MAY_BE_CHANCE for f in failures)


def failures_of(blocks: Sequence[Block], index: int) -> list[Outcome]:
    """How a contender failed, an outcome for each block in which it did."""
    return [b.outcomes[index] for b in blocks if not b.outcomes[index].ok]


def how_often(failures: Sequence[Outcome], pairs: int) -> str:
    """How often a contender failed, and how at first: " in 5 of 6 pairs (failed: ...)"."""
    told = f" ({_told(failures[0])})"
    if pairs == 1:
        return told
    return f" in {'each' if len(failures) == pairs else len(failures)} of {pairs} pairs{told}"


def _told(outcome: Outcome) -> str:
    return f"{outcome.status}: {outcome.detail}" if outcome.detail else outcome.status
