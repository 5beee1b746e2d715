"""Count the instructions of one malloc+free pair on the hit path, for any preloadable allocator.

Each figure is the difference of two runs of the program ``pair`` under valgrind's callgrind (N and
2N rounds, so that start-up and first refills fall out), less the same difference for a loop of
empty functions (so that the loop falls out). It is deterministic: no clock is read, and a busy
machine does not change it.

    run.py --pair BUILD/tests/pair --library hz=BUILD/libhz.so
    run.py --pair BUILD/tests/pair --library hz=BUILD/libhz.so --set HZ_MAGAZINE_CAP=64 --depth 1
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SIZES = (16, 64, 256, 2000, 4096, 32768)
EMPTY_CALLS = 3  # instructions of pair.c's empty functions: lea and ret, and ret
PAIRS_A_RUN = 20_000  # start-up differs by a few instructions a run: this leaves hundredths
COLLECTED = re.compile(r"Collected : (\d+)")


class CountError(Exception):
    """A run that gave no count; the message says which one and why."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What stays the same from count to count."""

    pair: Path
    depth: int
    variables: tuple[tuple[str, str], ...]

    @property
    def rounds(self) -> int:
        """Rounds of the shorter run."""
        return max(1, PAIRS_A_RUN // self.depth)


def collected(setup: Setup, library: str, mode: str, size: int, rounds: int) -> int:
    """Instructions of one whole run of ``pair``, start-up included."""
    words = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    words += [str(setup.pair), mode, str(size), str(setup.depth), str(rounds)]
    environment = {**os.environ, **dict(setup.variables), "LD_PRELOAD": library}
    try:
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise CountError("valgrind is not installed (Debian's package: valgrind)") from error
    match = COLLECTED.search(done.stderr)
    if done.returncode != 0 or match is None or "cannot be preloaded" in done.stderr:
        said = [line for line in done.stderr.splitlines() if line and not line.startswith("==")]
        why = said[0] if said else f"exit status {done.returncode}"
        raise CountError(f"{library or 'glibc'} gave no count under valgrind: {why}")
    return int(match.group(1))


def slope(setup: Setup, library: str, mode: str, size: int) -> float:
    """Instructions per pair, loop included."""
    rounds = setup.rounds
    once = collected(setup, library, mode, size, rounds)
    twice = collected(setup, library, mode, size, 2 * rounds)
    return (twice - once) / (rounds * setup.depth)


def count(setup: Setup, library: str, sizes: tuple[int, ...] = SIZES) -> dict[int, float]:
    """Instructions per malloc+free pair for each size in bytes, loop removed."""
    loop = slope(setup, library, "none", 16) - EMPTY_CALLS
    return {size: round(slope(setup, library, "call", size) - loop, 1) for size in sizes}


def assignment(text: str) -> tuple[str, str]:
    """Split ``KEY=VALUE``."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"got {text!r}; KEY=VALUE is needed")
    return key, value


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--pair", type=Path, required=True, help="the program built from tests/core/pair.c")
    many: dict[str, Any] = {"type": assignment, "action": "append", "default": []}
    add("--library", **many, metavar="NAME=PATH", help="an allocator to preload; repeatable")
    add("--set", **many, metavar="NAME=VALUE", help="an environment variable for every run")
    add("--depth", type=int, default=100, help="blocks live at once, up to 4096; default 100")
    add("--size", type=int, action="append", help="bytes; repeatable; default: a fixed list")
    add("--json", action="store_true", help="one JSON object instead of a table")
    return parser.parse_args()


def main() -> int:
    """Count each library and print the table, row by row; 1 when a library could not be counted."""
    asked = arguments()
    status = 0
    setup = Setup(asked.pair, asked.depth, tuple(asked.set))
    sizes = tuple(asked.size or SIZES)
    table: dict[str, dict[int, float]] = {}
    if not asked.json:
        print(f"{'depth ' + str(setup.depth):12}" + "".join(f"{size:>9} B" for size in sizes))
    for name, library in [*asked.library, ("glibc", "")]:
        try:
            table[name] = count(setup, library, sizes)
        except CountError as error:
            print(f"{name}: {error}", file=sys.stderr)
            status = 1
            continue
        if not asked.json:
            row = "".join(f"{table[name][size]:>11.1f}" for size in sizes)
            print(f"{name:12}{row}", flush=True)
    if asked.json:
        print(json.dumps({"depth": setup.depth, "pairs": table}))
    return status


if __name__ == "__main__":
    sys.exit(main())
