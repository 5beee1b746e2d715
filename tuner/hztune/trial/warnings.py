"""Targets of which few runs prove little: very short ones, and those with two speeds."""

from __future__ import annotations

from hztune.progress import percent
from hztune.trial.bench import SHORT_S, Bench
from hztune.trial.calibration import Calibration


def warnings_about(bench: Bench, calibration: Calibration) -> list[str]:
    """What to tell the user after the calibration, a sentence each; empty: nothing."""
    said = []
    seconds = bench.run_s() if bench.is_whole else None
    if seconds is not None and seconds < SHORT_S:
        said.append(
            f"warning: a run takes only {1e3 * seconds:.0f} ms, and much of that is the start of "
            f"the program; {bench.repeats()} runs are taken for each measurement, and a longer "
            "input would show more"
        )
    if calibration.apart is not None:
        said.append(
            "warning: runs of the same program fall into two groups, "
            f"{percent(calibration.apart, sign=False)} apart; a claim needs "
            f"{calibration.least_pairs} fresh pairs"
        )
    return said
