"""What is in a trace, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hztune.arguments import printable

_THREADS_SHOWN = 12
_UNITS = ("bytes", "KiB", "MiB", "GiB")
_ENDINGS = {
    "cut": "the recorder was ended before the program",
    "too slow": "the disk was too slow for what was recorded",
    "no room": "no room was left on the disk",
}
_MISSING = {
    "unknown": "calls about blocks that are older than the recording are left out",
    "overlapping": "frees were not seen",
    "lost": "calls of signal handlers were not logged",
}


def trace_text(told: Mapping[str, Any]) -> list[str]:
    """What `trace_info` tells, for people, a line each."""
    return [*_recorded(told), *_asked(told), *_threads(told)]


def at_most(sizes: Sequence[Sequence[int]], share: float) -> int:
    """Bytes that such a share of the allocations asks for at most: a power of two less one.

    `sizes` are (most bytes, allocations of at most so many and more than half), in order.
    """
    seen, given = 0, sum(count for _, count in sizes)
    for most, count in sizes:
        seen += count
        if seen >= share * given:
            return most
    return 0


def _recorded(told: Mapping[str, Any]) -> Iterator[str]:
    """How much of the program's life is there."""
    notes = told["notes"] or {}
    if notes.get("program"):
        yield "program   " + printable(" ".join(" ".join(notes["program"]).split()))
    time = f" in {told['duration_ns'] * 1e-9:.3f} s" if told["has_time"] else ", without times"
    yield f"calls     {told['calls']:,} of {_counted(told['threads'], 'thread')}{time}"
    each = told["bytes"] / told["calls"] if told["calls"] else 0.0
    yield f"file      {_amount(told['bytes'])}, {each:.1f} bytes a call"
    if told["is_part"]:
        reason = _ENDINGS.get(str(notes.get("ending")), "")
        yield "part      of the program's life" + (f": {reason}" if reason else "")
    for name, words in _MISSING.items():
        if notes.get(name):
            yield f"missing   {notes[name]:,} {words}"


def _asked(told: Mapping[str, Any]) -> Iterator[str]:
    """What was asked of the allocator."""
    if told["peak_blocks"]:
        yield f"at once   {_amount(told['peak_bytes'])} in {told['peak_blocks']:,} blocks at most"
    if told["ends"]:
        share = 100.0 * told["ends_by_others"] / told["ends"]
        yield f"frees     {told['ends']:,}, {share:.1f} % by another thread than the block's"
    sizes = told["sizes"]
    if sum(count for _, count in sizes):
        shares = (0.5, 0.9, 0.99, 1.0)
        most = (f"{100 * each:g} % at most {_amount(at_most(sizes, each))}" for each in shares)
        yield "sizes     " + ", ".join(most)
    order = sorted(told["operations"].items(), key=lambda item: (-item[1], item[0]))
    if order:
        yield "did       " + ", ".join(f"{count:,} {name}" for name, count in order)


def _threads(told: Mapping[str, Any]) -> Iterator[str]:
    shown = told["threads_shown"][:_THREADS_SHOWN]
    for number, each in enumerate(shown):
        span = f", {each['start_ns'] * 1e-9:.3f} to {each['end_ns'] * 1e-9:.3f} s"
        name = f" {printable(each['name'])}" if each["name"] else ""
        when = span if told["has_time"] else ""
        yield f"thread    {number}{name}: {_counted(each['calls'], 'call')}{when}"
    if told["threads"] > len(shown):
        yield f"          and {told['threads'] - len(shown):,} more"


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def _amount(count: float) -> str:
    """Bytes in the unit that people use."""
    for unit in _UNITS:
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
