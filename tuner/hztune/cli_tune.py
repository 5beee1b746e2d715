"""`hztune tune`, which a bare `hztune` means: search, prove, write the profile, print the verdict."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click

from hztune.errors import UsageError

_BUDGET = re.compile(r"([0-9]{1,7}(?:\.[0-9]{1,3})?)(s|m|h)?")
_SECONDS = {None: 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_NO_GAIN_STATUS = 4


def seconds(text: str) -> float:
    """What a budget such as 90s, 5m or 1h is in seconds.

    Raises:
        UsageError: It is written in another way.
    """
    found = _BUDGET.fullmatch(text)
    if found is None:
        raise UsageError(f"--budget {text!r}: write it as 90s, 5m or 1h")
    return float(found[1]) * _SECONDS[found[2]]


@click.command("tune")
@click.option("--workload", "-w", metavar="NAME[@SETTING]", required=True,
              help="What to measure; `hztune list workloads` explains them.")  # fmt: skip
@click.option("--param", "-p", "overrides", metavar="KEY=VALUE", multiple=True,
              help="A parameter of the workload; may be repeated.")  # fmt: skip
@click.option("--threads", "-t", type=int, metavar="N",
              help="Threads of the workload; the default is one per CPU.")  # fmt: skip
@click.option("--allocator", default="hz", show_default=True, help="Whose configuration to tune.")
@click.option("--space", default="", metavar="NAME|FILE",
              help="Search space; the default is the allocator's own.")  # fmt: skip
@click.option("--budget", default="3m", show_default=True, metavar="TIME",
              help="Time that the whole study may take: 90s, 5m, 1h.")  # fmt: skip
@click.option("--trials", type=int, metavar="N", help="Most configurations to search.")
@click.option("--max-rss", default="", metavar="1.10x|512M",
              help="Most peak memory: a multiple of the default's, or a size.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True,
              help="Of everything that is chosen at random.")  # fmt: skip
@click.option("--out", metavar="DIR", type=click.Path(path_type=Path),
              help="Results directory; the default is a new one in hztune-results/.")  # fmt: skip
@click.option("--resume", is_flag=True, help="Go on with the study in --out.")
@click.option("--require-gain", is_flag=True, help="Exit with 4 when nothing beats the default.")
@click.option("--dry-run", is_flag=True, help="Show the space and the plan; measure nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
def tune_command(
    workload: str,
    overrides: tuple[str, ...],
    threads: int | None,
    allocator: str,
    space: str,
    budget: str,
    trials: int | None,
    max_rss: str,
    seed: int,
    out: Path | None,
    resume: bool,
    require_gain: bool,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
) -> int:
    """Find the configuration that is best for a workload here, and prove it."""
    from hztune.progress import reporter
    from hztune.tune import TuneRequest, plan, tune
    from hztune.workload import WorkloadSpec

    request = TuneRequest(
        workload=WorkloadSpec.from_text(workload, overrides, threads),
        allocator=allocator,
        space=space,
        budget_s=seconds(budget),
        trials=trials,
        seed=seed,
        out=out,
        resume=resume,
        max_rss=max_rss,
    )
    if dry_run:
        click.echo("\n".join(plan(request)))
        return 0
    with reporter(quiet=quiet) as shown:
        tuned = tune(request, shown)
    summary = tuned.summary
    click.echo(json.dumps(summary.to_json(), indent=2) if as_json else "\n".join(summary.lines()))
    if require_gain and summary.verdict == "no_gain":
        return _NO_GAIN_STATUS
    return tuned.exit_status
