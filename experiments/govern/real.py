"""The planted program, or a server under load: governed, and with each setting for all phases.

gcc -O2 -o phases experiments/govern/phases.c
python experiments/govern/real.py ./phases --allocator jemalloc --seconds 600 --log FILE
python experiments/govern/real.py redis
python experiments/govern/real.py web --allocator glibc --series FILE    # what draw.py draws
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from multiprocessing import Process
from pathlib import Path

from msgspec.structs import replace

from hztune import allocator, artifacts
from hztune.errors import HztuneError
from hztune.govern import policy, steer
from hztune.govern.observe import Watched

GIB_PER_CPU = 4.0
SERVICE = Path(__file__).with_name("service.py")
IDLE, BURST = ("idle",), ("burst",)


def policy_of(count: Path, *, is_named: bool) -> policy.Policy:
    """The shipped policy with the work that the program counts, and with short epochs."""
    shipped = policy.load("cheapest-mix")
    contexts = {"lean": IDLE, "keep": BURST} if is_named else {}
    return replace(
        shipped,
        arms=tuple(replace(arm, contexts=contexts.get(arm.name, ())) for arm in shipped.arms),
        figure=policy.FigureSource(log=str(count), regex="([0-9]+)", counts_work=True),
        gib_per_cpu=GIB_PER_CPU,
        epoch_s=2.0,
    )


class Run:
    """The program on one CPU under a setting by its name, or governed."""

    def __init__(self, asked: argparse.Namespace, folder: Path, cpu: int, name: str) -> None:
        count = folder / f"count-{name}"
        count.write_text("0\n")
        chosen = policy_of(count, is_named=asked.named)
        adapter = allocator.get(asked.allocator)
        settings = chosen.settings_for(asked.allocator).get(name, {})
        env = adapter.environment(settings, adapter.installed())
        preloads = ":".join(filter(None, [env.get("LD_PRELOAD"), str(artifacts.agent())]))
        is_server = asked.subject in ("redis", "web")
        of_server = [sys.executable, str(SERVICE), asked.subject, str(free_port())]
        command = [*(of_server if is_server else [asked.subject]), str(asked.seconds), "1"]
        self._process = subprocess.Popen(
            ["taskset", "-c", str(cpu), *command, str(count)],
            env={**os.environ, **env, "LD_PRELOAD": preloads, "HZ_CONTROL": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        pid = int(self._process.stdout.readline()) if is_server else self._process.pid
        if name == "governed":
            Process(target=govern, args=(pid, chosen, asked.log, asked.series)).start()
        Process(target=watch, args=(pid, name, chosen, asked.series)).start()

    def told(self) -> str:
        return self._process.communicate()[0]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def govern(pid: int, chosen: policy.Policy, log: Path, series: Path) -> None:
    with open(log, "w") as file:
        steer.steered(pid, chosen, lambda line: print(line, file=file, flush=True), log=series)


def watch(pid: int, name: str, chosen: policy.Policy, series: Path) -> None:
    """Adds a line of JSON for each half second until the process ends."""
    watched = Watched(pid, chosen.figure)
    with suppress(HztuneError), open(series, "a") as file:
        while seen := watched.look():
            line = {"time": time.time(), "run": name, "mib": seen.memory_bytes / 2**20}
            print(json.dumps({**line, "work": seen.work}), file=file, flush=True)
            watched.rest(0.5, until_busy=False)


def cost(told: str) -> float:
    """CPU seconds of a run, with memory at its price."""
    rows = [line.split() for line in told.splitlines()]
    return sum(
        float(cpu_s) + float(seconds) * float(mib) / 1024.0 / GIB_PER_CPU
        for _, seconds, _, cpu_s, mib in rows
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("subject", help="a program like phases.c, redis or web")
    parser.add_argument("--allocator", default="jemalloc")
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--named", action="store_true", help="a setting for idle and for bursts")
    parser.add_argument("--log", type=Path, default=Path(os.devnull))
    parser.add_argument("--series", type=Path, default=Path(os.devnull))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for pair in (("start", "governed"), ("lean", "keep")):
            runs = [Run(asked, Path(folder), cpu, name) for cpu, name in enumerate(pair)]
            for name, run in zip(pair, runs, strict=True):
                told = run.told()
                print(f"{asked.subject} {asked.allocator} {name}: {cost(told):.2f} CPU seconds")
                print(told, end="", flush=True)


if __name__ == "__main__":
    main()
