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
GIB_PER_CPU = 4.0
POLICY = """
doc = "planted"
epoch_s = 2.0
gib_per_cpu = 4.0
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
        words = ('"idle"', '"burst"') if asked.named else ("", "")
        policy.write_text(POLICY.format(count=count, idle=words[0], burst=words[1]))
        command = [sys.executable, "-m", "hztune", "govern", str(policy), "--pid", str(made.pid)]
        with open(asked.log, "w") as log:
            subprocess.Popen(command, stderr=log)
    return made


def cost(told: str) -> float:
    """CPU seconds of a run, with memory at its price."""
    rows = [line.split() for line in told.splitlines()]
    return sum(
        float(cpu_s) + float(seconds) * float(mib) / 1024.0 / GIB_PER_CPU
        for _, seconds, _, cpu_s, mib in rows
    )


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
    for name, each in told.items():
        print(f"{name}: {cost(each):.2f} CPU seconds\n{each}", end="")


if __name__ == "__main__":
    main()
