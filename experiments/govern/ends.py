"""Real processes whose governor, or which themselves, are killed or stopped at random times.

ends.py [--count 200]     how many have their start's settings eleven seconds later, and live
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import Random

from hztune import artifacts
from hztune.attach import statistics_of
from hztune.attach.channel import Process

AT_ONCE = 10
LATER_S = 11.0  # a lease of ten seconds, and a second for a busy machine
BUSY = "import time\nwhile True:\n x = [bytes(9999) for _ in range(99)]\n time.sleep(0.05)"
POLICY = (
    'doc = "an arm for every context"\n[[arms]]\nname = "lean"\n'
    'contexts = ["idle", "steady", "burst"]\nsettings.hz = { decay_ms = 0 }\n'
)
ENDS = ("kill governor", "stop governor", "kill process", "kill both")


def decay_of(process: subprocess.Popen[bytes]) -> object:
    return statistics_of(Process.of(process.pid)).parts[0].levers["decay_ms"]


def outcome(seed: int, policy: Path) -> str:
    """What came of one process."""
    rng = Random(seed)
    end, after_s = ENDS[seed % len(ENDS)], rng.uniform(0.0, 6.0)
    env = {**os.environ, "HZ_CONTROL": "1", "LD_PRELOAD": str(artifacts.library())}
    process = subprocess.Popen([sys.executable, "-c", BUSY], env=env)
    words = [sys.executable, "-m", "hztune", "govern", str(policy), "--pid", str(process.pid)]
    governor = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    try:
        start = decay_of(process)
        time.sleep(after_s)
        if end != "kill process":
            governor.send_signal(signal.SIGSTOP if end == "stop governor" else signal.SIGKILL)
        if end in ("kill process", "kill both"):
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                governor.wait(LATER_S)
            return f"{end}: " + (
                "its governor ended" if governor.poll() is not None else "it stays"
            )
        time.sleep(LATER_S)
        is_back = process.poll() is None and decay_of(process) == start
        return f"{end}: " + ("settings of the start" if is_back else "NOT BACK")
    finally:
        for each in (process, governor):
            each.kill()
            each.wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=200)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        policy = Path(folder) / "policy.toml"
        policy.write_text(POLICY)
        found = list(pool.map(lambda seed: outcome(seed, policy), range(asked.count)))
    for each in sorted({*found}):
        print(f"{found.count(each):4} {each}")


if __name__ == "__main__":
    main()
