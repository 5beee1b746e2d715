"""Units for systemd that measure the profiles of a folder again: a service, and its timer."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from hztune import files
from hztune.errors import UsageError

NAME = "hztune-verify"


def write(folder: Path, to: Path) -> tuple[Path, Path]:
    """Writes the service and the timer that verify a folder once a week.

    Args:
        folder: Of the profiles.
        to: Where the units go: /etc/systemd/system, or ~/.config/systemd/user; it is made if it is
            not there.

    Returns:
        Their files.

    Raises:
        UsageError: A path cannot stand in a unit.
        HztuneError: The file system refused.
    """
    own = shutil.which("hztune")
    command = [own] if own else [sys.executable, "-m", "hztune"]
    words = [*command, "verify", "--all", str(folder.absolute()), "--due", "--quiet"]
    files.make_folder(to)
    service, timer = (to / f"{NAME}.{kind}" for kind in ("service", "timer"))
    files.write_whole(service, _SERVICE.format(command=" ".join(map(_quoted, words))))
    files.write_whole(timer, _TIMER)
    return service, timer


def _quoted(word: str) -> str:
    """A word of ExecStart; `%` would be a specifier, `$` a variable."""
    if not word.isprintable():
        raise UsageError(f"{word!r} cannot stand in a unit: it holds a control character")
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


_SERVICE = """\
# Measures the profiles that are due again. Where a claim no longer holds, the status is 4 and the
# unit has failed: OnFailure= can tell you of it. `hztune history` prints what was found.
[Unit]
Description=Measure the claims of hztune's profiles again

[Service]
Type=oneshot
ExecStart={command}
"""

_TIMER = """\
# Place both files in /etc/systemd/system or ~/.config/systemd/user, then
# systemctl [--user] daemon-reload && systemctl [--user] enable --now hztune-verify.timer
[Unit]
Description=Measure the claims of hztune's profiles again, once a week

[Timer]
OnCalendar=weekly
RandomizedDelaySec=1h
Persistent=true

[Install]
WantedBy=timers.target
"""
