"""Builds of the core, and runs of programs of which nothing is left when they have ended."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
from pathlib import Path

from tests.soak.stages import Settings

ROOT = Path(__file__).parents[2]
TOOK_TOO_LONG = 124


def run(words: list[str], settings: Settings, log: Path, seconds: float) -> int:
    """One run; whatever it has started is gone afterwards."""
    plain = {k: v for k, v in os.environ.items() if not k.startswith("HZ_") and k != "LD_PRELOAD"}
    with log.open("wb") as out:
        process = subprocess.Popen(
            words,
            env={**plain, **settings},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        try:
            return process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return TOOK_TOO_LONG
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def built(out: Path, flags: str) -> Path:
    """The core with its tests, built with these flags."""
    build = out / f"build-{hashlib.sha256(flags.encode()).hexdigest()[:8]}"
    configure = ["cmake", "-S", str(ROOT / "core"), "-B", str(build), "-DHZ_BUILD_TESTS=ON"]
    configure += ["-DHZ_BUILD_BENCH=OFF", f"-DCMAKE_C_FLAGS={flags}"]
    for words in (configure, ["cmake", "--build", str(build), "--parallel", "2"]):
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return build
