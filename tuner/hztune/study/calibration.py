"""Calibration: the default against itself first; and how the time of a study is divided.

The phases share what the panel, and the program of a trace, leave of a budget. One after another
ends by its share; what it leaves, the next one may use. Where a block takes long, shares alone
would keep time back that nothing can use: so each phase has a least, too, and the leasts come
before the shares.

1. The least is LEAST_BLOCKS blocks of calibration, a block of LEAST_SLOTS candidates, and the fresh
   pairs that a claim needs, all as short as blocks can be. Where the default breaks a memory limit,
   LEAST_PLANNED pairs do, and one block of calibration if there is no time for more: keeping the
   limit is the claim.
2. The search ends by its share, or sooner where the pairs of a claim need more than what is left
   then. Its first block may go beyond the share, as long as these pairs have their time.
3. A study whose leasts are more than its budget says which budget would do, sets a few
   configurations beside the default as far as its time goes, and claims nothing. That is asked
   before the first block, by what one run has shown, and after each block of the calibration,
   which shows what blocks really take.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from hztune.blocks import MAY_BE_CHANCE, UNCHANGED_PROGRAM, Arm
from hztune.errors import HztuneError, OutOfTime
from hztune.progress import percent
from hztune.stats.intervals import FIRST_LOOK
from hztune.stats.noise import detectable_effect, move_together, noise_floor, two_states
from hztune.study.bench import SHORT_S, Workbench

CALIBRATED_BY = 0.08
SEARCHED_BY = 0.52
PROVED_BY = 0.97  # the shares of the phases' time by which each of them ends

PROOF_SHARE = 0.37  # part of it that the first proof of a study has for itself

NEXT_SEARCH = 0.45  # part of what is left for a further search, where no finalist is left

FRONT_SHARE = PROVED_BY - SEARCHED_BY  # of the phases' time, for the proofs of all members together

COPIES = 4  # processes in an A/A block: two independent pairs

LEAST_BLOCKS = 2  # A/A blocks without which nothing is known of the noise

LEAST_SLOTS = 3  # candidates of a search's only block: fewer would hardly be a study

FIRST_RUN = 1.5  # a first run may take so many times as long as later ones: caches are cold

HEADROOM = 1.2  # of a budget that would do, for blocks that take longer than expected


def least_blocks(bench: Workbench) -> int:
    is_tight = _needed_s(bench, LEAST_BLOCKS) > bench.budget.left(PROVED_BY)
    return 1 if is_tight and bench.ledger.default_breaks_limit else LEAST_BLOCKS


def claim_s(bench: Workbench) -> float:
    return bench.least_pairs * _shortest_s(bench, 2)


def latest_search(bench: Workbench) -> float:
    return PROVED_BY - claim_s(bench) / bench.budget.total_s


SHORTER = ", and so would a shorter run"


class TooLittleTime(OutOfTime):
    def __init__(self, parts: str, needed_s: float, left_s: float, enough_s: int, so: str) -> None:
        super().__init__(
            f"the budget is too small: {parts} take about {needed_s:.0f} s, and {left_s:.0f} s are "
            f"left for them; --budget {enough_s}s would do{so}"
        )


def require_enough(bench: Workbench) -> None:
    """Raises TooLittleTime where a study that has not searched has no time for its leasts."""
    if bench.ledger.searched:
        return
    calibrated, least = _calibrated(bench), least_blocks(bench)
    needed_s = _needed_s(bench, least)
    budget, tolerance = bench.budget, 1.0 if calibrated else FIRST_RUN
    left_s = max(0.0, budget.left(PROVED_BY))
    if needed_s <= tolerance * left_s:
        return
    rest = "the rest of the calibration" if calibrated else "a calibration"
    first = f"{rest}, a block" if calibrated < least else "a block"
    parts = (
        f"{first} of {LEAST_SLOTS} candidates and the {bench.least_pairs} fresh pairs of a claim"
    )
    so = SHORTER if bench.is_whole else ""
    raise TooLittleTime(parts, needed_s, left_s, enough_s(bench, needed_s), so)


def no_time_for_claim(bench: Workbench, subject: str = "a claim") -> str:
    return (
        f"no time was left for the {bench.least_pairs} fresh pairs of {subject}; "
        f"--budget {enough_s(bench, claim_s(bench))}s would do"
    )


def enough_s(bench: Workbench, needed_s: float) -> int:
    """A whole budget that has time for what was measured and so many seconds more."""
    phases_s = bench.budget.elapsed() + HEADROOM * needed_s
    return math.ceil(phases_s / (PROVED_BY * bench.budget.part))


def _calibrated(bench: Workbench) -> int:
    return len(bench.ledger.own_blocks("aa"))


def _needed_s(bench: Workbench, blocks: int) -> float:
    return (
        max(0, blocks - _calibrated(bench)) * _shortest_s(bench, COPIES)
        + _shortest_s(bench, 1 + LEAST_SLOTS)
        + claim_s(bench)
    )


def _shortest_s(bench: Workbench, arms: int) -> float:
    return bench.executor.cost(arms, bench.rounds(arms, 0.0))


FIRST_ROUNDS = 16
USUAL_BLOCKS = 4
MOST_BLOCKS = 8

PAIRS = 10  # pairs for which a confirmation has time at least; its blocks are made short enough


FOUND = 1.5
"""A gain of one parameter that nine studies in ten find and prove, in gains of a finalist that nine
proofs in ten prove: simulated, experiments/engine/studies.py --gain."""

_TOO_OFTEN = 0.25  # a study ends at its start if this share of the default's measurements fail

BISTABLE_PAIRS = 20  # fresh pairs that a claim needs where the default itself has two speeds


@dataclass(frozen=True, slots=True)
class Calibration:
    """What a study can see; gains in log units."""

    rounds: int  # that suit the noise of a pair
    pairs: int  # fresh ones, in the proof's own part of the budget
    floor: float  # half-width of the interval of an A/A comparison of that size
    # least gain of a finalist that its proof claims with 90 %, by the formula; three simulated
    # studies in four prove it
    detectable: float
    apart: float | None = None  # between the two speeds of the default; None: it has one

    @property
    def findable(self) -> float:
        return FOUND * self.detectable

    @property
    def least_pairs(self) -> int:
        return FIRST_LOOK if self.apart is None else BISTABLE_PAIRS

    def line(self) -> str:
        turns = "1 turn" if self.rounds == 1 else f"{self.rounds} turns"
        return (
            f"calibrated: noise floor {percent(self.floor, sign=False)}; a finalist that gains "
            f"{percent(self.detectable, sign=False)} is proved three times in four with "
            f"{self.pairs} fresh pairs ({turns} of each process)"
        )

    def search_line(self) -> str:
        return (
            f"a parameter that gains {percent(self.findable, sign=False)} is found and proved nine "
            "times in ten; smaller gains need a larger budget"
        )


def calibrate(
    bench: Workbench, control: Arm, share: float, judge: Callable[[Workbench], None] | None = None
) -> None:
    """Measures the default against itself until `share` of the budget is used.

    `judge` is asked before each block and may raise. HztuneError: the default fails too often.
    """
    most_s = bench.budget.total_s * share / USUAL_BLOCKS
    rounds = min(FIRST_ROUNDS, bench.rounds(COPIES, most_s))
    while _calibrated(bench) < MOST_BLOCKS:
        cost = bench.executor.cost(COPIES, rounds)
        if _calibrated(bench) >= least_blocks(bench) and not bench.budget.allows(cost, share):
            return
        if judge is not None:
            judge(bench)
        bench.measure([control] * COPIES, "aa", rounds)
        refuse_failing(bench, control)
        rounds = bench.rounds(COPIES, most_s)
        bench.tell("calibrate")


def refuse_failing(bench: Workbench, control: Arm) -> None:
    """HztuneError: the default fails too often, so that nothing can be compared with it."""
    outcomes = [o for b in bench.ledger.own_blocks() for o in b.outcomes if o.arm == control]
    bad = [outcome for outcome in outcomes if not outcome.ok]
    if not bad or len(bad) < min(max(2, _TOO_OFTEN * len(outcomes)), len(outcomes)):
        return
    last, name = bad[-1], control.allocator
    told = "the unchanged program" if name == UNCHANGED_PROGRAM else f"{name} with its defaults"
    often = "does not run" if len(bad) == len(outcomes) else "does not always run"
    how = f"{len(bad)} of {len(outcomes)} measurements failed ({last.words})"
    if bench.is_whole and last.status in MAY_BE_CHANCE:
        how += (
            "; a run counts only if its exit status is 0 and it prints what hztune reads: start "
            "the program by hand several times to see all that it prints, and mend it first"
        )
    raise HztuneError(f"{told} {often}: {how}")


def assess(bench: Workbench, confirm_s: float, alpha: float) -> Calibration:
    """What the study can see with `confirm_s` seconds of confirmation at error `alpha`.

    A study that goes on says what it said before, and keeps the noise floor that it judged by.
    """
    calibration = bench.ledger.own_blocks("aa")
    known = bench.ledger.until(calibration[-1]) if calibration else bench.ledger
    noise = known.noise()
    rounds = bench.rounds(2, confirm_s / PAIRS, noise)
    pairs = max(2, int(confirm_s / bench.executor.cost(2, rounds)))
    plans = (block.plan for block in bench.ledger.own_blocks())
    begun = next((plan for plan in plans if plan is not None), None)
    found = Calibration(
        rounds=rounds,
        pairs=pairs,
        floor=begun.floor if begun else noise_floor(noise, rounds, pairs),
        detectable=detectable_effect(noise, rounds, pairs, alpha),
        apart=_apart(bench),
    )
    bench.calibrated(found.floor, found.least_pairs)
    return found


def warnings_about(bench: Workbench, calibration: Calibration) -> list[str]:
    said = []
    seconds = bench.run_s() if bench.is_whole else None
    if seconds is not None and seconds < SHORT_S:
        said.append(
            f"warning: a run takes only {1e3 * seconds:.0f} ms, and much of that is the start of "
            f"the program; {bench.repeats()} runs are taken for each measurement, and a longer "
            "input would show more"
        )
    if calibration.apart is not None:
        least = calibration.least_pairs
        said.append(
            "warning: runs of the same program fall into two groups, "
            f"{percent(calibration.apart, sign=False)} apart; a claim needs {least} fresh pairs"
        )
    return said


def _apart(bench: Workbench) -> float | None:
    """How far two speeds of the default lie apart; None: it has one, or is measured in turns.

    Where the machine has two speeds, all copies of a moment have the same.
    """
    if not bench.is_whole:
        return None
    moments = [[math.log(run.rate) for run in runs] for runs in bench.default_moments()]
    apart = two_states([value for values in moments for value in values])
    return None if move_together(moments) else apart
