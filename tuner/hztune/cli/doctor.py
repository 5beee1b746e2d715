"""Commands about the machine: is it fit to measure on."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hztune import api
from hztune.cli.attach import part_lines, with_ratios
from hztune.cli.program import Place
from hztune.errors import UnfitError, UsageError

if TYPE_CHECKING:
    from hztune.attach.diagnosis import Diagnosis, InEffect
    from hztune.doctor import Check

_MIB = 1 << 20


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--strict", is_flag=True, help="Exit with status 5 when the machine is unfit.")
@click.option("--pid", type=click.IntRange(min=1), metavar="N",
              help="Look at this process instead of the machine.")  # fmt: skip
@click.option("--scale", "scales", is_flag=True,
              help="Measure how hz's speed grows with threads, and its locks.")  # fmt: skip
@click.option("--output", type=Place(), metavar="FILE",
              help="With --scale: the file of the result (default hz-scale.json).")  # fmt: skip
@click.option("--seconds", type=click.FloatRange(0.05, 60.0), metavar="S",
              help="With --scale: length of each run (default 1).")  # fmt: skip
def doctor_command(
    as_json: bool,
    strict: bool,
    pid: int | None,
    scales: bool,
    output: Path | None,
    seconds: float | None,
) -> None:
    """Show what disturbs measurements here, and how to fix it.

    The machine's record follows. Nothing is changed. --json prints an object with the keys
    findings and machine.

    With --pid: how much memory a running process uses, how much its allocator holds, which
    settings are in effect, and what would help. A process that was started on hz with HZ_CONTROL=1,
    or with the agent preloaded (`hztune paths --agent`), reports that itself; of any other one,
    only what is visible from outside is printed.

    With --scale: runs four workloads with 1, 2, 4, ... threads, up to the CPUs, once unchanged and
    once with every lock of hz recorded. It prints the speed and the cost of each lock, and saves
    both with the machine's record when all is measured. Until then the rows are in a file beside it
    (hz-scale.unfinished.json). hz's authors would like to see that of a machine with many CPUs.
    """
    if scales:
        _refuse_beside_scale(as_json=as_json, strict=strict, pid=pid is not None)
        path = output or Path("hz-scale.json")
        api.measure_scaling(path, seconds or 1.0, lambda lines: click.echo("\n".join(lines)))
        click.echo(f"saved in {path}")
        return
    if output is not None or seconds is not None:
        raise UsageError(
            "--output and --seconds belong to --scale: give it, too, or leave them out"
        )
    if pid is not None:
        if strict:
            raise UsageError("--strict is about the machine and --pid about a process; give one")
        seen = api.diagnose(pid)
        click.echo(json.dumps(with_ratios(seen), indent=2) if as_json else "\n".join(_told(seen)))
        return
    findings, machine = api.doctor(), api.machine()
    if as_json:
        found = {"findings": [asdict(each) for each in findings], "machine": asdict(machine)}
        click.echo(json.dumps(found, indent=2))
    else:
        record = [f"        {name}: {value}" for name, value in machine.described()]
        lines = [*map(_line, findings), "the record of this machine:", *record]
        click.echo("\n".join(lines))
    if strict:
        require_fit(findings)


def _refuse_beside_scale(**given: bool) -> None:
    """Refuses options that ask for something else.

    Raises:
        UsageError: One was given.
    """
    names = {"as_json": "--json", "strict": "--strict", "pid": "--pid"}
    wrong = [names[name] for name, is_given in given.items() if is_given]
    if wrong:
        raise UsageError(f"{wrong[0]} does not go with --scale, which saves JSON: leave it out")


def require_fit(findings: tuple[Check, ...]) -> None:
    """Refuses to measure on a machine where measurements mean little.

    Raises:
        UnfitError: something was found that makes them so.
    """
    unfit = [f"{each.name}: {each.found}" for each in findings if each.verdict == "unfit"]
    if unfit:
        raise UnfitError(
            f"this machine is unfit for measuring ({'; '.join(unfit)}); see `hztune doctor`"
        )


def _line(finding: Check) -> str:
    mend = f"  (fix: {finding.mend})" if finding.mend else ""
    return f"{finding.verdict:8}{finding.name}: {finding.found}{mend}"


def _told(found: Diagnosis) -> list[str]:
    memory = found.memory
    seen = [
        (memory.anonymous_bytes, "anonymous memory (heaps, stacks)"),
        (memory.lazy_bytes, "of it returned lazily"),
        (memory.swapped_bytes, "swapped out"),
        (memory.huge_bytes, "in huge pages"),
    ]
    return [
        f"process {found.pid} ({found.name})",
        f"  malloc comes from {found.provider} ({found.allocator or 'unknown to hztune'})"
        if found.provider
        else "  no file of it shows a malloc",
        *[f"  {size / _MIB:.1f} MiB {what}" for size, what in seen if size or what == seen[0][1]],
        *[line for part in found.parts for line in part_lines(part)],
        *_settings_told(found.settings),
        *[f"advice: {sentence}" for sentence in found.advice],
        *[f"not known: {sentence}" for sentence in found.remarks],
    ]


def _settings_told(settings: tuple[InEffect, ...]) -> list[str]:
    """Those that are not the allocator's own default."""
    changed = [
        f"  {each.name}={each.value} ({'in effect' if each.is_effective else 'asked for'})"
        for each in settings
        if not each.is_default
    ]
    if not settings:
        return []
    return (
        ["settings that differ from the default, or were chosen at the start:", *changed]
        if changed
        else ["all settings are the default"]
    )
