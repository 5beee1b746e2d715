"""Tables of knobs, keyed by version: what a foreign allocator does not tell about itself."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from hztune.errors import UsageError
from hztune.params import Param, Scale, Value

AUTO = "auto"
Version = tuple[int, ...]

#: The words of a switch, in every allocator that has true and false.
SWITCH = ("false", "true")
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Row:
    """One knob of an allocator in a range of its versions.

    Attributes:
        param: What hztune knows it by, with range, unit and default; its name outlives versions.
        option: What the allocator calls it in these versions.
        since: First version that has it so.
        before: First version that no longer has it so; empty: still there.
    """

    param: Param
    option: str
    since: Version = ()
    before: Version = ()

    def holds(self, version: Version) -> bool:
        """Whether the row describes `version`."""
        return self.since <= version and (not self.before or version < self.before)


def integer(
    name: str,
    default: Value,
    low: int,
    high: int,
    scale: Scale,
    unit: str,
    doc: str,
) -> Param:
    """Returns a whole-number knob; with the default `auto` it may be left to the allocator."""
    return Param(
        name=name,
        kind="int",
        default=default,
        low=low,
        high=high,
        scale=scale,
        unit=unit,
        choices=(),
        may_be_auto=default == AUTO,
        env="",
        macro="",
        doc=doc,
    )


def choice(name: str, default: str, choices: tuple[str, ...], doc: str) -> Param:
    """Returns a knob of a foreign allocator that is one of a few words."""
    return Param(
        name=name,
        kind="enum",
        default=default,
        low=0,
        high=len(choices) - 1,
        scale="linear",
        unit="",
        choices=choices,
        may_be_auto=default == AUTO,
        env="",
        macro="",
        doc=doc,
    )


def parse_version(text: str) -> Version:
    """Returns the leading numbers of a version: "5.3.0-1" -> (5, 3, 0)."""
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def rows_of(table: Iterable[Row], version: str) -> tuple[Row, ...]:
    """Returns the rows of `table` that describe `version`, in the order of the table."""
    numbers = parse_version(version)
    return tuple(row for row in table if row.holds(numbers))


def knob(allocator: str, knobs: Iterable[Param], name: str) -> Param:
    """Returns the knob called `name`.

    Raises:
        UsageError: There is none in this version; the message names the nearest.
    """
    by_name = {param.name: param for param in knobs}
    if name in by_name:
        return by_name[name]
    near = difflib.get_close_matches(name, by_name, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise UsageError(
        f"{allocator} has no parameter {name!r} in the installed version{hint} "
        f"(hztune params --allocator {allocator} lists them)"
    )
