"""The planted program under jemalloc: governed, and with each setting for all phases.

gcc -O2 -o phases experiments/govern/phases.c
python experiments/govern/real.py --program ./phases --seconds 300 [--named]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from hztune import artifacts

JEMALLOC = "libjemalloc.so.2"
SETTINGS = {"start": {}, "lean": {"dirty_decay_ms": 0}, "keep": {"dirty_decay_ms": 60000}}
GIB_PER_CPU = 8.0
POLICY = """
doc = "planted"
epoch_s = 2.0
exploring = "20%"
brakes = {{ most_pressure = 100.0 }}
figure = {{ log = "{count}", regex = '(\\d+)', counts_work = true }}
[[arms]]
name = "lean"
contexts = [{idle}]
settings.jemalloc = {{ dirty_decay_ms = 0 }}
[[arms]]
name = "keep"
contexts = [{burst}]
settings.jemalloc = {{ dirty_decay_ms = 60000 }}
"""


def started(asked: argparse.Namespace, folder: Path, cpu: int, name: str) -> subprocess.Popen[str]:
    """The program on one CPU, under a setting by its name, or governed."""
    count = folder / f"count-{name}"
    count.write_text("0\n")
    conf = ",".join(f"{key}:{value}" for key, value in SETTINGS.get(name, {}).items())
    command = [str(asked.program.resolve()), str(asked.seconds), "1", str(count)]
    env = {**os.environ, "MALLOC_CONF": conf, "LD_PRELOAD": f"{JEMALLOC}:{artifacts.agent()}"}
    made = subprocess.Popen(
        ["taskset", "-c", str(cpu), *command], env=env, stdout=subprocess.PIPE, text=True
    )
    if name == "governed":
        policy = folder / "policy.toml"
        words = ('"idle", "steady"', '"burst"') if asked.named else ("", "")
        policy.write_text(POLICY.format(count=count, idle=words[0], burst=words[1]))
        command = [sys.executable, "-m", "hztune", "govern", str(policy), "--pid", str(made.pid)]
        with open(asked.log, "w") as log:
            subprocess.Popen(command, stderr=log)
    return made


def cost(told: str, wanted: dict[str, float]) -> tuple[float, dict[str, float]]:
    """CPUs for the requests that are wanted of each phase, with memory at its price."""
    total, requests = 0.0, {}
    for line in told.splitlines():
        phase, seconds, count, cpu_s, mib = line.split()
        requests[phase] = float(count)
        times = wanted.get(phase, float(count)) / float(count) if phase == "burst" else 1.0
        total += (float(cpu_s) + float(seconds) * float(mib) / 1024.0 / GIB_PER_CPU) * times
    return total, requests


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", type=Path, required=True)
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--named", action="store_true")
    parser.add_argument("--log", type=Path, default=Path(os.devnull))
    asked = parser.parse_args()
    told: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for pair in (("start", "governed"), ("lean", "keep")):
            runs = [started(asked, Path(folder), cpu, name) for cpu, name in enumerate(pair)]
            told |= {name: run.communicate()[0] for name, run in zip(pair, runs, strict=True)}
    _, wanted = cost(told["start"], {})
    for name, each in told.items():
        print(f"{name}: {cost(each, wanted)[0]:.2f} CPU seconds\n{each}", end="")


if __name__ == "__main__":
    main()
