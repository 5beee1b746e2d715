"""One run of a server: started afresh under the candidate, put under load, and stopped.

Only one server runs at a time, so that it may always use the same port. The load runs beside it
without the candidate's variables; its time, or what it prints, is the measurement. Whatever ends
the run, the load and the whole tree of the server end with it.
"""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from hztune import process
from hztune.allocator import live
from hztune.errors import HztuneError
from hztune.measure.identity import Fault
from hztune.measure.launch import Run, launched
from hztune.measure.program import OUTPUT_BYTES, Program, Service
from hztune.measure.watch import Look

_READY_S = 60.0
_ASK_S = 5.0
_PAUSE_S = 0.02
_STOP_S = 10.0
_ENDED = Fault("failed", "the server ended by itself, with status 0")
_PSS = re.compile(r"^Pss: +(\d+) kB$", re.M)


def serve_once(
    program: Program,
    seed: int,
    base: Mapping[str, str],
    changes: Mapping[str, str],
    timeout_s: float,
    look: Look,
) -> Run:
    """Runs the server, and the load once; see `timer.time_once`.

    Raises:
        HztuneError: Something answers on the server's port before it is started.
        UsageError: The server cannot be started at all.
    """
    service = program.service
    assert service is not None, "not a server"
    if service.port and _listens(service.port):
        raise HztuneError(
            f"something answers on port {service.port} already; stop it, or give the server another"
        )
    limit_s = _READY_S + timeout_s + service.idle_s + _STOP_S
    with launched(program, seed, base, changes, limit_s, look) as launch:
        used = _use(launch.child, service, base, timeout_s)
        done = launch.child.stop(_STOP_S)
    run, status = launch.run(done)
    ended_by_itself = status != "interrupted"
    return replace(
        run,
        fault=(run.fault or _ENDED) if ended_by_itself else used.fault,
        wall_s=used.wall_s,
        stdout=used.stdout,
        idle_kb=used.idle_kb,
    )


def _use(server: process.Child, service: Service, base: Mapping[str, str], limit_s: float) -> Run:
    """Waits until the server answers, puts it under load, and reads its idle memory."""
    fault = _answers(server, service, base)
    if fault is not None:
        return Run(fault)
    with process.Child(
        ["/bin/sh", "-c", service.load], env=base, output_limit=OUTPUT_BYTES
    ) as load:
        deadline = time.monotonic() + limit_s
        while not load.wait(_PAUSE_S) and time.monotonic() < deadline:
            if server.wait(0.0):
                return Run(Fault("failed", "the server ended under load"))
        done = load.finish(0.0)
    if not done.ok:
        return Run(Fault("hang" if done.timed_out else "failed", f"--load {done.describe()}"))
    if done.truncated:
        return Run(Fault("bad_output", f"--load printed more than {OUTPUT_BYTES >> 20} MiB"))
    idle_kb = 0
    if service.idle_s and not server.wait(service.idle_s):
        idle_kb = _tree_kb(server.pid)
    return Run(None, wall_s=done.wall_s, stdout=done.stdout, idle_kb=idle_kb)


def _answers(server: process.Child, service: Service, base: Mapping[str, str]) -> Fault | None:
    """Waits until the server answers; returns why it does not."""
    deadline = time.monotonic() + _READY_S
    while not server.wait(_PAUSE_S):
        if _is_ready(service, base):
            return None
        if time.monotonic() > deadline:
            return Fault("hang", f"the server did not answer within {_READY_S:g} s")
    return Fault("failed", "the server ended before it answered")


def _is_ready(service: Service, base: Mapping[str, str]) -> bool:
    if not service.ready:
        return _listens(service.port)
    return process.run(["/bin/sh", "-c", service.ready], env=base, deadline_s=_ASK_S).ok


def _listens(port: int) -> bool:
    """Whether something on this machine takes connections on a port."""
    with contextlib.suppress(OSError), socket.create_connection(("localhost", port), _ASK_S):
        return True
    return False


def _tree_kb(launcher: int) -> int:
    """Memory that the processes below hz-launch answer for, KiB."""
    total = 0
    for pid in live.descendants(launcher):
        with contextlib.suppress(OSError):
            found = _PSS.search(Path("/proc", str(pid), "smaps_rollup").read_text())
            total += int(found[1]) if found else 0
    return total
