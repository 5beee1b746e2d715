"""A server and its load, with the phases of `phases.c` and what it prints.

service.py KIND PORT SECONDS SEED FILE

KIND is redis (its dataset grows and expires) or web (a service in Python whose sessions do). The
first line that is printed is the PID of the server; FILE has the number of requests so far.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from random import Random

from hztune.process import cpu_seconds

SLICE_S = 0.02
PHASES = {"burst": 8.0, "steady": 12.0, "idle": 16.0}  # mean seconds
RATES = {
    "redis": {"burst": 12000.0, "steady": 1500.0, "idle": 20.0},
    "web": {"burst": 120.0, "steady": 15.0, "idle": 0.5},
}
"""Requests a second."""

REDIS = ["redis-server", "--save", "", "--appendonly", "no", "--activedefrag", "no"]
LIFE_S = 4  # of a key or a session
PIPELINED = 50
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


# ---- the service in Python -----------------------------------------------------------------------


class Sessions(BaseHTTPRequestHandler):
    """Answers with rows as JSON, and keeps them for the session."""

    wbufsize = -1
    kept: dict[str, tuple[float, object]] = {}  # noqa: RUF012

    def do_GET(self) -> None:
        now, rng = time.monotonic(), Random(self.path)
        rows = [{"id": at, "text": "x" * rng.randrange(20, 4000)} for at in range(300)]
        self.kept[self.path] = now + LIFE_S, rows
        body = json.dumps(rows[:30]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Server(HTTPServer):
    def service_actions(self) -> None:
        now = time.monotonic()
        for key in [key for key, (until, _) in Sessions.kept.items() if until < now]:
            del Sessions.kept[key]


# ---- load ----------------------------------------------------------------------------------------


def redis_sender(port: int, rng: Random) -> Callable[[int], int]:
    """Sends at least so many requests at once and waits for the answers; returns how many."""
    connection = socket.create_connection(("127.0.0.1", port))
    values = [bytes(rng.randrange(50, 6000)) for _ in range(200)]

    def send(count: int) -> int:
        batch = []
        for _ in range(min(count, PIPELINED)):
            key, value = b"%d" % rng.randrange(10**6), rng.choice(values)
            batch.append(b"*5\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n$2\r\nEX\r\n$1\r\n%d\r\n"
                         % (len(key), key, len(value), value, LIFE_S))  # fmt: skip
        connection.sendall(b"".join(batch))
        left = len(batch) * len(b"+OK\r\n")
        while left:
            left -= len(connection.recv(left))
        return len(batch)

    return send


def web_sender(port: int, rng: Random) -> Callable[[int], int]:
    connection = HTTPConnection("127.0.0.1", port)

    def send(_: int) -> int:
        connection.request("GET", f"/{rng.randrange(10**6)}")
        connection.getresponse().read()
        return 1

    return send


@dataclass
class Phase:
    name: str
    rate: float
    seconds: float = 0.0
    requests: int = 0
    cpu_s: float = 0.0
    mib_s: float = 0.0


def worked(now: Phase, pid: int, send: Callable[[int], int], seconds: float, log: Path,
           requests: int) -> int:  # fmt: skip
    """Loads the server for some seconds; returns the requests since the start."""
    began, done = time.monotonic(), 0
    cpu_s, at = cpu_seconds(pid), began
    while at < began + seconds:
        ends = at + SLICE_S
        while done < (ends - began) * now.rate and time.monotonic() < ends:
            done += send(int((ends - began) * now.rate) - done + 1)
        time.sleep(max(0.0, ends - time.monotonic()))
        resident, shared = Path(f"/proc/{pid}/statm").read_text().split()[1:3]
        mib = (int(resident) - int(shared)) * PAGE_BYTES / 2**20
        now.mib_s += mib * (time.monotonic() - at)
        at = time.monotonic()
        log.write_text(f"{requests + done}\n")
    now.seconds += at - began
    now.requests += done
    now.cpu_s += cpu_seconds(pid) - cpu_s
    return requests + done


def loaded(kind: str, port: int, pid: int, seconds: float, seed: int, log: Path) -> None:
    plan, requests, name = Random(seed), 0, ""
    send = {"redis": redis_sender, "web": web_sender}[kind](port, Random(seed + 1))
    phases = {name: Phase(name, rate) for name, rate in RATES[kind].items()}
    while seconds > 0.0:
        name = plan.choice([each for each in PHASES if each != name])
        lasts = min(seconds, 4.0 + plan.random() * 2.0 * (PHASES[name] - 4.0))
        requests = worked(phases[name], pid, send, lasts, log, requests)
        seconds -= lasts
    for each in phases.values():
        mib = each.mib_s / max(each.seconds, 1e-9)
        print(f"{each.name} {each.seconds:.2f} {each.requests} {each.cpu_s:.3f} {mib:.1f}")


def main() -> None:
    kind, port, seconds, seed, log = sys.argv[1:]
    if kind == "serve":
        Server(("127.0.0.1", int(port)), Sessions).serve_forever(poll_interval=0.2)
    command = (
        [*REDIS, "--port", port]
        if kind == "redis"
        else [sys.executable, __file__, "serve", port, "0", "0", ""]
    )
    server = subprocess.Popen(
        command, env={**os.environ, "PYTHONMALLOC": "malloc"}, stdout=subprocess.DEVNULL
    )
    try:
        for _ in range(100):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", int(port))):
                break
            time.sleep(0.1)
        print(server.pid, flush=True)
        loaded(kind, int(port), server.pid, float(seconds), int(seed), Path(log))
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    main()
