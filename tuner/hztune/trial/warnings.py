"""Targets of which few runs prove little: very short ones, and those with two speeds."""

from __future__ import annotations

import math

from hztune.progress import percent
from hztune.stats import two_states
from hztune.trial.bench import SHORT_S, Bench

BISTABLE_PAIRS = 20
"""Fresh pairs that a claim needs where the default itself has two speeds."""


def warnings_about(bench: Bench) -> list[str]:
    """What to tell the user after the calibration, a sentence each; empty: nothing.

    Where the default has two speeds, claims are made to need more pairs from now on.
    """
    if not bench.is_whole:
        return []
    said = []
    seconds = bench.run_s()
    if seconds is not None and seconds < SHORT_S:
        said.append(
            f"warning: a run takes only {1e3 * seconds:.0f} ms, and much of that is the start of "
            f"the program; {bench.repeats()} runs are taken for each measurement, and a longer "
            "input would show more"
        )
    distance = two_states([math.log(run.rate) for run in bench.default_runs()])
    if distance is not None:
        bench.least_pairs = BISTABLE_PAIRS
        said.append(
            f"warning: runs of the same program fall into two groups, "
            f"{percent(distance, sign=False)} apart; a claim needs {BISTABLE_PAIRS} fresh pairs"
        )
    return said
