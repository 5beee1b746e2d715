"""Two groups of units, drawn at random within strata; and how a fleet is told of them."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Literal, NamedTuple

from hztune import files
from hztune.errors import UsageError

GroupForm = Literal["csv", "kubectl", "ansible", "shell"]

_MOST_BYTES = 1 << 22
_UNIT = re.compile(r"[A-Za-z0-9_.:/@][A-Za-z0-9_.:/@+-]{0,252}")
_GROUPS = ("control", "treated")


class FleetUnit(NamedTuple):
    """A process, pod or host, by the name that it has in the rows."""

    name: str
    is_treated: bool
    stratum: str  # those of one machine type are compared with one another


def _lines_of(path: Path) -> list[list[str]]:
    text = files.read_small(path, _MOST_BYTES).decode("utf-8-sig", "replace")
    words = ([word.strip() for word in row] for row in csv.reader(text.splitlines()))
    rows = [row for at, row in enumerate(words) if row and row[0] and (at or row[0] != "unit")]
    names = [row[0] for row in rows]
    if illegal := [name for name in names if not _UNIT.fullmatch(name)]:
        raise UsageError(
            f"{path}: no unit can be called {illegal[0][:80]!r}; legal are up to 253 letters, "
            "digits and _ . : / @ + -, but + and - not first"
        )
    (often, count), *_ = Counter(names).most_common(1) or [("", 0)]
    if count > 1:
        raise UsageError(f"{path}: the unit {often!r} is there twice")
    return rows


def read_groups(path: Path) -> tuple[FleetUnit, ...]:
    """The groups in a file of lines `unit,group,stratum`; the last may be left out."""
    rows = _lines_of(path)
    if bad := [row for row in rows if row[1:2] not in (["control"], ["treated"])]:
        raise UsageError(
            f"{path}: {','.join(bad[0])[:80]!r} names no group; legal is UNIT,control,STRATUM or "
            "UNIT,treated,STRATUM, as `hztune canary assign` writes them"
        )
    return _of_both(path, [FleetUnit(row[0], row[1] == "treated", "".join(row[2:3]))
                           for row in rows])  # fmt: skip


def assigned(path: Path, share: float, seed: int) -> tuple[FleetUnit, ...]:
    """Draws which units of a file of lines `unit,stratum` are treated, of each stratum its share.

    What is no whole unit in one is carried on to another, drawn too, so that the sum is right.
    """
    random, found, owed = Random(seed), list[FleetUnit](), 0.5
    strata: dict[str, list[str]] = {}
    for name, *more in _lines_of(path):
        strata.setdefault("".join(more[:1]), []).append(name)
    for stratum, names in random.sample(sorted(strata.items()), len(strata)):
        owed += share * len(names)
        treated = {*random.sample(sorted(names), int(owed))}
        owed -= len(treated)
        found += [FleetUnit(name, name in treated, stratum) for name in names]
    return _of_both(path, found)


def _of_both(path: Path, units: Sequence[FleetUnit]) -> tuple[FleetUnit, ...]:
    if {unit.is_treated for unit in units} == {True, False}:
        return tuple(units)
    raise UsageError(f"{path}: of {len(units)} units one group has none")


def group_lines(units: Sequence[FleetUnit], form: GroupForm) -> Iterator[str]:
    """The groups as a file for the canary, labels of pods, an inventory, or a shell's variables."""
    if form == "csv":
        yield "unit,group,stratum"
        rows = ((unit.name, _GROUPS[unit.is_treated], unit.stratum) for unit in units)
        csv.writer(written := io.StringIO(), lineterminator="\n").writerows(rows)
        yield from written.getvalue().splitlines()
        return
    for group in _GROUPS:
        names = [unit.name for unit in units if unit.is_treated == (group == "treated")]
        if form == "kubectl":
            yield f"kubectl label pod --overwrite hztune-canary={group} {' '.join(names)}"
        elif form == "ansible":
            yield from (f"[{group}]", *names)
        else:
            yield f"{group.upper()}='{' '.join(names)}'"
