"""Spoil traces on purpose, and measure them: does the check name them?

    unfaithful.py --folder hztune-results/traces     after record.py, with the traces that it made
    unfaithful.py --spoil                            only make them, in the same folder
    unfaithful.py --shape                            only compare them with a second recording again

Each spoiled trace is measured beside what record.py measured of its program, and goes into
unfaithful.json as soon as it is. What the check says of them: tests/tuner/test_fidelity.py.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from record import CASES

from hztune import api
from hztune.compare.contenders import parse
from hztune.compare.match import Measured
from hztune.fidelity import check
from hztune.fidelity.readings import readings_of
from hztune.fidelity.second_recording import strange
from hztune.progress import Plain
from hztune.trace import tool

HERE = Path(__file__).resolve().parent
CHECKS = HERE / "checks.json"
UNFAITHFUL = HERE / "unfaithful.json"
PAGE = 4096

Line = list[str]
"""thread ns operation block size alignment, as in core/trace/README.md."""

STEPS = {"spawn", "join", "touch"}


def is_end(line: Line) -> bool:
    """Whether the operation ends a block."""
    return line[2].startswith(("free", "delete"))


def gives(line: Line) -> bool:
    """Whether it makes a block; realloc changes one."""
    return line[2] not in STEPS and line[2] != "realloc" and not is_end(line)


def untouched(lines: Sequence[Line]) -> Iterator[Line]:
    """No block is touched."""
    for line in lines:
        if line[2] != "touch":
            yield line
        if gives(line) or line[2] == "realloc":
            yield [line[0], line[1], "touch", line[3], "0"]


def merged(lines: Sequence[Line]) -> Iterator[Line]:
    """One thread does the work of all."""
    return (["0", *line[1:]] for line in lines if line[2] not in ("spawn", "join"))


def own(lines: Sequence[Line]) -> Iterator[Line]:
    """Each thread frees its own blocks."""
    owners: dict[str, str] = {}
    for line in lines:
        if line[2] not in STEPS and not is_end(line):
            owners.setdefault(line[3], line[0])
        yield [owners.pop(line[3], line[0]), *line[1:]] if is_end(line) else line


def late(lines: Sequence[Line]) -> Iterator[Line]:
    """All blocks are freed at the end."""
    yield from (line for line in lines if not is_end(line))
    yield from ([line[0], lines[-1][1], *line[2:]] for line in lines if is_end(line))


def early(lines: Sequence[Line]) -> Iterator[Line]:
    """Each block is freed as soon as it is there."""
    for line in lines:
        if gives(line):
            yield line
            yield [line[0], line[1], "free", line[3]]
        elif line[2] in ("spawn", "join"):
            yield line


def halved(lines: Sequence[Line]) -> Iterator[Line]:
    """Every second block is left out."""
    return (line for line in lines if line[2] in ("spawn", "join") or int(line[3]) % 2)


def rounded(lines: Sequence[Line]) -> Iterator[Line]:
    """Sizes are whole pages."""
    return (_sized(line, lambda size: -(-size // PAGE) * PAGE) for line in lines)


def tiny(lines: Sequence[Line]) -> Iterator[Line]:
    """Every block has 16 bytes."""
    return (_sized(line, lambda size: 16) for line in lines if line[2] != "touch")


def shuffled(lines: Sequence[Line]) -> Iterator[Line]:
    """The sizes are those of other blocks."""
    sizes = [line[4] for line in lines if gives(line)]
    random.Random(1).shuffle(sizes)
    rest = iter(sizes)
    for line in lines:
        if line[2] != "touch":
            yield [*line[:4], next(rest), *line[5:]] if gives(line) else line


def twice(lines: Sequence[Line]) -> Iterator[Line]:
    """Everything is done a second time."""
    most = 1 + max(int(line[3]) for line in lines)
    yield from lines
    for line in lines:
        if line[2] not in ("spawn", "join"):
            yield [*line[:3], str(int(line[3]) + most), *line[4:]]


def _sized(line: Line, change: Callable[[int], int]) -> Line:
    """The line with another size, where it has one."""
    if line[2] in STEPS or len(line) < 5:
        return line
    return [*line[:4], str(change(int(line[4]))), *line[5:]]


HOWS = {
    each.__name__: each
    for each in (untouched, merged, own, late, early, halved, rounded, tiny, shuffled, twice)
}
SPOILED = (
    ("messages", "merged"), ("messages", "own"), ("messages", "untouched"), ("messages", "late"),
    ("python", "rounded"), ("python", "early"), ("python", "halved"), ("python", "shuffled"),
    ("lua", "tiny"), ("sqlite", "untouched"),
)  # fmt: skip


def spoil(trace: Path, how: str, folder: Path) -> Path:
    """Writes a trace that is unfaithful in one way, unless it is there."""
    text, spoiled = folder / "spoiled.txt", folder / f"{trace.stem}-{how}.hzt"
    if spoiled.is_file():
        return spoiled
    tool.convert(trace, text, "text")
    rows = [row.split() for row in text.read_text().splitlines() if not row.startswith("#")]
    text.write_text("".join(" ".join(row) + "\n" for row in HOWS[how](rows)))
    tool.convert(text, spoiled, "trace")
    text.unlink()
    return spoiled


def measure(name: str, how: str, folder: Path, budget_s: float) -> dict[str, Any]:
    """Spoils and measures one; the program's part is that of record.py."""
    good = next(row for row in json.loads(CHECKS.read_text()) if row["name"] == name)
    trace = folder / f"{name}.hzt"
    spoiled = spoil(trace, how, folder)
    sides = parse(good["contenders"])
    asked = check.Asked(
        check.found_trace(spoiled), api.program(["true"]), sides, None, budget_s, 1, False, None
    )
    told = tool.describe(spoiled)
    rows = check.of_trace(asked, budget_s, Plain(sys.stderr))
    seen = [readings_of(row.blocks)[0] for row in rows]
    program = good["measured"]["program"]
    scaled = [
        {**asdict(each), "seconds": _seconds(row, asked) if program["seconds"] else 0.0}
        for each, row in zip(seen, rows, strict=True)
    ]
    return {
        "name": name,
        "how": how,
        "contenders": good["contenders"],
        "program": program,
        "trace": scaled[0],
        "single": scaled[1],
        "live_mb": told["peak_bytes"] / (1 << 20),
        "strange": shape_of(name, told, folder),
    }


