"""Servers: started afresh under the candidate, put under load, and stopped.

The load runs beside the server without the candidate's variables; its time, or what it prints, is
the measurement. Whatever ends the run, the load and the whole tree of the server end with it.

By runs one server lives at a time, so that it may always use the same port. Else each copy has a
free port `{port}` and a scratch directory `{dir}`: two may live at once, and none finds what the
one before left behind (files, connections that the kernel has not forgotten). By turns hz-alternate
lets server and load go on and stand still together; the server's start and its rest after the load
are not counted. The server's report comes last; without it, no run counts.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from hztune import artifacts, process
from hztune.allocator import live
from hztune.errors import HztuneError
from hztune.files import scratch_folder, text_or_empty
from hztune.measure.disturbance import Watch
from hztune.measure.identity import Fault
from hztune.measure.launch import (
    ENDED_AT_REST,
    Launch,
    Run,
    Unit,
    launched,
    rest_once,
    time_once,
)
from hztune.measure.program import (
    OUTPUT_BYTES,
    TOO_MUCH,
    Program,
    Service,
    filled,
    hook,
    placeholders,
)
from hztune.measure.watch import MemoryWatch, port_in_words, ports_of, tree_cpu_ns
from hztune.rests import RestPlan

_ASK_S = 5.0
_PAUSE_S = 0.02
_STOP_S = 10.0
LAST_WORDS_S = 1.0  # for a server whose load has failed: it may be about to end
IN_BACKGROUND = Fault(
    "failed",
    "the server went to the background: its first process ended, and left others, which were "
    "ended; start it so that it stays in the foreground",
)

LOAD_SPAN_S = 2.0  # how long a load is left alone that goes on until it is told to end

_ASK_AGAIN = 4  # times the span is gone: it is told again; Python loses a SIGINT as it starts

LOAD_PATIENCE_S = 20.0  # a load that prints a number and takes longer is told to end, as a trial

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST_PORT = 10_000
_LEAST_PORTS = 1_000
_LAST_PORT = 65_535
_TRIES = 100
_PORTS = random.SystemRandom()

OF_SERVER = ("pid", "rss_peak_kb", "library", "stderr", "seen", "left")
"""What the run of a server and its load has from the server."""

Use = Callable[[Launch], Run]  # waits until a server answers, and does with it what is measured


def serve_once(
    unit: Unit,
    *,
    rest: RestPlan | None = None,
    use: Use | None = None,
    most_s: float = 0.0,
) -> Run:
    """Runs a server with its load, or `use`, which takes `most_s`; HztuneError: port in use."""
    service = _service(unit.program)
    if service.port and _listens(service.port):
        raise HztuneError(
            f"something answers on port {service.port} already; stop it, or write {{port}} in the "
            "commands instead of the number: each run then has a free port of its own"
        )
    rounds, idle_s = (rest.rounds, rest.idle_s) if rest else (1, 0.0)
    needed_s = most_s or unit.program.ready_s + rounds * (unit.limit_s + idle_s)
    with launched(unit, more_s=needed_s + _STOP_S - unit.limit_s) as launch:
        used = use(launch) if use else _used(launch, unit, rest)
        if used.fault is not None and used.fault.status != "hang":
            launch.child.wait(LAST_WORDS_S)
        done = launch.child.stop(_STOP_S)
    run, status = launch.run(done)
    told = {name: getattr(run, name) for name in OF_SERVER}
    fault = used.fault if status == "interrupted" else ended_by_itself(run)
    return replace(used, fault=fault, cpu_ns=run.cpu_ns, **told)


def run_once(unit: Unit, rest: RestPlan | None = None) -> Run:
    with with_port_and_dir(unit.program) as program, contextlib.ExitStack() as afterwards:
        unit = replace(unit, program=program)
        hook("--prepare", program.prepare, unit.base)
        afterwards.callback(hook, "--cleanup", program.cleanup, unit.base)
        watch, began_ns = Watch(), time.monotonic_ns()
        if program.service is not None:
            run = serve_once(unit, rest=rest)
        else:
            run = rest_once(unit) if rest else time_once(unit)
        alive_s = 1e-9 * (time.monotonic_ns() - began_ns)
        run = replace(run, start_ns=began_ns, alive_s=alive_s, passed=watch.passed())
    return run


def _used(launch: Launch, unit: Unit, rest: RestPlan | None) -> Run:
    server, program = launch.child, unit.program
    watch = MemoryWatch(server.pid, rest or RestPlan())
    with watch.watching() if rest else contextlib.nullcontext():
        fault = answers(program, unit.base, server.wait, server.pid)
        if fault is not None:
            return Run(fault)
        before_ns, rates, wall_s = tree_cpu_ns(server.pid), list[float](), 0.0
        for _ in range(rest.rounds if rest else 1):
            watch.load()
            used = under_load(server, unit)
            if used.fault is not None:
                return used
            wall_s += used.wall_s
            if rest:
                rate = program.measure(used.wall_s, used.stdout)
                if isinstance(rate, Fault):
                    return Run(rate)
                if not watch.rest(server.wait):
                    return Run(ENDED_AT_REST)
                rates.append(rate)
        worked_ns = tree_cpu_ns(server.pid) - before_ns
    rested = watch.rested(fmean(rates)) if rest else None
    return replace(used, wall_s=wall_s, server_cpu_ns=worked_ns, rested=rested)


def under_load(server: process.Child, unit: Unit) -> Run:
    """Puts a server that answers under load once; returns the time and the words of the load."""
    span_s = unit.program.span_s
    words = ["/bin/sh", "-c", _service(unit.program).load]
    with process.Child(words, env=unit.base, output_limit=OUTPUT_BYTES) as load:
        began, was_told, ask_s = time.monotonic(), False, span_s or math.inf
        while not load.wait(_PAUSE_S) and time.monotonic() < began + unit.limit_s:
            if server.wait(0.0):
                return Run(Fault("failed", "the server ended under load"))
            if time.monotonic() > began + ask_s:
                was_told, ask_s = True, _ASK_AGAIN * ask_s
                os.killpg(load.pid, signal.SIGINT)
        done = load.finish(0.0)
    if done.timed_out:
        late = unit.overtime(done.stderr)
        return Run(replace(late, detail=f"--load: {late.detail}"))
    if not (done.ok or (was_told and ended_when_told(done.code))):
        return Run(Fault("failed", f"--load {done.describe()}"))
    if done.truncated:
        return Run(Fault("bad_output", f"--load {TOO_MUCH.detail.removeprefix('it ')}"))
    return Run(None, wall_s=done.wall_s, stdout=done.stdout, was_told=was_told)


def ended_when_told(code: int) -> bool:
    """Whether an exit status, or minus a signal, is that of a load that ended as it was told to."""
    return code in (0, -signal.SIGINT, 128 + signal.SIGINT)


def answers(
    program: Program, base: Mapping[str, str], ended: Callable[[float], bool], launcher: int
) -> Fault | None:
    """Waits until a server below `launcher` answers; returns why it does not."""
    service = _service(program)
    deadline = time.monotonic() + program.ready_s

    def ports() -> set[str]:
        return {port for pid in live.descendants(launcher) for port in ports_of(pid)}

    def is_ready() -> bool:
        if not service.ready and program.has_network:
            return port_in_words(service.port) in ports()
        if not service.ready:
            return _listens(service.port)
        words = ["/bin/sh", "-c", service.ready]
        if program.has_network:
            words = [str(artifacts.launch()), "--network-of", str(launcher), "--", *words]
        return process.run(words, env=base, deadline_s=_ASK_S).ok

    while not ended(_PAUSE_S):
        if is_ready():
            return None
        if time.monotonic() > deadline:
            where = f"to --ready {service.ready!r}" if service.ready else f"on port {service.port}"
            more = "a longer --ready-timeout is waited for"
            if not service.ready and (found := ports()):
                more = f"it listens on {' and '.join(sorted(found))}"
            late = f"the server did not answer {where} within {program.ready_s:g} s; {more}"
            return Fault("hang", late)
    return Fault("failed", "the server ended before it answered")


def ended_by_itself(run: Run) -> Fault:
    if run.fault is not None:
        return Fault(run.fault.status, f"the server ended: {run.fault.detail}")
    by_itself = Fault("failed", "the server ended by itself, with status 0")
    return IN_BACKGROUND if run.left else by_itself


def _service(program: Program) -> Service:
    assert program.service is not None, "not a server"
    return program.service


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("localhost", port), _ASK_S):
        return True
    return False


# ---- a port and a directory ----------------------------------------------------------------------


@contextmanager
def with_port_and_dir(program: Program) -> Iterator[Program]:
    """Gives a server its own for as long as the block lasts; other programs stay as they are."""
    service = program.service
    if service is None:
        yield program
        return
    around = program.prepare, program.cleanup, service.load, service.ready
    asked = placeholders(*program.argv, *around)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(scratch_folder()) if "dir" in asked else None
        port = _free_port() if "port" in asked else 0
        values = {"port": str(port), "dir": str(folder)}
        prepare, cleanup, load, ready = (filled(each, values) for each in around)
        yield replace(
            program,
            argv=tuple(filled(word, values) for word in program.argv),
            prepare=prepare,
            cleanup=cleanup,
            service=replace(service, load=load, ready=ready, port=service.port or port),
        )


def _free_port() -> int:
    """A port that a server could take on any address, and no outgoing connection gets by chance.

    Drawn at random, so that two processes hardly find the same one; outside the kernel's own
    choices, unless they are nearly all ports.
    """
    first = int((text_or_empty(_EPHEMERAL).split() or ["0"])[0])
    end = first if first >= _FIRST_PORT + _LEAST_PORTS else _LAST_PORT + 1
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    for _ in range(_TRIES):
        place = ("", _PORTS.randrange(_FIRST_PORT, end))
        with contextlib.suppress(OSError):
            socket.create_server(place, family=family, dualstack_ipv6=both).close()
            return place[1]
    raise HztuneError(
        f"{_TRIES} ports from {_FIRST_PORT} to {end - 1} were tried for {{port}}, and each is in "
        "use; end what holds them"
    )
