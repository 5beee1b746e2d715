"""What `--max-loss` can show of a configuration that loses nothing, in simulated proofs.

    python experiments/engine/losses.py [--proofs 10000]

Each proof has fresh pairs on two workloads, and the noise that A/A pairs of the calibration say. It
is judged by the code that judges a study, at the error of a first claim. The table on stdout is the
one in `hztune.study.ledger.LossLimit`: how often each limit is shown to be kept.
"""

from __future__ import annotations

import argparse

import numpy as np

from hztune.blocks import Arm
from hztune.stats.intervals import Looks, planned_looks
from hztune.stats.ratios import PairRatio
from hztune.study.ledger import ArmRecord, Ledger
from hztune.study.limits import LossLimit
from hztune.study.proof import claim_error, limit_answer

ROWS = ((0.02, 10), (0.03, 15), (0.04, 15), (0.05, 20))
"""Standard deviation of a pair's log ratio, and how many pairs there are."""

LIMITS = ("1%", "2%", "3%", "4%", "5%", "6%")
WORKLOADS = 2
CALIBRATION_PAIRS = 15
ROUNDS = 30


def shares(deviation: float, pairs: int, proofs: int, seed: int = 1) -> list[float]:
    """The share of proofs that show of each of LIMITS that it is kept, by what is as fast.

    `deviation`: of a pair's log ratio. `pairs`: of each proof, all of them planned.
    """
    rng = np.random.default_rng(seed)

    def noise(count: int) -> list[list[PairRatio]]:
        """Pairs of equals on each workload."""
        drawn = rng.normal(0.0, deviation, (WORKLOADS, count)).tolist()
        return [[PairRatio(one, 0.0, ROUNDS) for one in part] for part in drawn]

    looks, limits = Looks(planned_looks(pairs), pairs), [LossLimit.of(text) for text in LIMITS]
    kept = np.zeros(len(LIMITS))
    for _ in range(proofs):
        aa, fresh = noise(CALIBRATION_PAIRS), noise(pairs)
        record = ArmRecord(Arm("hz"), each=fresh)
        for place, limit in enumerate(limits):
            ledger = Ledger(max_loss=limit)
            ledger.calibration.each = aa
            kept[place] += limit_answer(ledger, record, claim_error(0), looks, ROUNDS)[1] == "yes"
    return [float(share) for share in kept / proofs]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--proofs", type=int, default=10_000)
    proofs = parser.parse_args().proofs
    print(f"| SD of a pair | pairs | {' | '.join(LIMITS)} |\n|{'---|' * (2 + len(LIMITS))}")
    for deviation, pairs in ROWS:
        found = shares(deviation, pairs, proofs)
        print(f"| {deviation} | {pairs} | {' | '.join(f'{each:.0%}' for each in found)} |")


if __name__ == "__main__":
    main()
