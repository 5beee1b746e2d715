"""`hztune history`: what verifications of profiles found over time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hztune import api
from hztune.cli.program import Place

if TYPE_CHECKING:
    from hztune.verify.history import Recheck


@click.command("history")
@click.argument("profile_path", metavar="[PROFILE]", required=False,
                type=Place())  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def history_command(profile_path: Path | None, as_json: bool) -> None:
    """Print what verifications found, and what changed.

    Of PROFILE, or of all profiles. Each user's history is in $XDG_STATE_HOME/hztune/history.jsonl.
    """
    tuned = api.load_profile(profile_path) if profile_path is not None else None
    checks = api.history(tuned)
    if unreadable := api.unreadable_history():
        lines = "1 line is" if unreadable == 1 else f"{unreadable} lines are"
        click.echo(f"hztune: {lines} left out of the history: no check can be read there", err=True)
    if as_json:
        click.echo(
            json.dumps([{**asdict(one), "here": dict(one.here)} for one in checks], indent=2)
        )
    elif checks:
        click.echo("\n".join(_lines(checks)))
    else:
        click.echo("no profile was measured again yet: `hztune verify PROFILE` does that")


def _lines(checks: Sequence[Recheck]) -> list[str]:
    """The checks of each profile below its label."""
    told = []
    by_profile = sorted(checks, key=lambda check: (check.label, check.profile))
    for _, several in groupby(by_profile, key=lambda check: check.profile):
        own = list(several)
        told.append(f"{own[0].label}  ({own[0].profile})")
        if own[0].claimed is not None:
            claimed = own[0].claimed
            told.append(
                f"  claimed           {claimed.ratio:.3f}x [{claimed.ci_low:.3f}, "
                f"{claimed.ci_high:.3f}]"
            )
        for before, check in zip([None, *own[:-1]], own, strict=True):
            told += _of_one(before, check)
    return told


def _of_one(before: Recheck | None, check: Recheck) -> list[str]:
    ratio = "too few pairs"
    if (found := check.found) is not None:
        ratio = f"{found.ratio:.3f}x [{found.ci_low:.3f}, {found.ci_high:.3f}]"
        ratio += f", {check.pairs} pairs"
    memory = f", {check.rss_ratio:.2f}x the memory" if check.rss_ratio is not None else ""
    at = f"{check.at[:10]} {check.at[11:16]}"
    line = f"  {at}  {ratio}{memory}: {check.answer}"
    changed = api.changes(before, check) if before is not None else ()
    return [line, *[f"      {change}" for change in changed]]
