"""What was seen and what is suggested, for people and for machines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hztune.suggest.sight import Calls, Sight
from hztune.suggest.suggested import Suggested

_LINKS_SHOWN = 6
_MUCH_DELAYED = 0.05
_SHARES = (0.5, 0.9, 1.0)
_NOTE = "One look is no measurement: nothing was compared, and nothing is claimed."


def suggestion_text(found: Suggested) -> list[str]:
    """What `suggest` found, for people, a line each."""
    told = [f"{name:<10} {text}" for name, text in _seen(found.sight)]
    if found.measurements:
        told += ["", "worth measuring, the first one most:"]
    for place, one in enumerate(found.measurements, 1):
        told += [f"{place}. {one.name}", f"     {one.command}", f"   {one.reason}"]
    if found.earlier:
        told += ["", "known already:"]
    for known in found.earlier:
        told += [f"- {known.what}", *([f"     {known.command}"] if known.command else [])]
    return [*told, "", _NOTE]


def suggestion_json(found: Suggested) -> dict[str, Any]:
    """What `suggest` found, as `hztune suggest --json` prints it."""
    return {"schema": 1, **asdict(found)}


def _seen(sight: Sight) -> Iterator[tuple[str, str]]:
    """What was seen, by name."""
    yield "allocator", _allocator(sight)
    yield "time", _time(sight)
    yield "threads", f"{sight.threads} at once, in {_counted(sight.processes, 'process', 'es')}"
    if sight.calls is not None:
        yield from _calls(sight, sight.calls)
    else:
        yield "calls", f"not seen: {sight.unseen}"
    again = f", {sight.faults_again:,} of them of memory that it had before"
    yield "faults", f"{sight.faults:,} pages{again if sight.faults_again else ''}"
    yield "memory", _memory(sight)
    if sight.links:
        more = len(sight.links) - _LINKS_SHOWN
        yield "links", ", ".join(sight.links[:_LINKS_SHOWN]) + (f" and {more} more" * (more > 0))
    if sight.ports and not sight.before_kb:
        yield "listens", "on " + ", ".join(sight.ports)
    if sight.dropped:
        yield (
            "environment",
            (
                f"dropped for {', '.join(sight.dropped)}: what that one allocates was not seen, "
                "and no allocator reaches it by variables"
            ),
        )


def _allocator(sight: Sight) -> str:
    name = sight.allocator or "one that is not known"
    if sight.provider:
        name += f", from {Path(sight.provider).name}"
    brought = f"; inside: {', '.join(sight.inside)}" if sight.inside else ""
    obstacle = f"; {sight.obstacle}" if sight.obstacle else ""
    return name + brought + obstacle


def _time(sight: Sight) -> str:
    what = "its load took" if sight.before_kb else "it took"
    took = f"{what} {sight.wall_s:.2f} s" if sight.ended else f"looked at for {sight.wall_s:.2f} s"
    waited = sight.delay_s > _MUCH_DELAYED * sight.wall_s
    others = f", and {sight.delay_s:.2f} s waiting for a CPU that others had" if waited else ""
    return f"{took}, with {sight.cpus:.2f} CPUs busy{others}" + (
        "" if sight.ended else "; it went on"
    )


def _calls(sight: Sight, calls: Calls) -> Iterator[tuple[str, str]]:
    part = ", in the part that was recorded" if calls.is_part else ""
    part = " under its load" if sight.before_kb else part
    yield (
        "calls",
        f"{calls.allocations:,} allocations{part}, {sight.allocations_per_cpu_s:,.0f} in a second "
        "of CPU time",
    )
    yield (
        "sizes",
        ", ".join(f"{100 * share:g} % at most {calls.at_most(share):,} bytes" for share in _SHARES),
    )
    others = f"{100 * calls.by_others:.1f} %"
    yield "frees", f"{calls.frees:,}, {others} by another thread than the block's"


def _memory(sight: Sight) -> str:
    told = f"{_mib(sight.peak_kb)} at its peak, without files"
    if sight.calls is not None:
        told += f", blocks {_mib(sight.calls.peak_kb)} at most"
    if sight.before_kb:
        return f"{told}; {_mib(sight.before_kb)} before its load, {_mib(sight.end_kb)} after it"
    return f"{told}; {_mib(sight.end_kb)} when it was last seen"


def _counted(count: int, what: str, ending: str) -> str:
    return f"{count} {what}{ending * (count != 1)}"


def _mib(kb: int) -> str:
    return f"{kb / 1024:.1f} MiB"
