"""How often does `hztune verify` find out whether a claim is true?

    python experiments/engine/again.py [--count 4000]

Verifications of made-up pairs, with the truth known, judged by the code that judges a real one. No
process takes part: the same command gives the same counts.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Callable

import numpy as np

from hztune.blocks import Arm
from hztune.stats.intervals import LEAST_PLANNED, Looks, planned_looks
from hztune.stats.ratios import PairRatio
from hztune.study.ledger import ArmRecord
from hztune.verifying.claim import Promise, Verification, verification

SCATTER = 0.03
"""Standard deviation of a pair, log units."""

CLAIMED, LOW = math.log(1.08), math.log(1.05)
"""The claimed ratio and the lower end of its interval."""

ARM = Arm.of("hz", {"thp": "on"})
PROMISE = Promise(Arm("hz"), ARM, LOW, None, is_gain=True)

TRUTHS = {"no gain": 0.0, "half the lower end": 0.5 * LOW, "the lower end": LOW, "1.08": CLAIMED}
"""What is true; of the first two a claim that holds is wrong, of the others one that does not."""

Draw = Callable[[np.random.Generator, int], np.ndarray]
DRAWS: dict[str, Draw] = {
    "normal": lambda rng, pairs: rng.standard_normal(pairs),
    "heavy tails": lambda rng, pairs: rng.standard_t(3.0, pairs) / math.sqrt(3.0),
}


def verified(logs: list[float]) -> Verification:
    """What the first look says that can tell, or the last one."""
    for pairs in planned_looks(len(logs)):
        record = ArmRecord(ARM, [PairRatio(log, math.nan, 1) for log in logs[:pairs]])
        looks = Looks.due(pairs, LEAST_PLANNED, len(logs))
        found = verification(PROMISE, record, looks)
        if found.answer != "cannot tell":
            return found
    return found


def row(kind: str, planned: int, truth: float, count: int) -> list[str]:
    """Shares of the answers, of intervals that cover, and the pairs of one verification."""
    rng = np.random.default_rng([planned, round(1e6 * truth)])
    answers: Counter[str] = Counter()
    covered = pairs = 0
    for _ in range(count):
        found = verified((truth + SCATTER * DRAWS[kind](rng, planned)).tolist())
        answers[found.answer] += 1
        assert found.interval is not None
        covered += found.interval.low <= truth <= found.interval.high
        pairs += found.interval.pairs
    shares = [answers[each] / count for each in ("holds", "does not hold", "cannot tell")]
    return [
        *(f"{100 * share:.1f} %" for share in (*shares, covered / count)),
        f"{pairs / count:.1f}",
    ]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=4000, help="verifications of each row")
    options = parser.parse_args()
    heads = ("noise", "pairs planned", "truth", "holds", "does not hold", "cannot tell", "covered")
    print(f"| {' | '.join(heads)} | pairs |\n|{'---|' * (1 + len(heads))}")
    for kind in DRAWS:
        for planned in (10, 20, 40):
            for name, truth in TRUTHS.items():
                cells = [kind, str(planned), name, *row(kind, planned, truth, options.count)]
                print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
