"""How the time of a study is divided: written here, and nowhere else.

A budget is one number of seconds. Some of it stands beside the phases: the panel's part, that of
the smallest memory, that of the program behind a trace. The phases share the rest, one after
another, and each ends by a share of it. What a phase leaves, the next one may use.

Where a block takes long, shares alone would keep time back that nothing can use: so each phase has
a least, too, and the leasts come before the shares.

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
from dataclasses import dataclass

from hztune.errors import OutOfTime
from hztune.trial.workbench import Workbench

CALIBRATED_BY = 0.08
SEARCHED_BY = 0.52
PROVED_BY = 0.97
"""The shares of the phases' time by which each of them ends."""

PROOF_SHARE = 0.37
"""Part of it that the first proof of a study has for itself."""

NEXT_SEARCH = 0.45
"""Part of what is left that a further search gets, after a finalist was refused or none found."""

FRONT_SHARE = PROVED_BY - SEARCHED_BY
"""Part of the phases' time for the proofs of all members together."""

PANEL_SHARE = 0.08
"""Part of a budget that is reserved for the panel."""

PANEL_LEAST_S = 5.0
"""Seconds below which there is hardly time for three pairs on each of two workloads."""

SMALLEST_SHARE = 0.3
"""Part of a budget in which the smallest memory is sought, where it is."""

PROGRAM_SHARE = 0.35
"""Part of a budget that is kept for the program on whose trace is searched."""

COPIES = 4
"""Processes in an A/A block: two independent pairs."""

LEAST_BLOCKS = 2
"""Blocks of A/A pairs without which nothing is known of the noise."""

LEAST_SLOTS = 3
"""Candidates of the only block of a search: a study of fewer would hardly be one."""

FIRST_RUN = 1.5
"""A first run may take so many times as long as later ones: caches are cold."""

HEADROOM = 1.2
"""What a budget that would do has for blocks that take longer than expected."""


@dataclass(frozen=True, slots=True)
class Division:
    """How a budget is divided, seconds.

    Attributes:
        phases_s: What calibration, search and proof share.
        panel_s: The panel's; 0: there is none.
        smallest_s: In which the smallest memory is sought; 0: it is not.
        program_s: Of the program behind a trace; 0: there is none.
        part: What the phases would have of a larger budget, as a part of it.
    """

    phases_s: float
    panel_s: float
    smallest_s: float
    program_s: float
    part: float

    @classmethod
    def of(cls, budget_s: float, *, panel: bool, smallest: bool, program: bool) -> Division:
        """Divides a budget.

        Args:
            budget_s: All of it.
            panel: Whether a panel is wanted; there is one if its part is long enough.
            smallest: Whether the smallest memory is sought.
            program: Whether what is found is proved on a program.
        """
        panel_s, smallest_s, program_s = (
            share * budget_s * is_wanted
            for share, is_wanted in (
                (PANEL_SHARE, panel),
                (SMALLEST_SHARE, smallest),
                (PROGRAM_SHARE, program),
            )
        )
        part = 1.0 - (panel_s + smallest_s + program_s) / budget_s
        panel_s = panel_s if panel_s >= PANEL_LEAST_S else 0.0
        phases_s = budget_s - panel_s - smallest_s - program_s
        return cls(phases_s, panel_s, smallest_s, program_s, part)


def least_blocks(bench: Workbench) -> int:
    """Blocks of A/A pairs without which nothing is searched."""
    is_tight = _needed_s(bench, LEAST_BLOCKS) > bench.budget.left(PROVED_BY)
    return 1 if is_tight and bench.ledger.default_breaks_limit else LEAST_BLOCKS


def claim_s(bench: Workbench) -> float:
    """Least seconds of the fresh pairs of a claim."""
    return bench.least_pairs * _shortest_s(bench, 2)


def latest_search(bench: Workbench) -> float:
    """The share by which a search must end, so that there is time for the pairs of a claim."""
    return PROVED_BY - claim_s(bench) / bench.budget.total_s


class TooLittleTime(OutOfTime):
    """The budget holds no study; the text says which one would."""


def require_enough(bench: Workbench) -> None:
    """Sees to it that a study has time for what it needs at least.

    One that has searched already goes on with what is there.

    Raises:
        TooLittleTime: It has not.
    """
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
    raise TooLittleTime(
        f"the budget is too small: {first} of {LEAST_SLOTS} candidates and the "
        f"{bench.least_pairs} fresh pairs of a claim take about {needed_s:.0f} s here, and "
        f"{left_s:.0f} s are left for them; "
        f"--budget {enough_s(bench, needed_s)}s would do"
        + (", and so would a shorter run" if bench.is_whole else "")
    )


def no_time_for_claim(bench: Workbench, subject: str = "a claim") -> str:
    """What is told where something has no time left for a proof, in words."""
    return (
        f"no time was left for the {bench.least_pairs} fresh pairs of {subject}; "
        f"--budget {enough_s(bench, claim_s(bench))}s would do"
    )


def enough_s(bench: Workbench, needed_s: float) -> int:
    """A whole budget that has time for what was measured and so many seconds more."""
    phases_s = bench.budget.elapsed() + HEADROOM * needed_s
    return math.ceil(phases_s / (PROVED_BY * bench.budget.part))


def _calibrated(bench: Workbench) -> int:
    """Blocks of A/A pairs so far."""
    return sum(block.role == "aa" for block in bench.ledger.own_blocks())


def _needed_s(bench: Workbench, blocks: int) -> float:
    """Least seconds of what is left of a study with so many blocks of A/A pairs."""
    return (
        max(0, blocks - _calibrated(bench)) * _shortest_s(bench, COPIES)
        + _shortest_s(bench, 1 + LEAST_SLOTS)
        + claim_s(bench)
    )


def _shortest_s(bench: Workbench, arms: int) -> float:
    """Seconds of the shortest block of so many processes."""
    return bench.executor.cost(arms, bench.rounds(arms, 0.0))
