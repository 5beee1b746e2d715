"""The history of profiles as a picture: what each check found, beside what was claimed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from hztune.compare import plot
from hztune.compare.standings import Standing, Standings
from hztune.stats import Interval
from hztune.verify.history import RatioRange, Recheck

_CONTROL = "the control"


def write(checks: Sequence[Recheck], path: Path) -> None:
    """Draws checks into a file, the profiles one after the other.

    Raises:
        HztuneError: The file system refused.
    """
    ordered = sorted(checks, key=lambda check: (check.label, check.profile, check.at))
    plot.write([_row(check) for check in ordered if check.found is not None], path)


def _row(check: Recheck) -> Standings:
    """A check as a row of a comparison: the claim and what was found, beside the control."""
    others = [("claimed", check.claimed, 0), ("measured again", check.found, check.pairs)]
    return Standings(
        label=f"{check.at[:10]}  {check.label}",
        all=(_standing(_CONTROL, None, 0), *(_standing(*other) for other in others)),
        best="",
        lead=None,
        frugality=None,
    )


def _standing(name: str, measured: RatioRange | None, pairs: int) -> Standing:
    speed = None
    if measured is not None:
        ratio, low, high = map(math.log, (measured.ratio, measured.ci_low, measured.ci_high))
        speed = Interval(ratio, low, high, pairs)
    return Standing(name, 0.0, 0.0, speed, None)
