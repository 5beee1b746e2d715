"""Is a second recording of a program like its trace? What `hztune trace info` tells is compared.

Two recordings of one program are never the same: hashes are seeded, threads race. What is compared
is what hardly changes, with a tolerance for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

CALLS = 0.15
"""How much more or fewer calls there may be, and bytes in use at most."""

SIZES = 0.08
"""Share of the allocations that may be of another power of two; of the calls, of another kind."""

HANDED = 0.15
"""Difference of the share of blocks that another thread than the block's own frees."""

TOUCHED_SHARE = 0.25
"""Difference of the share that was touched of the blocks at which that was looked."""

FEW_THREADS = 8
"""Up to so many threads there must be the same number."""


def strange(trace: Mapping[str, Any], again: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns what is not alike, a phrase each; of a part of a program less can be compared.

    Args:
        trace: What `trace.tool.describe` tells of the trace.
        again: The same of the second recording.
    """
    return tuple(_strange(trace, again))


def _strange(trace: Mapping[str, Any], again: Mapping[str, Any]) -> Iterator[str]:
    if not trace["is_part"]:
        yield from _amount("threads", trace, again, FEW_THREADS)
        yield from _amount("calls", trace, again)
        yield from _amount("peak_bytes", trace, again)
    loose = 3.0 if trace["is_part"] else 1.0
    off = distance(dict(map(tuple, trace["sizes"])), dict(map(tuple, again["sizes"])))
    if off > loose * SIZES:
        yield f"{100 * off:.0f} % of the allocations have other sizes"
    off = distance(_calls(trace), _calls(again))
    if off > loose * SIZES:
        yield f"{100 * off:.0f} % of the calls are of another kind"
    mine, its = (each["ends_by_others"] / max(1, each["ends"]) for each in (trace, again))
    if abs(mine - its) > HANDED:
        yield (
            f"{100 * its:.0f} % of the blocks are freed by another thread than their own, and "
            f"{100 * mine:.0f} % in the trace"
        )
    if trace["looked_at"] and again["looked_at"]:
        mine, its = (each["touched"] / each["looked_at"] for each in (trace, again))
        if abs(mine - its) > TOUCHED_SHARE:
            yield (
                f"{100 * its:.0f} % of the bytes of blocks are touched, and {100 * mine:.0f} % in "
                "the trace"
            )


_WORDS = {"threads": "threads", "calls": "calls", "peak_bytes": "bytes in use at most"}
_STEPS = ("fetch", "hand", "spawn", "join", "touch")


def _amount(
    key: str, trace: Mapping[str, Any], again: Mapping[str, Any], exact: int = 0
) -> Iterator[str]:
    """What is to be said of a number, where it is another one."""
    mine, its = trace[key], again[key]
    most = max(mine, its)
    is_other = mine != its if most <= exact else abs(mine - its) > CALLS * most
    if is_other:
        yield f"there are {its:,} {_WORDS[key]}, and {mine:,} in the trace"


def _calls(told: Mapping[str, Any]) -> dict[str, int]:
    """The operations that are calls of the allocator."""
    return {name: count for name, count in told["operations"].items() if name not in _STEPS}


def distance(one: Mapping[Any, int], other: Mapping[Any, int]) -> float:
    """Share of one distribution that lies elsewhere in the other one, from 0 to 1."""
    totals = [max(1, sum(each.values())) for each in (one, other)]
    keys: Sequence[Any] = [*{*one, *other}]
    apart = (abs(one.get(k, 0) / totals[0] - other.get(k, 0) / totals[1]) for k in keys)
    return 0.5 * sum(apart)
