"""A gate: has the second contender lost more than it may? A test of non-inferiority.

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
from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple

from msgspec import Meta, Struct

from hztune.arguments import margin
from hztune.blocks import MAY_BE_CHANCE, Block, Outcome, Status
from hztune.rests import MEMORIES, MemoryKind
from hztune.stats.intervals import MOST_TIMES, Interval
from hztune.stats.question import REPORTED_ERROR, Answer, Looks, Question, all_of
from hztune.stats.ratios import log_memory_ratio, pair_ratio

GateAnswer = Literal["no worse", "worse", "not enough data"]

_MORE = "--no-more-memory"

MOST_PAIRS = 100  # of a row

GATE_ANSWERS: dict[Answer, GateAnswer] = {  # each is wrong in at most 2.5 % of cases
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
            why = f"the new one cannot be used ({_told(failures[0])})"
        elif failures:
            why = f"the new one failed{how_often(failures, of)}"
            answer = "worse" if len(failures) == of else answer
        else:
            parts = tuple(self.judge(self._logs(blocks), horizon))
            answer = GATE_ANSWERS[all_of(each.answer for each in parts)]
            decisive = [each for each in parts if GATE_ANSWERS[each.answer] == answer]
            why = "; ".join(self._why(each, of) for each in decisive)
        return Ruling(label, answer, why, of, horizon.planned, parts)

    def _logs(self, blocks: Sequence[Block]) -> dict[Tested, list[float]]:
        """The log ratios of each thing that is tested, new to base, in order of time."""
        pairs = [(block.outcomes[0], block.outcomes[1]) for block in blocks]
        logs: dict[Tested, list[float]] = {}
        if self.no_worse:
            logs["speed"] = [one.log_ratio for pair in pairs if (one := pair_ratio(*pair))]
        if self.no_more_memory:
            has_rested = all(outcome.rested for pair in pairs for outcome in pair)
            memories: tuple[MemoryKind, ...] = ("rss", "kept") if has_rested else ("rss",)
            for of in memories:
                known = (log_memory_ratio(*pair, of) for pair in pairs)
                logs[of] = [each for each in known if each is not None]
        return logs

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
    return len(blocks) >= _FAILING_PAIRS or any(f.status not in MAY_BE_CHANCE for f in failures)


def failures_of(blocks: Sequence[Block], index: int) -> list[Outcome]:
    return [b.outcomes[index] for b in blocks if not b.outcomes[index].ok]


def how_often(failures: Sequence[Outcome], pairs: int) -> str:
    """How often a contender failed, and how at first: " in 5 of 6 pairs (failed: ...)"."""
    told = f" ({_told(failures[0])})"
    if pairs == 1:
        return told
    return f" in {'each' if len(failures) == pairs else len(failures)} of {pairs} pairs{told}"


def _told(outcome: Outcome) -> str:
    return f"{outcome.status}: {outcome.detail}" if outcome.detail else outcome.status
