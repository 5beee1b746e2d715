"""What the processes of this user hold, in the text format of Prometheus; names are stable."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from hztune.attach import Statistics, channel, statistics_of
from hztune.attach.channel import Process
from hztune.errors import HztuneError
from hztune.process import cpu_seconds, stat_words

_ASKED_AT_ONCE = 32  # each may take seconds: a stopped one does not answer

_HELP = {
    "live_bytes": "Bytes that the program has from an allocator.",
    "held_bytes": "Bytes that an allocator has of the system's memory.",
    "cached_bytes": "Bytes of it that wait in the caches of threads.",
    "resident_bytes": "Resident memory of the process.",
    "anonymous_bytes": "Resident memory that is of no file.",
    "lazy_bytes": "Anonymous memory that was returned lazily (MADV_FREE).",
    "swapped_bytes": "Memory of the process that is swapped out.",
    "threads": "Threads of the process.",
    "cpu_seconds_total": "CPU time of the process since its start.",
    "minor_faults_total": "Page faults without input or output since its start.",
    "setting": "A setting in effect that is a number.",
    "governed": "Whether a governor has a lease on its settings.",
}


def exposition(found: Iterable[Statistics]) -> str:
    """The samples of some processes, grouped by name as the format asks for."""
    samples = [sample for each in found for sample in _samples(each)]
    lines = []
    for name, told in _HELP.items():
        own = [(labels, value) for each, labels, value in samples if each == name]
        if own:
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# HELP hztune_{name} {told}", f"# TYPE hztune_{name} {kind}"]
            lines += [f"hztune_{name}{{{labels}}} {value}" for labels, value in own]
    return "\n".join([*lines, ""])


def _samples(found: Statistics) -> Iterator[tuple[str, str, float]]:
    """Name, labels and value of each."""
    of = _labels(pid=str(found.pid), process=found.name)
    for name in ("resident_bytes", "anonymous_bytes", "lazy_bytes", "swapped_bytes"):
        yield name, of, getattr(found.memory, name)
    yield "threads", of, found.thread_count
    yield "governed", of, int(found.is_governed)
    with suppress(OSError, LookupError):
        yield "cpu_seconds_total", of, cpu_seconds(found.pid)
        yield "minor_faults_total", of, int(stat_words(found.pid)[7])
    for part in found.parts:
        own = f"{of},{_labels(allocator=part.allocator)}"
        for name in ("live_bytes", "held_bytes", "cached_bytes"):
            if (size := getattr(part, name)) is not None:
                yield name, own, size
        for setting, value in {**part.settings, **part.levers}.items():
            if isinstance(value, int):
                yield "setting", f"{own},{_labels(setting=setting)}", value


def _labels(**named: str) -> str:
    quoted = {ord("\\"): "\\\\", ord('"'): '\\"', ord("\n"): "\\n"}
    return ",".join(f'{name}="{value.translate(quoted)}"' for name, value in named.items())


def all_processes() -> Iterator[Statistics]:
    with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
        yield from filter(None, pool.map(_told_by, Path("/proc").iterdir()))


def _told_by(folder: Path) -> Statistics | None:
    with suppress(HztuneError, OSError):
        is_own = folder.name.isdigit() and folder.stat().st_uid == os.geteuid()
        if is_own and channel.socket_of(int(folder.name)) is not None:
            return statistics_of(Process.of(int(folder.name)))
    return None


class _Handler(BaseHTTPRequestHandler):
    timeout = 10.0  # seconds after which a connection that asks nothing is closed

    def do_GET(self) -> None:
        is_asked = self.path.partition("?")[0] == "/metrics"
        body = exposition(all_processes()).encode() if is_asked else b""
        with suppress(ConnectionError):  # whoever asked has gone
            self.send_response(200 if is_asked else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes are not logged."""


def server(host: str, port: int) -> ThreadingHTTPServer:
    """What answers scrapes of /metrics; port 0 is any free one. OSError: it cannot listen there."""
    return ThreadingHTTPServer((host, port), _Handler)
