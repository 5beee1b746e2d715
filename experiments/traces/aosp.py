"""Makes plain text of a trace of Android's memory_replay, text or zip.

aosp.py systemui.zip > systemui.txt && hztune trace convert systemui.txt -o systemui.trace
"""

from __future__ import annotations

import io
import sys
import zipfile
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path

ARGUMENTS = {"malloc": 1, "calloc": 2, "memalign": 2, "realloc": 2, "free": 0}
"""Numbers behind the address; behind those may stand when the call began and ended, in ns."""


def plain(lines: Iterable[str]) -> Iterator[str]:
    """The lines of plain text (core/trace/README.md) for lines such as `12: malloc 0x1000 16`."""
    blocks: dict[int, int] = {}
    numbers, latest = count(1), 0
    for line in lines:
        tid, kind, at, *rest = line.split()
        if kind == "thread_done":
            continue
        address, arguments = int(at, 16), [int(word, 0) for word in rest]
        own, times = arguments[: ARGUMENTS[kind]], arguments[ARGUMENTS[kind] :]
        latest = max([latest, *(times[:1] if kind == "free" else times[1:])])
        head = f"{tid.rstrip(':')} {latest}"
        if kind in ("free", "realloc"):
            block = blocks.pop(address if kind == "free" else own[0], None)
            if address and kind == "realloc":
                blocks[address] = next(numbers) if block is None else block
                verb = "malloc" if block is None else "realloc"
                yield f"{head} {verb} {blocks[address]} {own[1]}"
            elif block is not None:
                yield f"{head} free {block}"
        elif address:
            blocks[address] = next(numbers)
            size = own[0] * own[1] if kind == "calloc" else own[-1]
            align = f" {own[0]}" if kind == "memalign" else ""
            yield f"{head} {kind} {blocks[address]} {size}{align}"


def main() -> None:
    path = Path(sys.argv[1])
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as packed:
            print("#", *plain(io.TextIOWrapper(packed)), sep="\n")
    else:
        with path.open() as text:
            print("#", *plain(text), sep="\n")


if __name__ == "__main__":
    main()
