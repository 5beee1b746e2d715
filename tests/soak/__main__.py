"""python -m tests.soak: runs the stages, each for its time, and keeps what they told.

A result is a line of RESULTS.jsonl as soon as its stage has ended; a stage that has one is not run
again. A run that failed leaves its output beside it, and its settings and seed in the result.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from tests.soak.running import built, run
from tests.soak.stages import STAGES, Settings, Stage

SEED = 20261123
SEEDS_A_RUN = 1_000_000  # a run may draw that many without meeting those of the next


def words_of(stage: Stage, out: Path) -> tuple[list[str], Settings]:
    """What a run of a stage is, and its settings."""
    if stage.is_pytest:
        words = [sys.executable, "-m", *stage.words, "-q", "-p", "no:cacheprovider"]
        return words, {"XDG_CACHE_HOME": str(out / "cache")}
    build = built(out, stage.flags)
    first, *others = (word.replace("{build}", str(build)) for word in stage.words)
    preload = {"LD_PRELOAD": str(build / "libhz.so"), "TEST_ALLOCATOR": "libhz.so"}
    return [str(build / first), *others], preload if stage.is_preloaded else {}


def settings_of(stage: Stage, number: int) -> Settings:
    """The configuration and the seed of a run."""
    chosen = stage.configurations[number % len(stage.configurations)]
    return {**chosen, **stage.long, "TEST_SEED": str(SEED + number * SEEDS_A_RUN)}


def soak(name: str, stage: Stage, out: Path, seconds: float) -> dict[str, Any]:
    """Runs a stage under each configuration in turn, with a new seed each time, for its time."""
    words, preload = words_of(stage, out)
    begun = time.monotonic()
    runs, failures = 0, []
    while runs == 0 or (time.monotonic() - begun < seconds and not stage.is_same):
        settings = {**preload, **settings_of(stage, runs)}
        log = out / f"{name}-{runs}.log"
        status = run(words, settings, log, 4 * 3600)
        if status == 0:
            log.unlink()
        else:
            failures.append({"status": status, "settings": settings, "log": str(log)})
        runs += 1
    took = round(time.monotonic() - begun)
    return {"stage": name, "goals": stage.goals, "runs": runs, "seconds": took, "failed": failures}


def keep(result: dict[str, Any], results: Path) -> None:
    with results.open("a") as file:
        file.write(json.dumps(result) + "\n")
    told = f"{result['stage']:14} {result['goals']:6} {result['runs']:6} runs"
    print(f"{told}  {len(result['failed'])} failed", flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("soak-results"))
    parser.add_argument("--minutes", type=float, default=60, help="for each stage")
    parser.add_argument("--stage", action="append", choices=sorted(STAGES), help="only this one")
    return parser.parse_args()


def main() -> int:
    asked = arguments()
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
