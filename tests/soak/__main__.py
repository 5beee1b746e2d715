"""python -m tests.soak: runs the stages, each for its time, and keeps what they told.

A result is a line of RESULTS.jsonl as soon as its stage has ended; a stage that has one is not run
again. A run that failed leaves its output beside it, and its settings and seed in the result.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.soak.stages import CONFIGURATIONS, STAGES, Settings, Stage

ROOT = Path(__file__).parents[2]
SEED = 20261123


def run(words: list[str], settings: Settings, log: Path, seconds: float) -> int:
    """One run; whatever it has started is gone afterwards. 124: it took too long."""
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
            return 124
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


def words_of(stage: Stage, out: Path) -> tuple[list[str], Settings]:
    """What a run of a stage is, and its settings."""
    if stage.program.startswith("tests/"):
        return [sys.executable, "-m", "pytest", "-q", stage.program], {}
    build = built(out, stage.flags)
    preload = {"LD_PRELOAD": str(build / "libhz.so"), "TEST_ALLOCATOR": "libhz.so"}
    return [str(build / "tests" / stage.program)], preload if stage.is_preloaded else {}


def soak(name: str, stage: Stage, out: Path, seconds: float) -> dict[str, Any]:
    """Runs a stage under each configuration in turn, with a new seed each time, for its time."""
    words, preload = words_of(stage, out)
    is_pytest = stage.program.startswith("tests/")
    configurations: tuple[Settings, ...] = ({},) if is_pytest else CONFIGURATIONS
    begun = time.monotonic()
    runs, failures = 0, []
    while runs == 0 or time.monotonic() - begun < seconds:
        chosen = configurations[runs % len(configurations)]
        settings = {**preload, **stage.long, **chosen, "TEST_SEED": str(SEED + runs)}
        log = out / f"{name}-{runs}.log"
        status = run(words, settings, log, 4 * 3600)
        if status == 0:
            log.unlink()
        else:
            failures.append({"status": status, "settings": settings, "log": str(log)})
        runs += 1
    took = round(time.monotonic() - begun)
    return {"stage": name, "goals": stage.goals, "runs": runs, "seconds": took, "failed": failures}


def suites(folder: Path, out: Path) -> dict[str, Any]:
    """Programs of public suites, each alone and then on hz: what passes alone is applicable."""
    preload = {"LD_PRELOAD": str(built(out, "") / "libhz.so")}
    programs = sorted(p for p in folder.iterdir() if p.is_file() and os.access(p, os.X_OK))
    log = out / "suites.log"
    applicable = [p for p in programs if run([str(p)], {}, log, 60) == 0]
    failed = [p.name for p in applicable if run([str(p)], preload, log, 60) != 0]
    passed = len(applicable) - len(failed)
    told = {"passed": passed, "applicable": len(applicable), "failed": failed}
    return {"stage": "suites", "goals": "-", "runs": len(programs), "seconds": 0, **told}


def keep(result: dict[str, Any], results: Path) -> None:
    with results.open("a") as file:
        file.write(json.dumps(result) + "\n")
    failed = len(result["failed"])
    print(
        f"{result['stage']:12} {result['goals']:8} {result['runs']:6} runs  {failed} failed",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("soak-results"))
    parser.add_argument("--minutes", type=float, default=60, help="for each stage")
    parser.add_argument("--stage", action="append", choices=sorted(STAGES), help="only this one")
    parser.add_argument("--suites", type=Path, help="a directory of programs that you have built")
    asked = parser.parse_args()
    out = asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    results = out / "RESULTS.jsonl"
    lines = results.read_text().splitlines() if results.exists() else []
    done = {json.loads(line)["stage"] for line in lines}
    try:
        for name in asked.stage or STAGES:
            if name not in done:
                keep(soak(name, STAGES[name], out, 60 * asked.minutes), results)
        if asked.suites is not None and "suites" not in done:
            keep(suites(asked.suites, out), results)
    except KeyboardInterrupt:
        return 130
    return int(any(json.loads(line)["failed"] for line in results.read_text().splitlines()))


if __name__ == "__main__":
    sys.exit(main())
