"""python -m tests.soak: runs the stages, each for its time, and keeps what they told.

A result is a line of RESULTS.jsonl as soon as its stage has ended; a stage that has one is not run
again. A run that failed leaves its output beside it, and its settings and seed in the result.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from hztune import process

ROOT = Path(__file__).parents[2]
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
DEADLINE_S = 4 * 3600
SEED = 20261123
SEEDS_A_RUN = 1_000_000  # a run may draw that many without meeting those of the next

# Of each stage: its name and its goals (README.md), the tests that pytest runs, and what makes each
# of its runs long; of those that end in SAME every run does the same, so that one is enough.
TABLE = """
sizes A2 | tests/core/test_core.py -k 'checks_hold and api' | TEST_CALLS=1000000
shadow A3,A4 | tests/core/test_core.py -k settings_are_in_effect | TEST_ROUNDS=80
fuzz A3,S5 | tests/fuzz | TEST_MORE=20
liveness A4 | tests/core/test_liveness.py -k no_claim_survives | TEST_MORE=2 SAME
threads A5 | tests/core/test_core.py -k 'no_report_of and thread' | TEST_ROUNDS=6
memory A5 | tests/core/test_core.py -k 'no_report_of and address' | TEST_ROUNDS=12
model A6 | tests/model -k 'not in_random_orders' | HZ_MODEL_MORE=1 SAME
orders A6 | tests/model -k in_random_orders | HZ_MODEL_MORE=1
churn A7 | tests/core/test_core.py -k 'checks_hold and threads' | TEST_THREADS_TOTAL=100000
consumer A8 | tests/core/test_core.py -k 'checks_hold and frugal' | TEST_BLOCKS=8000000
fork A9 | tests/core/test_core.py -k 'checks_hold and forks' | TEST_FORKS=500
faults A10 | tests/core/test_core.py -k 'checks_hold and faults' | TEST_FAULT_POINTS=40
limits A11 | tests/core/test_core.py -k 'checks_hold and limits' |
late A12 | tests/core/test_core.py -k loaded_late |
programs A13 | tests/core/test_programs.py | TEST_MORE=10
frees S1 | tests/core/test_core.py -k double_free |
invalid S1 | tests/core/test_core.py -k 'checks_hold and offences' | TEST_CASES_ROUNDS=5
hardened S2 | tests/core/test_core.py -k 'offences and HARDENING' |
environment S4 | tests/core/test_environment.py | SAME
recording R1 | tests/trace/test_record.py -k none_is_lost | TEST_MORE=100 SAME
kills T1 | tests/tuner/test_samples.py -k killed_writers | TEST_MORE=4
"""


class Stage(NamedTuple):
    """One kind of run."""

    goals: list[str]
    words: list[str]
    long: dict[str, str]
    is_same: bool

    @staticmethod
    def read(line: str) -> tuple[str, Stage]:
        head, tests, long = line.split("|")
        name, goals = head.split()
        *settings, last = ["", *long.split()]
        is_same = last == "SAME"
        pairs = dict(each.split("=") for each in [*settings, "" if is_same else last] if each)
        return name, Stage(goals.split(","), shlex.split(tests), pairs, is_same)


STAGES = dict(map(Stage.read, TABLE.strip().splitlines()))


def settings_of(stage: Stage, number: int) -> dict[str, str]:
    """What makes a run long, and its seed."""
    return {**stage.long, "TEST_SEED": str(SEED + number * SEEDS_A_RUN)}


def soak(name: str, stage: Stage, out: Path, seconds: float) -> dict[str, Any]:
    """Runs a stage with a new seed each time, for its time."""
    begun = time.monotonic()
    runs, failures = 0, []
    while runs == 0 or (time.monotonic() - begun < seconds and not stage.is_same):
        settings = {**settings_of(stage, runs), "XDG_CACHE_HOME": str(out / "cache")}
        own = {**os.environ, **settings}
        done = process.run([*PYTEST, *stage.words], env=own, cwd=ROOT, deadline_s=DEADLINE_S)
        if not done.ok:
            log = out / f"{name}-{runs}.log"
            log.write_text(done.stdout + done.stderr)
            failures.append({"status": done.code, "settings": settings, "log": str(log)})
        runs += 1
    took = round(time.monotonic() - begun)
    return {"stage": name, "goals": stage.goals, "runs": runs, "seconds": took, "failed": failures}


def keep(result: dict[str, Any], results: Path) -> None:
    with results.open("a") as file:
        file.write(json.dumps(result) + "\n")
    told = f"{result['stage']:14} {','.join(result['goals']):6} {result['runs']:6} runs"
    print(f"{told}  {len(result['failed'])} failed", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("soak-results"))
    parser.add_argument("--minutes", type=float, default=60, help="for each stage")
    parser.add_argument("--stage", action="append", choices=sorted(STAGES), help="only this one")
    asked = parser.parse_args()
    out = asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    results = out / "RESULTS.jsonl"
    lines = results.read_text().splitlines() if results.exists() else []
    done = {json.loads(line)["stage"] for line in lines}
    try:
        for name in asked.stage or STAGES:
            if name not in done:
                keep(soak(name, STAGES[name], out, 60 * asked.minutes), results)
    except KeyboardInterrupt:
        return 130
    return int(any(json.loads(line)["failed"] for line in results.read_text().splitlines()))


if __name__ == "__main__":
    sys.exit(main())
