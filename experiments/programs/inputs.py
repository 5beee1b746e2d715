"""The inputs that the programs read: all of them are made here, the same every time."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

FUNCTIONS = 10
"""Functions of the C that the compilers get."""

PIGEONS = 10
"""Of the problem that the solver gets: with each one more it takes several times as long."""

_RECORDS = 12_000
_MULTIPLIERS = 6
_CUBES = 200
_BODIES = 30_000


def write(work: Path, functions: int = FUNCTIONS, pigeons: int = PIGEONS) -> None:
    """Writes every input into `work`."""
    for name, lines in {
        "large.c": large_source(functions),
        "pigeons.smt2": pigeon_holes(pigeons),
        "small": (f"{number} {number * number % 9973}\n" for number in range(10_000)),
        "records.json": records(_RECORDS),
        "logic.v": multipliers(_MULTIPLIERS),
        "cover.pla": cubes(_CUBES),
        "bodies": bodies(_BODIES),
    }.items():
        (work / name).write_text("".join(lines))


def large_source(functions: int) -> Iterator[str]:
    """C that gives an optimiser much to allocate: functions full of branches and loops."""
    yield "#include <stdint.h>\n"
    for number in range(functions):
        yield f"uint64_t f{number}(uint64_t x, const uint32_t *p)\n{{\n"
        for step in range(60):
            yield f"    if (x % {step + 3} == {number % (step + 3)})\n"
            yield f"        for (unsigned i = 0; i < {step + 2}; i++)\n"
            yield f"            x += p[(x + i) & 255] ^ {step};\n"
            yield f"    else\n        x = (x << {step % 13 + 1}) ^ (x >> {step % 7 + 1});\n"
        yield "    return x;\n}\n"


def pigeon_holes(count: int) -> Iterator[str]:
    """SMT-LIB that a solver must refute by trying: `count` pigeons, a hole less."""
    holes = range(count - 1)
    for pigeon in range(count):
        for hole in holes:
            yield f"(declare-const p{pigeon}h{hole} Bool)\n"
        yield f"(assert (or {' '.join(f'p{pigeon}h{hole}' for hole in holes)}))\n"
    for hole in holes:
        for one in range(count):
            for other in range(one):
                yield f"(assert (not (and p{one}h{hole} p{other}h{hole})))\n"
    yield "(check-sat)\n"


def records(count: int) -> Iterator[str]:
    """JSON of small objects, one array."""
    dice = random.Random(7)
    for number in range(count):
        row = {"id": number, "group": f"group-{dice.randrange(500)}", "value": dice.random()}
        yield f"{'[' if number == 0 else ','}{json.dumps(row)}\n"
    yield "]\n"


def multipliers(count: int) -> Iterator[str]:
    """Verilog whose products become many gates."""
    for number in range(count):
        width = 8 + number
        yield f"module product{number}(input clk, input [{width - 1}:0] a, b,\n"
        yield f"    output reg [{2 * width - 1}:0] y);\n"
        yield f"  always @(posedge clk) y <= a * b + (y ^ {number + 3});\nendmodule\n"


def cubes(count: int) -> Iterator[str]:
    """A two-level function of 12 inputs and 12 outputs for a minimiser."""
    dice = random.Random(7)
    yield ".i 12\n.o 12\n"
    for _ in range(count):
        left = "".join(dice.choice("01-") for _ in range(12))
        right = "".join(dice.choice("01") for _ in range(12))
        yield f"{left} {right}\n"
    yield ".e\n"


def bodies(count: int) -> Iterator[str]:
    """What a simulation of gravity asks for: bodies, seed, and what the suite gives."""
    for answer in ("", count, 123, "", 0.025, 0.05, 1.0, 2.0, 5.0, 0.075, 0.25, 1):
        yield f"{answer}\n"
