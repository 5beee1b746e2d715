"""What is in a trace, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hztune.arguments import printable

_THREADS_SHOWN = 12
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
_STEP = 1024
_ENDINGS = {
    "cut": "the recorder was ended before the program",
    "too slow": "the disk was too slow for what was recorded",
    "no room": "no room was left on the disk",
}


def trace_text(told: Mapping[str, Any]) -> list[str]:
    """What `trace_info` tells, for people, a line each."""
    return [*_head(told), *_blocks(told), *_operations(told), *_threads(told)]


def _head(told: Mapping[str, Any]) -> Iterator[str]:
    notes = told["notes"] or {}
    if notes.get("program"):
        yield f"program   {_one_line(notes['program'])}"
    yield f"calls     {told['calls']:,} of {_counted(told['threads'], 'thread')}{_time(told)}"
    each = told["bytes"] / told["calls"] if told["calls"] else 0.0
    yield f"file      {_amount(told['bytes'])}, {each:.1f} bytes a call"
    if told["is_part"]:
        reason = _ENDINGS.get(str(notes.get("ending")), "")
        yield "part      of the program's life" + (f": {reason}" if reason else "")
    yield from _missing(notes)


def _time(told: Mapping[str, Any]) -> str:
    return f" in {told['duration_ns'] * 1e-9:.3f} s" if told["has_time"] else ", without times"


def _missing(notes: Mapping[str, Any]) -> Iterator[str]:
    for name, words in (
        ("unknown", "calls about blocks that are older than the recording are left out"),
        ("overlapping", "frees were not seen"),
        ("lost", "calls of signal handlers were not logged"),
    ):
        if notes.get(name):
            yield f"missing   {notes[name]:,} {words}"


def _blocks(told: Mapping[str, Any]) -> Iterator[str]:
    if told["peak_blocks"]:
        yield f"at once   {_amount(told['peak_bytes'])} in {told['peak_blocks']:,} blocks at most"
    if told["ends"]:
        share = 100.0 * told["ends_by_others"] / told["ends"]
        yield f"frees     {told['ends']:,}, {share:.1f} % by another thread than the block's"
    given = sum(count for _, count in told["sizes"])
    if given:
        yield f"sizes     {_quantiles(told['sizes'], given)}"


def _quantiles(sizes: Sequence[Sequence[int]], given: int) -> str:
    """Bytes that half of the allocations ask for at most, and so on; powers of two."""
    parts = []
    for share in (0.5, 0.9, 0.99, 1.0):
        seen = 0
        for most, count in sizes:
            seen += count
            if seen >= share * given:
                parts.append(f"{100 * share:g} % at most {_amount(most)}")
                break
    return ", ".join(parts)


def _operations(told: Mapping[str, Any]) -> Iterator[str]:
    order = sorted(told["operations"].items(), key=lambda item: (-item[1], item[0]))
    if order:
        yield "did       " + ", ".join(f"{count:,} {name}" for name, count in order)


def _threads(told: Mapping[str, Any]) -> Iterator[str]:
    shown = told["threads_shown"][:_THREADS_SHOWN]
    for number, each in enumerate(shown):
        span = f"{each['start_ns'] * 1e-9:.3f} to {each['end_ns'] * 1e-9:.3f} s"
        when = f", {span}" if told["has_time"] else ""
        name = f" {printable(each['name'])}" if each["name"] else ""
        yield f"thread    {number}{name}: {_counted(each['calls'], 'call')}{when}"
    if told["threads"] > len(shown):
        yield f"          and {told['threads'] - len(shown):,} more"


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def _one_line(words: Sequence[str]) -> str:
    return printable(" ".join(" ".join(words).split()))


def _amount(count: float) -> str:
    """Bytes in the unit that people use."""
    for unit in _UNITS[:-1]:
        if count < _STEP:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= _STEP
    return f"{count:.1f} {_UNITS[-1]}"
