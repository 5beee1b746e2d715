"""Commands about the machine: is it fit to measure on."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from hztune import api
from hztune.cli.attach import part_lines, with_ratios
from hztune.cli.lines import mib, print_lines
from hztune.errors import UnfitError, UsageError

if TYPE_CHECKING:
    from hztune.attach.diagnosis import Diagnosis, InEffect
    from hztune.doctor import Check


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--strict", is_flag=True, help="Exit with status 5 when the machine is unfit.")
@click.option("--pid", type=click.IntRange(min=1), metavar="N",
              help="Look at this process instead of the machine.")  # fmt: skip
def doctor_command(as_json: bool, strict: bool, pid: int | None) -> None:
    """Show what disturbs measurements here, and how to fix it.

    The machine's record follows. Nothing is changed. --json prints an object with the keys
    findings and machine.

    With --pid: how much memory a running process uses, how much its allocator holds, which
    settings are in effect, and what would help. A process that was started on hz with HZ_CONTROL=1,
    or with the agent preloaded (`hztune paths --agent`), reports that itself; of any other one,
    only what is visible from outside is printed.
    """
    if pid is not None:
        if strict:
            raise UsageError("--strict is about the machine and --pid about a process; give one")
        seen = api.diagnose(pid)
        if as_json:
            click.echo(json.dumps(with_ratios(seen), indent=2))
        else:
            print_lines(_told(seen))
        return
    findings, machine = api.doctor(), api.machine()
    if as_json:
        found = {"findings": [asdict(each) for each in findings], "machine": asdict(machine)}
        click.echo(json.dumps(found, indent=2))
    else:
        record = [f"        {name}: {value}" for name, value in machine.described()]
        lines = [*map(_line, findings), "the record of this machine:", *record]
        print_lines(lines)
    if strict:
        require_fit(findings)


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
        (memory.lazy_bytes, "of it returned lazily"),
        (memory.swapped_bytes, "swapped out"),
        (memory.huge_bytes, "in huge pages"),
    ]
    return [
        f"process {found.pid} ({found.name})",
        f"  malloc comes from {found.provider} ({found.allocator or 'unknown to hztune'})"
        if found.provider
        else "  no file of it shows a malloc",
        f"  {mib(memory.resident_bytes)} MiB resident: {_explained(found)}",
        *[f"  {mib(size)} MiB {what}" for size, what in seen if size],
        *(
            [f"  its control group takes {mib(found.limit[1])} of {mib(found.limit[0])} MiB"]
            if found.limit
            else []
        ),
        *[line for part in found.parts for line in part_lines(part)],
        *_settings_told(found.settings),
        *[f"advice: {sentence}" for sentence in found.advice],
        *[f"not known: {sentence}" for sentence in found.remarks],
    ]


def _explained(found: Diagnosis) -> str:
    """Whose the resident memory is, the largest part first."""
    memory = found.memory
    held = {part.allocator: part.held_bytes for part in found.parts if part.held_bytes}
    rest = max(0, memory.anonymous_bytes - sum(held.values()))
    parts = {
        "of mapped files": memory.resident_bytes - memory.anonymous_bytes,
        "of stacks and other mappings" if held else "of heaps and stacks": rest,
        **{f"held by {name}": size for name, size in held.items()},
    }
    ranked = sorted(parts.items(), key=lambda each: -each[1])
    return ", ".join(f"{mib(size)} {what}" for what, size in ranked)


def _whose_choice(setting: InEffect) -> str:
    if not setting.is_effective:
        return "asked for"
    return "in effect, asked for" if setting.is_asked else "in effect"


def _settings_told(settings: tuple[InEffect, ...]) -> list[str]:
    """Those that are not the allocator's own default."""
    changed = [
        f"  {each.name}={each.value} ({_whose_choice(each)})"
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
