"""Commands about processes that run: `hztune stats`, `hztune set`, `hztune trim`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hztune import api
from hztune.arguments import key_value, parse_duration, within
from hztune.cli import completion
from hztune.cli.lines import mib, print_lines
from hztune.errors import HztuneError, UsageError

if TYPE_CHECKING:
    from hztune.attach.diagnosis import Diagnosis
    from hztune.attach.questions import Holding, Statistics

_MOST_ROWS = 12
_CLEAR = "\x1b[H\x1b[2J"
_PID = click.option("--pid", type=click.IntRange(min=1), required=True, metavar="N",
                    help="The process.")  # fmt: skip
_STARTED = """
The process must have been started on hz with HZ_CONTROL=1, or with the agent preloaded, which
`hztune paths --agent` names. Only its user and root may ask.
"""


_STATS = f"""Show what a running process holds.
{_STARTED}"""


@click.command("stats", help=_STATS)
@_PID
@click.option("--watch", metavar="TIME", help="Print again every TIME, until the process ends.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; with --watch a line each time.")
def stats_command(pid: int, watch: str | None, as_json: bool) -> None:
    """Show what a running process holds."""
    if watch is None:
        found = api.process_statistics(pid)
        if as_json:
            click.echo(json.dumps(with_ratios(found), indent=2))
        else:
            print_lines(_table(found))
        return
    pause_s = parse_duration(watch, "--watch")
    within("--watch", pause_s, 0.1, 3600.0)
    for found in _until_it_ends(pid, pause_s):
        if as_json:
            click.echo(json.dumps(with_ratios(found)))
        else:
            click.echo(_CLEAR if sys.stdout.isatty() else "", nl=False)
            print_lines([*_table(found), ""])
        sys.stdout.flush()


def _until_it_ends(pid: int, pause_s: float) -> Iterator[Statistics]:
    """Asks again and again; that a process ends between two answers is no error."""
    yield api.process_statistics(pid)
    while True:
        time.sleep(pause_s)
        try:
            yield api.process_statistics(pid)
        except HztuneError:
            if Path("/proc", str(pid)).exists():
                raise
            return


_SET = f"""Change parameters of hz in a running process.
{_STARTED}
Either all of them change or none. `hztune params --live` lists those that may.
"""


@click.command("set", help=_SET)
@_PID
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.argument("settings", metavar="NAME=VALUE...", nargs=-1, required=True,
                shell_complete=completion.offer_names(completion.live_parameters))  # fmt: skip
def set_command(pid: int, as_json: bool, settings: tuple[str, ...]) -> None:
    """Change parameters of hz in a running process."""
    pairs = dict(key_value(text) for text in settings)
    if len(pairs) < len(settings):
        raise UsageError("a parameter is given twice; give it one value")
    changed = api.change_process(pid, pairs)
    if as_json:
        click.echo(json.dumps(record_of(changed), indent=2))
    else:
        print_lines(
            f"{name}: {changed.before[name]} -> {value}" for name, value in changed.after.items()
        )


_TRIM = f"""Make a running process return unused memory.
{_STARTED}
On hz, what a thread has in its own caches is returned when that thread next finds one empty or
full; a thread that makes no calls keeps it.
"""


@click.command("trim", help=_TRIM)
@_PID
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def trim_command(pid: int, as_json: bool) -> None:
    """Make a running process return unused memory."""
    trimmed = api.trim_process(pid)
    if as_json:
        click.echo(json.dumps(record_of(trimmed), indent=2))
        return
    if not trimmed.allocators:
        raise UsageError(f"process {pid} has no allocator that the agent can trim")
    before, after = trimmed.before.anonymous_bytes, trimmed.after.anonymous_bytes
    print_lines(
        [
            f"{', '.join(trimmed.allocators)}: {mib(max(0, before - after))} MiB given back "
            f"(anonymous memory {mib(before)} -> {mib(after)} MiB)"
        ]
    )


def with_ratios(found: Statistics | Diagnosis) -> dict[str, Any]:
    """The record of a process for JSON; each allocator has its ratio, too."""
    parts = [{**record_of(part), "ratio": part.ratio} for part in found.parts]
    return {**record_of(found), "parts": parts}


def record_of(value: Any) -> Any:
    """What JSON can hold of a dataclass: dicts and lists; `asdict` copies no fixed mapping."""
    if is_dataclass(value):
        return {each.name: record_of(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {name: record_of(each) for name, each in value.items()}
    return [record_of(each) for each in value] if isinstance(value, tuple) else value


def _table(found: Statistics) -> list[str]:
    memory = found.memory
    return [
        f"process {found.pid} ({found.name})",
        *[line for part in found.parts for line in part_lines(part)],
        *([] if found.parts else ["the agent does not know its allocator, or what that holds"]),
        f"  {'anonymous memory':24}{mib(memory.anonymous_bytes):>10} MiB  of the whole process",
        f"  {'swapped out':24}{mib(memory.swapped_bytes):>10} MiB",
        *_threads(found),
        *_classes(found),
        *_counters(found),
    ]


def part_lines(part: Holding) -> Iterator[str]:
    """What one allocator holds, a line each."""
    ratio = f"  {part.ratio:.2f} times live" if part.ratio is not None else ""
    yield f"{part.allocator} {part.version}".rstrip()
    for name, size, more in (
        ("live", part.live_bytes, "  used by the program"),
        ("held", part.held_bytes, ratio),
        ("in caches of threads", part.cached_bytes, ""),
    ):
        shown = f"{mib(size):>10} MiB{more}" if size is not None else f"{'unknown':>10}"
        yield f"  {name:24}{shown}"


def _threads(found: Statistics) -> Iterator[str]:
    """Those that keep most."""
    if not found.threads:
        return
    yield f"{'thread':>12}{'cached MiB':>14}{'blocks':>12}"
    threads = sorted(found.threads, key=lambda each: -each.cached_bytes)
    for each in threads[:_MOST_ROWS]:
        yield f"{each.thread:>12}{mib(each.cached_bytes):>14}{each.cached_blocks:>12}"
    yield from _rest(len(threads) + found.threads_left_out, "threads")


def _classes(found: Statistics) -> Iterator[str]:
    """Those with most bytes, by size."""
    if not found.classes:
        return
    yield f"{'block bytes':>12}{'live MiB':>14}{'free MiB':>12}{'live':>12}{'free':>12}"
    by_bytes = sorted(found.classes, key=lambda each: -each.cut * each.block_bytes)
    for each in sorted(by_bytes[:_MOST_ROWS], key=lambda each: each.block_bytes):
        live, free = each.live * each.block_bytes, each.free * each.block_bytes
        yield (
            f"{each.block_bytes:>12}{mib(live):>14}{mib(free):>12}{each.live:>12}{each.free:>12}"
        )
    yield from _rest(len(by_bytes), "sizes")


def _rest(count: int, what: str) -> Iterator[str]:
    if count > _MOST_ROWS:
        yield f"{'...':>12}  {count - _MOST_ROWS} more {what} (--json has them)"


def _counters(found: Statistics) -> Iterator[str]:
    """Those that have counted anything."""
    counted = [f"{name} {value}" for name, value in found.counters.items() if value]
    if counted:
        yield "since its start: " + ", ".join(counted)
