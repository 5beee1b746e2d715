"""Do verdicts hold on a real machine? Whole studies in which every candidate is the default.

    python experiments/engine/equals.py [--studies 20] [--budget 45] > equals.json

A study searches and proves as always, but under the name of whatever it proposes the default is
measured, in processes of its own. So every claim of a gain is a false one. The workloads take
turns; the machine should be quiet. A study that has ended stays, if the rest is interrupted.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from record import WORKLOADS, by_turns

from hztune.blocks import Arm, Block, Role
from hztune.machine import Machine
from hztune.measure import Around
from hztune.progress import Reporter
from hztune.study.bench import Budget, Workbench, system_clock
from hztune.study.ledger import Ledger, interval_of
from hztune.tuning.candidates import TuneTarget, candidates
from hztune.tuning.story import Winner


class Equals(Around):
    """Measures the default, whatever arm it is asked for."""

    def measure(self, arms: Sequence[Arm], *, role: Role, rounds: int, number: int) -> Block:
        """A block of defaults, under the names of the arms."""
        same = [Arm("hz")] * len(arms)
        block = self.inner.measure(same, role=role, rounds=rounds, number=number)
        named = zip(block.outcomes, arms, strict=True)
        return replace(block, outcomes=tuple(replace(outcome, arm=arm) for outcome, arm in named))


def study(name: str, seed: int, budget_s: float) -> dict[str, Any]:
    """One study, and what it came to."""
    spec, inner = by_turns(name, seed, Machine.here())
    bench = Workbench(Equals(inner), Ledger(), Budget(system_clock, budget_s), Reporter())
    whole = Winner(bench, candidates(["hz"], "", TuneTarget(spec.threads)).space, seed)
    decision = whole.run()
    if decision.verdict == "interrupted" or whole.calibration is None:
        raise KeyboardInterrupt
    records = bench.ledger.fresh_by_arm.values()
    proofs = filter(None, (interval_of(record.log_ratios) for record in records))
    return {
        "noise": name,
        "seed": seed,
        "verdict": decision.verdict,
        "trials": len(bench.ledger.searched),
        "least_gain": round(math.expm1(whole.calibration.detectable), 4),
        "proofs": [[round(math.exp(x), 4) for x in (p.low, p.estimate, p.high)] for p in proofs],
    }


def main() -> None:
    """Tells the studies, one line for each; JSON at the end or at an interruption."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--studies", type=int, default=20)
    parser.add_argument("--budget", type=float, default=45.0, help="seconds of a study")
    parser.add_argument("names", nargs="*", default=list(WORKLOADS), metavar="NAME")
    options = parser.parse_args()
    found: list[dict[str, Any]] = []
    try:
        for seed in range(options.studies):
            one = study(options.names[seed % len(options.names)], seed, options.budget)
            found.append(one)
            print(json.dumps(one), file=sys.stderr)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
    machine = asdict(Machine.here())
    head = {"schema": 1, "machine": machine, "budget_s": options.budget}
    json.dump({**head, "studies": found}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
