"""`hztune govern`, which steers the allocator of a living process, and `hztune metrics`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from hztune import api
from hztune.arguments import parse_duration
from hztune.cli.options import (
    SEED,
    FilledCommand,
    argument,
    flag,
    offer,
    option,
    pid_option,
    print_lines,
)
from hztune.errors import UsageError

_GOVERN = """Let the settings of a living process follow its load.

POLICY is a file (TOML) or one of `hztune list policies`: which settings there are to choose from,
what is made less, the figure to protect, and the brakes. The process must have been started on hz
with HZ_CONTROL=1, or with the agent preloaded, which `hztune paths --agent` names.

Each action is one line. Whatever ends the governor, the process has its own settings again at once,
or ten seconds after a crash. Another setting is called better only when pairs of epochs in random
order have shown it.

\b
exit status   0  the process has ended, or the time of --for is over
              1  it let go before; the last line says why
"""


@click.command("govern", cls=FilledCommand, help=_GOVERN, params=[
    argument("policy", "POLICY", type=str,
             shell_complete=offer(lambda: [*api.policies()], files=True)),
    pid_option("The process.", required=True),
    flag("--dry-run", "Only say what would be set; the process keeps its settings."),
    option("--for TIME", "End after this time.  [default: with the process]", "duration"),
    option("--log FILE", "Add each action to FILE, a line of JSON."),
    SEED,
])  # fmt: skip
def govern_command(policy: str, pid: int, dry_run: bool, duration: str, log: Path | None,
                   seed: int) -> int:  # fmt: skip
    for_s = parse_duration(duration, "--for") if duration else math.inf
    ended = api.govern(
        pid, api.policy(policy), lambda line: print_lines([line], err=True), seed=seed,
        is_dry=dry_run, log=log, for_s=for_s,
    )  # fmt: skip
    return 0 if ended.is_planned else 1


@click.command("metrics", params=[
    option("--port N", "The port.", default=9942, type=click.IntRange(0, 65535)),
    option("--host ADDRESS", "Where to listen.", default="127.0.0.1"),
])  # fmt: skip
def metrics_command(port: int, host: str) -> None:
    """Serve figures of your processes to Prometheus.

    Of all that take requests, as http://ADDRESS:PORT/metrics: live and held bytes, memory returned
    lazily, page faults, settings in effect, and whether a governor has them. Ctrl-C ends it.
    """
    try:
        made: Any = api.metrics_server(host, port)
    except OSError as error:
        raise UsageError(f"cannot listen on {host} port {port}: {error.strerror}") from None
    with made:
        click.echo(f"serving http://{host}:{made.server_port}/metrics; Ctrl-C ends it", err=True)
        made.serve_forever()
