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

#: The words of a switch, where an allocator has false and true.
SWITCH = "false true"
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class KnobRow:
    """One knob of an allocator in a range of its versions.

    Attributes:
        param: What hztune knows it by, with range, unit and default; its name outlives versions.
        option: What the allocator calls it in these versions.
        since: First version that has it so; empty: every one.
        before: First version that no longer has it so; empty: still there.
    """

    param: Param
    option: str
    since: Version
    before: Version

    def holds(self, version: Version) -> bool:
        """Whether the row describes `version`."""
        return self.since <= version and (not self.before or version < self.before)


def number(
    name: str,
    default: Value,
    low: int,
    high: int,
    scale: Scale,
    unit: str,
    doc: str,
    *,
    option: str = "",
    versions: str = "",
) -> KnobRow:
    """Returns the row of a whole number.

    Args:
        name: As hztune knows it, in every version.
        default: The allocator's own; `auto` where it is worked out when the allocator starts.
        low: Least value that the allocator keeps as it is.
        high: Greatest value that it keeps as it is.
        scale: How a search should step.
        unit: Of the number.
        doc: What it does, in one sentence.
        option: The allocator's own name, if it is another one.
        versions: "2.0-2.1.2" is from 2.0 until before 2.1.2; "3.2" is from 3.2 on; "" is all.
    """
    auto = default == AUTO
    param = Param(name, "int", default, low, high, scale, unit, (), auto, "", "", doc)
    return KnobRow(param, option or name, *_span(versions))


def words(
    name: str, default: str, choices: str, doc: str, *, option: str = "", versions: str = ""
) -> KnobRow:
    """Returns the row of a knob that is one of a few words, separated by spaces in `choices`."""
    legal = tuple(choices.split())
    param = Param(name, "enum", default, 0, len(legal) - 1, "linear", "", legal, False, "", "", doc)
    return KnobRow(param, option or name, *_span(versions))


def _span(versions: str) -> tuple[Version, Version]:
    """Returns the first version and the first one after the last."""
    since, _, before = versions.partition("-")
    return parse_version(since), parse_version(before)


def parse_version(text: str) -> Version:
    """Returns the leading numbers of a version: "5.3.0-1" -> (5, 3, 0)."""
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def rows_of(table: Iterable[KnobRow], version: str) -> tuple[KnobRow, ...]:
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
