"""From the turns of a block to log ratios: the only form in which speeds are compared."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hztune.blocks import CPU_TIME, Block, Outcome, Pair, Turn
from hztune.rests import MemoryKind


@dataclass(frozen=True, slots=True)
class PairRatio:
    """What one pair of fresh processes says about candidate / reference."""

    log_ratio: float  # logarithm of the ratio of their rates; above 0 the candidate is faster
    # variance of `log_ratio` that the scatter of its turns explains: that of one round divided by
    # the rounds, see `Noise.per_round`; NaN for one turn
    turn_variance: float
    rounds: int  # turns of each process behind it
    machine: str = ""  # where it was measured; "" where there is one machine only
    # the number of its block: pairs of one block share their reference; -1: not known
    block: int = -1


def pair_ratio(reference: Outcome, candidate: Outcome) -> PairRatio | None:
    """Compares two outcomes of one block, turn by turn; None: one did not run to its end.

    The estimate is the logarithm of the ratio of the two mean rates, over the rounds that both
    have: it never meets the logarithm of an idle turn. Its variance is that of a ratio estimator by
    linearisation (Cochran, Sampling Techniques, 1977, ch. 6).
    """
    if not (reference.ok and candidate.ok):
        return None
    if candidate.parts:
        return _mean(part_ratios(reference, candidate))
    a, b = _by_round(reference.turns), _by_round(candidate.turns)
    common = sorted(a.keys() & b.keys())
    if not common:
        return PairRatio(math.log(candidate.ops_per_s / reference.ops_per_s), math.nan, 1)
    count = len(common)
    x, y = (np.array([rates[r] for r in common]) for rates in (a, b))
    mean_x, mean_y = x.sum() / count, y.sum() / count
    if mean_x <= 0.0 or mean_y <= 0.0:
        return None
    squares = float(((y / mean_y - x / mean_x) ** 2).sum())
    within = squares / (count * (count - 1)) if count > 1 else math.nan
    return PairRatio(math.log(mean_y / mean_x), within, count)


def part_ratios(reference: Outcome, candidate: Outcome) -> tuple[PairRatio | None, ...]:
    """Compares two outcomes on each of several workloads; empty where there is one only."""
    both = zip(reference.parts, candidate.parts, strict=True)
    return tuple(pair_ratio(one, other) for one, other in both)


def by_machine(pairs: Sequence[PairRatio]) -> Sequence[Sequence[PairRatio]]:
    if len(pairs) < 2:
        return [pairs]
    found: dict[str, list[PairRatio]] = {}
    for pair in pairs:
        found.setdefault(pair.machine, []).append(pair)
    return list(found.values())


def log_memory_ratio(
    reference: Outcome, candidate: Outcome, of: MemoryKind = "rss"
) -> float | None:
    """Logarithm of candidate / reference memory: peak, or kept at rest; above 0 it takes more."""
    if reference.parts and candidate.parts:
        both = zip(reference.parts, candidate.parts, strict=True)
        found = [log_memory_ratio(one, other, of) for one, other in both]
        known = [each for each in found if each is not None]
        return sum(known) / len(known) if len(known) == len(found) else None
    before_kb, after_kb = reference.memory_kb(of), candidate.memory_kb(of)
    if not (reference.ok and candidate.ok and before_kb and after_kb):
        return None
    return math.log(after_kb / before_kb)


def saving_ratio(
    reference: Outcome, candidate: Outcome, of: MemoryKind = "rss"
) -> PairRatio | None:
    """What a pair saves of memory, above 0 is better; one peak shows no scatter within a pair."""
    found = log_memory_ratio(reference, candidate, of)
    return None if found is None else PairRatio(-found, math.nan, 1)


def load_ratio(reference: Outcome, candidate: Outcome) -> PairRatio | None:
    """Compares the speeds of two outcomes' loads: turns do not tell it while memory is judged."""
    one, other = reference.rested, candidate.rested
    if not (reference.ok and candidate.ok) or one is None or other is None:
        return None
    return PairRatio(math.log(other.speed / one.speed), math.nan, 1)


def logs_of(
    what: Literal["speed", "load", "cpu"] | MemoryKind, pairs: Iterable[Pair]
) -> list[float]:
    """The log ratios of those pairs in which it is known, second to first, in their order."""
    found: Iterable[float | None]
    if what == "speed" or what == "load":
        compare = pair_ratio if what == "speed" else load_ratio
        found = (each.log_ratio if (each := compare(*pair)) else None for pair in pairs)
    elif what == "cpu":
        ran = ([each.counted.get(CPU_TIME, 0) for each in p] for p in pairs if p[0].ok and p[1].ok)
        found = (math.log(after / before) for before, after in ran if before and after)
    else:
        found = (log_memory_ratio(*pair, what) for pair in pairs)
    return [each for each in found if each is not None]


def _mean(parts: Sequence[PairRatio | None]) -> PairRatio | None:
    """The ratio over several workloads: the geometric mean of theirs, none weighing more."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    return PairRatio(
        log_ratio=sum(part.log_ratio for part in known) / len(known),
        turn_variance=sum(part.turn_variance for part in known) / len(known) ** 2,
        rounds=min(part.rounds for part in known),
    )


def _by_round(turns: Sequence[Turn]) -> dict[int, float]:
    """Mean rate of each round; disturbed turns only where a process has no other."""
    quiet = [turn for turn in turns if not turn.disturbed] or list(turns)
    rates: dict[int, list[float]] = {}
    for turn in quiet:
        rates.setdefault(turn.round, []).append(turn.rate)
    return {number: sum(found) / len(found) for number, found in rates.items()}


# ---- as columns, for pandas, polars, numpy -------------------------------------------------------

Columns = dict[str, list[Any]]  # as many values by each name, of one type; None: it has none


def block_columns(measured: Iterable[tuple[str, Block]], names: Sequence[str] = ()) -> Columns:
    """A row for each arm of each block, the control first, with its ratios to that.

    `measured`: blocks, each with its workload. `names`: of the arms, where they have some.
    """
    rows = list[dict[str, Any]]()
    for workload, block in measured:
        for place, outcome in enumerate(block.outcomes):
            speed = pair_ratio(block.control, outcome)
            memory = log_memory_ratio(block.control, outcome)
            rows.append(
                {
                    "block": block.number,
                    "role": block.role,
                    "workload": workload,
                    "arm": names[place] if names else outcome.arm.text,
                    "allocator": outcome.arm.allocator,
                    "is_control": place == 0,
                    "status": outcome.status,
                    "detail": outcome.detail,
                    "ops_per_s": outcome.ops_per_s if outcome.ok else None,
                    "ratio": math.exp(speed.log_ratio) if speed else None,
                    "rss_peak_kb": outcome.rss_peak_kb or None,
                    "rss_ratio": None if memory is None else math.exp(memory),
                    **{f"params.{name}": value for name, value in outcome.arm.params},
                }
            )
    told = dict.fromkeys(name for row in rows for name in row)
    return {name: _of_one_type([row.get(name) for row in rows]) for name in told}


def _of_one_type(values: list[Any]) -> list[Any]:
    """The values as texts where some are ("auto" and 4), as floats where some numbers are."""
    types = {type(each) for each in values if each is not None}
    if len(types) < 2 or not types <= {str, int, float}:
        return values
    kind = str if str in types else float
    return [None if each is None else kind(each) for each in values]
