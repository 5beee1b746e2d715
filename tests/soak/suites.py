"""Programs of public suites, built elsewhere: each on the C library's malloc, and on hz."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from tests.soak.running import built, run
from tests.soak.stages import Settings

# Where they are looked for if the command line does not say it.
PLACE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hz-suites"
MUST_CRASH = "must-crash"
UNSUPPORTED = 77
DEADLINE_S = 60
MODES: dict[str, Settings] = {
    "default": {},
    "light": {"HZ_HARDENING": "light"},
    "full": {"HZ_HARDENING": "full"},
}
NEEDED = f"""\
There are no programs of public suites in {{place}}.

They are other people's work and not part of this repository: fetch and build them yourself, one
directory a suite, each program an executable file or a script that starts one (of GoogleTest a
script a case: exec TEST --gtest_filter=CASE). A program passes with exit status 0; in a directory
whose name ends in {MUST_CRASH}, by being killed by a signal. Status {UNSUPPORTED}: does
not apply. tests/soak/README.md names the suites, what they gave, and the reason of each difference.

    python -m tests.soak --suites [DIRECTORY]      (looked for in {PLACE})
"""


def programs(place: Path) -> dict[str, list[Path]]:
    """The programs of each suite; empty if there are none."""
    folders = sorted(p for p in place.iterdir() if p.is_dir()) if place.is_dir() else []
    found = {
        folder.name: sorted(
            p
            for p in folder.iterdir()
            if p.is_file() and os.access(p, os.X_OK) and ".so" not in p.suffixes
        )
        for folder in folders
    }
    return {name: each for name, each in found.items() if each}


def passes(program: Path, settings: Settings, log: Path) -> bool | None:
    """Whether it does; None where it does not apply."""
    with tempfile.TemporaryDirectory() as empty:
        status = run([str(program)], settings, log, DEADLINE_S, Path(empty))
    if status == UNSUPPORTED:
        return None
    return status < 0 if program.parent.name.endswith(MUST_CRASH) else status == 0


def suites(place: Path, out: Path) -> dict[str, Any]:
    """How many programs of each suite pass where; failed: on hz's default and not on glibc."""
    preload = {"LD_PRELOAD": str(built(out, "") / "libhz.so")}
    log = out / "suites.log"
    counts, failed, runs = {}, [], 0
    for name, each in programs(place).items():
        alone = {p: passes(p, {}, log) for p in each}
        applicable = [p for p in each if alone[p] is not None]
        good = {mode: [p for p in applicable if passes(p, {**preload, **settings}, log)]
                for mode, settings in MODES.items()}  # fmt: skip
        passed = {mode: len(them) for mode, them in good.items()}
        glibc = sum(alone[p] is True for p in applicable)
        counts[name] = {"applicable": len(applicable), "glibc": glibc, **passed}
        failed += [f"{name}/{p.name}" for p in applicable if alone[p] and p not in good["default"]]
        runs += len(applicable) * (1 + len(MODES))
        print(f"  {name:24} {counts[name]}", flush=True)
    return {"stage": "suites", "goals": "-", "runs": runs, "counts": counts, "failed": failed}
