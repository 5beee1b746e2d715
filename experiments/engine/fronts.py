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
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from studies import recorded, share

from hztune.blocks import Arm
from hztune.progress import Reporter
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


COUNTED = {
    "proofs": "each told twice",
    "false_claims": "proofs of equals in which a member claims speed or memory",
    "speeds": "intervals of speed, in both tellings",
    "speeds_covered": "those that hold the true ratio",
    "memories": "intervals of memory",
    "memories_covered": "those that hold the true ratio",
    "faster": "proofs that claim the gain",
    "smaller": "proofs that claim the saving",
}


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
    bench = Workbench(executor, Ledger(), Budget(clock, budget_s), Reporter())
    calibrate(bench, CONTROL, CALIBRATED_BY)
    assess(bench, FRONT_SHARE * budget_s / len(MEMBERS), claim_error(0))
    clock.advance(bench.budget.left(SEARCHED_BY))
    return prove_front(bench, CONTROL, MEMBERS, PROVED_BY)


def counted(members: Sequence[Proof], truths: dict[Arm, Truth]) -> Counter[str]:
    """How many intervals there are, and how many hold the truth."""
    found, usual_kb = Counter[str](), Truth().rss_kb
    for member in members:
        true = truths.get(member.arm, Truth())
        memory = math.log(true.rss_kb / usual_kb)
        both = ("speeds", member.interval, true.log_ratio), ("memories", member.memory, memory)
        for key, each, truth in both:
            if each and math.isfinite(each.half_width):
                found[key] += 1
                found[f"{key}_covered"] += each.low <= truth <= each.high
    return found


def told_twice(seed: int, path: Path, budget_s: float, gain: float, saving: float) -> Counter[str]:
    """One proof of equals, and the same one where two members are better."""
    equals = proved(path, seed, budget_s, {})
    claimed = any(member.is_faster or member.is_saving for member in equals)
    truths = {
        MEMBERS[0]: Truth(gain),
        MEMBERS[1]: Truth(rss_kb=round(Truth().rss_kb * math.exp(-saving))),
    }
    better = proved(path, seed, budget_s, truths)
    found = Counter(proofs=1, false_claims=claimed)
    found.update(faster=better[0].is_faster, smaller=better[1].is_saving)
    return found + counted(equals, {}) + counted(better, truths)


SHARES = {
    "false claims": ("false_claims", "proofs"),
    "speed covered": ("speeds_covered", "speeds"),
    "memory covered": ("memories_covered", "memories"),
    "gain claimed": ("faster", "proofs"),
    "saving claimed": ("smaller", "proofs"),
}


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
    told = {"budget_s": options.budget, "gain": options.gain, "saving": options.saving}
    found = {}
    with ProcessPoolExecutor(options.jobs) as pool:
        for path in options.files:
            parts = pool.map(partial(told_twice, path=path, **told), range(options.count))
            found[path.stem] = sum(parts, Counter[str]())
    print(f"| noise | proofs | {' | '.join(SHARES)} |\n{'|---' * 7}|", file=sys.stderr)
    for name, each in (*found.items(), ("all", sum(found.values(), Counter[str]()))):
        cells = [name, str(each["proofs"])]
        cells += [share(each[part], each[whole]) for part, whole in SHARES.values()]
        print(f"| {' | '.join(cells)} |", file=sys.stderr)
    counts = {name: {key: each[key] for key in COUNTED} for name, each in found.items()}
    json.dump({"schema": 1, **told, "counts": counts}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
