"""Is `hztune compare --no-more-memory 5%` right about programs that take more by a known share?

gate.py [--runs 10] [--equals 40]      a planted 3, 5 and 8 %, then equals; a line for each
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections import Counter
from statistics import median

TAKES = """
import random, resource, sys
taken_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
kib = 48 * 1024 * (1 + float(sys.argv[1]) / 100) * random.gauss(1, 0.01) - taken_kib
kept = [bytes(1024 * random.randrange(1, 17)) for _ in range(round(kib / 9))]
"""
"""A Python that takes some 48 MiB: the peaks of equals scatter by 1 to 2 %."""

ANSWERS = {0: "no worse", 4: "worse", 6: "not enough data"}


def answer(percent: float, seed: int) -> tuple[str, float]:
    """What the gate says of a program that takes so much more, and after how many seconds."""
    began = time.monotonic()
    contenders = [f"{name}=env -- {sys.executable} -c '{TAKES}' {more}"
                  for name, more in (("OLD", 0), ("NEW", percent))]  # fmt: skip
    gate = ["--no-more-memory", "5%", "--budget", "45s", "--seed", str(seed), "--quiet"]
    words = [sys.executable, "-m", "hztune", "compare", *contenders, *gate, "--", "{}"]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    if ended.returncode not in ANSWERS:
        raise SystemExit(ended.stderr)
    return ANSWERS[ended.returncode], time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--equals", type=int, default=40)
    asked = parser.parse_args()
    for percent, runs in ((3, asked.runs), (5, asked.runs), (8, asked.runs), (0, asked.equals)):
        found = [answer(percent, seed) for seed in range(runs)]
        told = ", ".join(f"{each} {count}" for each, count in Counter(a for a, _ in found).items())
        seconds = [each for _, each in found]
        print(f"{percent} % more: {told}; seconds: median {median(seconds):.0f}, "
              f"most {max(seconds):.0f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