def shape_of(name: str, told: Mapping[str, Any], folder: Path) -> list[str]:
    """What is not alike in a second recording of the program."""
    case = next(case for case in CASES if case.name == name)
    os.environ.update(case.variables)
    program = api.program(case.words(folder))
    return [*strange(told, check.recorded_again(program, has_touch=told["has_touch"]))]


def _seconds(row: Measured, asked: check.Asked) -> float:
    """Of a round."""
    return float(asked.trace.calls / median(b.control.ops_per_s for b in row.blocks))


def main(words: Sequence[str] | None = None) -> int:
    """Spoil and measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("hztune-results/traces"))
    parser.add_argument("--budget", type=float, default=40.0, help="seconds of each")
    parser.add_argument("--only", type=int, nargs="+", default=range(len(SPOILED)))
    parser.add_argument("--spoil", action="store_true", help="only make the spoiled traces")
    parser.add_argument("--shape", action="store_true", help="only record again")
    asked = parser.parse_args(words)
    folder = asked.folder.resolve()
    for name, how in SPOILED if asked.spoil else ():
        spoil(folder / f"{name}.hzt", how, folder)
    if asked.spoil:
        return 0
    known = json.loads(UNFAITHFUL.read_text()) if UNFAITHFUL.is_file() else []
    rows = {(row["name"], row["how"]): row for row in known}
    for number in asked.only:
        name, how = SPOILED[number]
        if asked.shape:
            told = tool.describe(folder / f"{name}-{how}.hzt")
            rows[name, how]["strange"] = shape_of(name, told, folder)
        else:
            rows[name, how] = measure(name, how, folder, asked.budget)
        ordered = [json.dumps(rows[each]) for each in SPOILED if each in rows]
        UNFAITHFUL.write_text("[\n" + ",\n".join(ordered) + "\n]\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
