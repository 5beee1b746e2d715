"""Do the proofs of fronts hold? Thousands of them on recorded noise, with the truth known.

    python experiments/engine/fronts.py experiments/engine/noise-*.json > results.json

Each proof is of five members that a search might have found, in the time that a study of `--budget`
seconds leaves it. It is told twice on the same noise: once where all members are equal to the
default, and once where the first is faster by `--gain` and the second takes `--saving` less memory.
Counted are proofs that claim anything where all are equal, whether the intervals of speed and of
memory hold the truth, and how often the gain and the saving are claimed.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path

from studies import recorded, share

from hztune.measure import Arm
from hztune.progress import Quiet
from hztune.stats.intervals import Interval
from hztune.study.bench import Budget, Workbench
from hztune.study.calibration import (
    CALIBRATED_BY,
    FRONT_SHARE,
    PROVED_BY,
    SEARCHED_BY,
    assess,
    calibrate,
)
from hztune.study.ledger import Ledger
from hztune.study.proof import Proof, claim_error, prove_front

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lab.replay import ReplayExecutor, Truth, VirtualClock

CONTROL = Arm("hz")
MEMBERS = tuple(Arm.of("hz", {"number": number}) for number in range(5))
SCATTER = 0.01
"""Of the log peak memory of equal processes."""


@dataclass(frozen=True)
class Counts:
    """What some proofs came to; counts of several parts add up.

    Attributes:
        proofs: Each told twice.
        false_claims: Proofs of equals in which a member claims speed or memory.
        speeds: Intervals of speed, in both tellings.
        speeds_covered: Those that hold the true ratio.
        memories: Intervals of memory.
        memories_covered: Those that hold the true ratio.
        faster: Proofs that claim the gain.
        smaller: Proofs that claim the saving.
    """

    proofs: int = 0
    false_claims: int = 0
    speeds: int = 0
    speeds_covered: int = 0
    memories: int = 0
    memories_covered: int = 0
    faster: int = 0
    smaller: int = 0

    def __add__(self, other: Counts) -> Counts:
        """What both parts came to."""
        names = [field.name for field in fields(self)]
        return Counts(*(getattr(self, name) + getattr(other, name) for name in names))


def proved(path: Path, seed: int, budget_s: float, truths: dict[Arm, Truth]) -> list[Proof]:
    """The proof of the members of one study."""
    clock = VirtualClock()
    executor = ReplayExecutor(
        lambda arm: truths.get(arm, Truth()),
        recorded(path),
        seed=seed,
        clock=clock,
        rss_scatter=SCATTER,
    )
    bench = Workbench(executor, Ledger(), Budget(clock, budget_s), Quiet())
    calibrate(bench, CONTROL, CALIBRATED_BY)
    calibration = assess(bench, FRONT_SHARE * budget_s / len(MEMBERS), claim_error(0))
    bench.calibrated(calibration.floor, calibration.least_pairs)
    clock.advance(bench.budget.left(SEARCHED_BY))
    return prove_front(bench, CONTROL, MEMBERS, PROVED_BY)


def counted(members: Sequence[Proof], truths: dict[Arm, Truth]) -> Counts:
    """How many intervals there are, and how many hold the truth."""

    def held(found: Iterator[tuple[Interval | None, float]]) -> tuple[int, int]:
        known = [(each, truth) for each, truth in found if each and math.isfinite(each.half_width)]
        return len(known), sum(each.low <= truth <= each.high for each, truth in known)

    each = [(member, truths.get(member.arm, Truth())) for member in members]
    speeds = held((member.interval, truth.log_ratio) for member, truth in each)
    usual_kb = Truth().rss_kb
    memories = held((one.memory, math.log(truth.rss_kb / usual_kb)) for one, truth in each)
    return Counts(
        speeds=speeds[0],
        speeds_covered=speeds[1],
        memories=memories[0],
        memories_covered=memories[1],
    )


def told_twice(seed: int, path: Path, budget_s: float, gain: float, saving: float) -> Counts:
    """One proof of equals, and the same one where two members are better."""
    equals = proved(path, seed, budget_s, {})
    claimed = any(member.is_faster or member.is_saving for member in equals)
    truths = {
        MEMBERS[0]: Truth(gain),
        MEMBERS[1]: Truth(rss_kb=round(Truth().rss_kb * math.exp(-saving))),
    }
    better = proved(path, seed, budget_s, truths)
    found = Counts(1, claimed, faster=better[0].is_faster, smaller=better[1].is_saving)
    return found + counted(equals, {}) + counted(better, truths)


def row(name: str, found: Counts) -> str:
    """A line of the table."""
    cells = (
        name,
        str(found.proofs),
        share(found.false_claims, found.proofs),
        share(found.speeds_covered, found.speeds),
        share(found.memories_covered, found.memories),
        share(found.faster, found.proofs),
        share(found.smaller, found.proofs),
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Tells the proofs that were asked for; a table for people, JSON for programs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, help="recordings")
    parser.add_argument("--count", type=int, default=200, help="proofs on each recording")
    parser.add_argument("--budget", type=float, default=180.0, help="seconds of a study")
    parser.add_argument("--gain", type=float, default=0.1, help="log gain of the first member")
    parser.add_argument("--saving", type=float, default=0.02, help="log saving of the second")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    options = parser.parse_args()
    found = {}
    with ProcessPoolExecutor(options.jobs) as pool:
        for path in options.files:
            one = partial(
                told_twice,
                path=path,
                budget_s=options.budget,
                gain=options.gain,
                saving=options.saving,
            )
            parts = pool.map(one, range(options.count), chunksize=8)
            found[path.stem] = sum(parts, Counts())
    print(
        "| noise | proofs | false claims | speed covered | memory covered | gain claimed "
        "| saving claimed |\n|---|---|---|---|---|---|---|",
        file=sys.stderr,
    )
    for name, each in (*found.items(), ("all", sum(found.values(), Counts()))):
        print(row(name, each), file=sys.stderr)
    counts = {name: asdict(each) for name, each in found.items()}
    told = {"budget_s": options.budget, "gain": options.gain, "saving": options.saving}
    json.dump({"schema": 1, **told, "counts": counts}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
