"""Twenty servers under load, ten with a profile, judged through Prometheus; needs root for limits.

real.py better     glibc is told to keep what it would give back and take again
real.py killed     jemalloc keeps all that it ever had, under a limit of memory that it passes
real.py equal      both groups are started alike
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from hztune import api, artifacts

UNITS = 20
STEP_S, BASELINE_S = 3, 45
PAUSE_S = 0.06  # between two requests of a unit
GROUP = Path("/sys/fs/cgroup/memory")
AGENT = {"LD_PRELOAD": str(artifacts.agent())}
KEEP = {name: str(32 << 20) for name in
        ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_")}  # fmt: skip
LEAKY = {"LD_PRELOAD": f"libjemalloc.so.2:{artifacts.agent()}",
         "MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1"}  # fmt: skip
LIMITS = {"better": 40 << 20, "killed": 26 << 20, "equal": 40 << 20}
CHANGES = {"better": AGENT | KEEP, "killed": LEAKY, "equal": AGENT}
PROMETHEUS = """
global: {{ scrape_interval: 1s }}
scrape_configs:
  - job_name: hztune
    static_configs: [{{ targets: ["127.0.0.1:{exporter}"] }}]
  - job_name: load
    static_configs: [{{ targets: ["127.0.0.1:{load}"] }}]
"""
SPEC = """
doc = "real.py {change}"
start = "{start}"
groups = "groups.csv"
prometheus = "http://127.0.0.1:{port}"
unit = "process"
step_s = {step}
baseline_s = {baseline}
settle_s = 6
planned_s = 120
hook = "cat > reverted.md"

[[metrics]]
name = "cpu"
query = "hztune_cpu_seconds_total"
per = "load_requests_total"
counter = true
margin = "3%"
target = true

[[metrics]]
name = "memory"
query = "hztune_resident_bytes"
margin = "40%"

[[rails]]
name = "kills"
query = "load_kills_total"
"""


SERVER = """
import random, sys
open("/proc/self/comm", "w").write(sys.argv[1])
kept = []
for _ in sys.stdin:  # a request: buffers of all sizes, of which a few are kept
    made = [bytearray(random.randrange(4000, 400000)) for _ in range(20)]
    kept += made[:2]
    while len(kept) > 60:
        kept.pop(random.randrange(60))
    print(flush=True)
"""


class Unit:
    def __init__(self, name: str, limit: int) -> None:
        self.name, self.limit, self.requests, self.kills = name, limit, 0, 0
        self.start(AGENT)

    def start(self, env: dict[str, str]) -> None:
        self.env = env
        limited = f"echo 0 > {GROUP}/canary-{self.name}/cgroup.procs; exec "
        (GROUP / f"canary-{self.name}").mkdir(exist_ok=True)
        (GROUP / f"canary-{self.name}/memory.limit_in_bytes").write_text(f"{self.limit}\n")
        self.process = subprocess.Popen(
            ["sh", "-c", f'{limited}env "$@"', "sh", *(f"{k}={v}" for k, v in env.items()),
             sys.executable, "-S", "-c", SERVER, self.name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self) -> None:
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
            if not self.process.stdout.readline():
                raise BrokenPipeError
            self.requests += 1
        except BrokenPipeError:
            self.kills += self.process.wait() == -signal.SIGKILL
            self.start(self.env)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def exported(units: list[Unit]) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            lines = [f'load_requests_total{{process="{u.name}"}} {u.requests}' for u in units]
            lines += [f'load_kills_total{{process="{u.name}"}} {u.kills}' for u in units]
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write("\n".join([*lines, ""]).encode())

        def log_message(self, *_: object) -> None:
            pass

    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    return made


def judged(change: str, folder: Path, minutes: str, port: int) -> None:
    units = [Unit(f"web-{n:02d}", LIMITS[change]) for n in range(UNITS)]
    (folder / "units.csv").write_text("".join(f"{unit.name}\n" for unit in units))
    groups = api.assigned(folder / "units.csv", 0.5, seed=int(time.time()))
    (folder / "groups.csv").write_text("\n".join(api.group_lines(groups, "csv")) + "\n")
    load, lock, is_over = exported(units), threading.Lock(), threading.Event()

    def requests() -> None:
        while not is_over.wait(PAUSE_S):
            with lock:
                for unit in units:
                    unit.ask()

    (folder / "prometheus.yml").write_text(
        PROMETHEUS.format(exporter=port + 1, load=load.server_port)
    )
    hztune = [sys.executable, "-m", "hztune"]
    beside = [
        subprocess.Popen([*hztune, "metrics", "--port", str(port + 1)], stderr=subprocess.DEVNULL),
        subprocess.Popen(["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data",
                          f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"],
                         cwd=folder),
    ]  # fmt: skip
    thread = threading.Thread(target=requests)
    thread.start()
    try:
        time.sleep(BASELINE_S)
        with lock:  # both groups are as old
            for unit, drawn in zip(units, sorted(groups), strict=True):
                unit.end()
                unit.start(CHANGES[change] if drawn.is_treated else AGENT)
        start = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 1))
        (folder / "spec.toml").write_text(SPEC.format(
            change=change, start=start, port=port, step=STEP_S, baseline=BASELINE_S))  # fmt: skip
        began = time.monotonic()
        ended = subprocess.run([*hztune, "canary", "judge", "spec.toml", "--watch", "--for",
                                minutes, "--log", "rows.jsonl", "--picture", "canary.svg"],
                               cwd=folder)  # fmt: skip
        print(f"exit status {ended.returncode} after {time.monotonic() - began:.0f} s")
    finally:
        is_over.set()
        thread.join()
        for unit in units:
            unit.end()
            (GROUP / f"canary-{unit.name}").rmdir()
        for each in beside:
            each.terminate()
            each.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("change", choices=CHANGES)
    parser.add_argument("--for", dest="minutes", default="4m")
    parser.add_argument("--port", type=int, default=19090)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        judged(asked.change, Path(folder), asked.minutes, asked.port)


if __name__ == "__main__":
    main()
