"""`hztune canary`: which units of a fleet get a change, and whether they fare better with it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from hztune import api
from hztune.arguments import parse_duration, percentage
from hztune.cli.options import SEED, FilledCommand, argument, flag, option, print_lines
from hztune.errors import HztuneError, UsageError
from hztune.files import write_whole

_STATUS = {"promote": 0, "revert": 4, "hold": 6}


@click.group("canary", no_args_is_help=False)
def canary_command() -> None:
    """Give a part of a fleet a change, and see whether it fares better."""


@canary_command.command("assign", cls=FilledCommand, params=[
    argument("units", "UNITS"),
    option("--share PERCENT", "Of the units of each stratum that are treated.", default="50%"),
    option("--format", "What is printed.", "form", default="csv",
           type=click.Choice(["csv", "kubectl", "ansible", "shell"])),
    SEED,
])  # fmt: skip
def assign_command(units: Path, share: str, form: Any, seed: int) -> None:
    """Draw at random which units get a change.

    UNITS is a file of lines `unit,stratum`; units of one stratum, such as a machine type, are
    compared with one another. Prints the groups as a file for `hztune canary judge`, as commands
    that label pods, as an inventory of Ansible, or as variables of a shell with the hosts.
    """
    print_lines(api.group_lines(api.assigned(units, percentage(share, "--share"), seed), form))


@canary_command.command("judge", cls=FilledCommand, params=[
    argument("spec", "SPEC"),
    flag("--watch", "Go on until it is decided."),
    option("--for TIME", "With --watch: end after that time.", "duration"),
    option("--log FILE", "Keep rows and answer there; a watch that was killed goes on from it."),
    option("--picture FILE", "Write a picture there, as SVG."),
])  # fmt: skip
def judge_command(
    spec: Path, watch: bool, duration: str, log: Path | None, picture: Path | None,
) -> int:  # fmt: skip
    """Judge the treated units of a fleet beside the control.

    SPEC is a file (TOML):

    \b
    doc = "jemalloc with background threads"
    start = "2026-11-29T12:00:00Z"  # a minute after the last treated one began with it; both
                                    # groups are as old
    groups = "groups.csv"           # as `hztune canary assign` wrote it
    prometheus = "http://localhost:9090"  # or https://USER:PASSWORD@...; or one of these:
    # file = "rows.csv"             # rows of time,unit,metric,value, or lines of JSON; the time in
                                    # seconds since 1970
    # command = "./rows"            # prints them
    unit = "pod"                    # the label that names the unit  [default: instance]
    step_s = 60                     # of a block of time; 300 for hundreds of units
    baseline_s = 86400              # before the start; a rollout is within its last quarter
    settle_s = 300                  # after it, when rails count and metrics do not
    planned_s = 86400               # to decide in; nothing is promoted in its first quarter
    error = 0.02                    # of a false promotion, and of a false revert
    # At revert; with --watch until it ends well, ten times at most. It may be run twice, must
    # wait for what it starts, and reads the page on stdin.
    hook = "kubectl rollout undo deployment/web --to-revision=7"

    \b
    [[metrics]]                     # at least one is a target
    name = "cpu"
    query = "process_cpu_seconds_total"  # in PromQL, a series a unit [default: rows so named]
    per = "http_requests_total"     # divided by it
    counter = true                  # both count since a start: their growth is meant
    margin = "2%"                   # what it may get worse by; a number such as 0.001 is of a
                                    # difference, for figures that may be 0
    target = true                   # it is to get better; more_is_better = true: by growing

    \b
    [[rails]]                       # events that a unit counts; to fall silent is one, too
    name = "restarts"
    query = "sum by (pod) (kube_pod_container_status_restarts_total)"
    most = 3                        # more than in a control as large: revert without a test

    \b
    exit status   0  promote: a target is better, no metric is worse by its margin
                  4  revert: a metric is worse by its margin, or a guard rail is crossed
                  6  hold: not decided; or both are alike
    A hook is run by each `judge` that answers revert, but for one whose --log says that it was.
    """  # noqa: D301 - click reads the backspace
    if duration and not watch:
        raise UsageError("--for is of a watch; give --watch, too")
    canary = api.canary(spec)
    for_s = parse_duration(duration, "--for") if duration else math.inf
    found = api.judge_canary(
        canary, lambda line: print_lines([line], err=True), log=log, for_s=for_s if watch else 0.0
    )
    print_lines(api.canary_page(found, canary).split("\n"))
    try:
        if picture is not None:
            write_whole(picture, api.canary_picture(found))
    except HztuneError as error:  # a full disk takes the file, not the answer
        print_lines([f"hztune: {error}"], err=True)
    return _STATUS[found.answer]
