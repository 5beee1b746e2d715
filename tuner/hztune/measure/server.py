"""One run of a server: started afresh under the candidate, put under load, and stopped.

Only one server runs at a time, so that it may always use the same port; see `port_and_dir` for
ports that change. The load runs beside it without the candidate's variables; its time, or what it
prints, is the measurement. Whatever ends the run, the load and the whole tree of the server end
with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from hztune import process
from hztune.allocator import live
from hztune.errors import HztuneError
from hztune.measure import network
from hztune.measure.holdings import port_in_words, ports_of
from hztune.measure.identity import Fault
from hztune.measure.launch import Launch, Run, launched, overtime
from hztune.measure.program import OUTPUT_BYTES, Program, Service
from hztune.measure.segments import swept
from hztune.measure.watch import Look

_ASK_S = 5.0
_PAUSE_S = 0.02
_STOP_S = 10.0
_WAIT_LONGER = "; a longer --ready-timeout is waited for"
ENDED = Fault("failed", "the server ended by itself, with status 0")
ENDED_EARLY = Fault("failed", "the server ended before it answered")
IN_BACKGROUND = Fault(
    "failed",
    "the server went to the background: its first process ended, and left others, which were "
    "ended; start it so that it stays in the foreground",
)
_TURN_S = 0.05

LOAD_SPAN_S = 2.0
"""How long a load is left alone that goes on until it is told to end."""

LOAD_PATIENCE_S = 20.0
"""A load that prints a number and takes longer is told to end, to see whether it then does."""

_LONGER = 1.25
"""How much longer a load takes, at least, where the server stands still for half of the time; twice
without noise."""

_LESS = 0.75
"""How much less a server works, at least, in the same time if it stands still for half of it."""

Use = Callable[[Launch, Program, Mapping[str, str], float, bool], Run]
"""Waits until a server answers, and does with it what is measured."""


def serve_once(
    program: Program,
    seed: int,
    base: Mapping[str, str],
    changes: Mapping[str, str],
    timeout_s: float,
    look: Look,
    *,
    standing: bool = False,
    use: Use | None = None,
    most_s: float = 0.0,
) -> Run:
    """Runs the server, and the load once; see `timed_run.time_once`.

    Args:
        program: The server, in its place.
        seed: Of the block.
        base: The environment of the helpers.
        changes: What the server gets beyond it.
        timeout_s: The load is ended after that time.
        look: Judges every process of the server.
        standing: Whether the server stands still for half of the time under load.
        use: What is done with it; None: one load.
        most_s: Seconds that `use` may take; 0: those of one load.

    Raises:
        HztuneError: Something answers on the server's port before it is started.
        UsageError: The server cannot be started at all.
    """
    service = program.service
    assert service is not None, "not a server"
    if service.port and _listens(service.port):
        raise HztuneError(
            f"something answers on port {service.port} already; stop it, or write {{port}} in the "
            "commands instead of the number: each run then has a free port of its own"
        )
    limit_s = (most_s or program.ready_s + timeout_s) + _STOP_S
    with swept() as pids, launched(program, seed, base, changes, limit_s, look) as launch:
        used = (use or _use)(launch, program, base, timeout_s, standing)
        pids.update(live.descendants(launch.child.pid))
        done = launch.child.stop(_STOP_S)
    run, status = launch.run(done)
    is_over = status != "interrupted"
    return replace(
        run,
        fault=ended_by_itself(run) if is_over else used.fault,
        wall_s=used.wall_s,
        stdout=used.stdout,
        server_cpu_ns=used.server_cpu_ns,
        was_told=used.was_told,
        rested=used.rested,
    )


def _use(
    launch: Launch, program: Program, base: Mapping[str, str], limit_s: float, standing: bool
) -> Run:
    """Waits until the server answers, and puts it under load."""
    server, service = launch.child, program.service
    assert service is not None, "not a server"
    fault = answers(program, base, server.wait, server.pid)
    if fault is not None:
        return Run(fault)
    before_ns = tree_cpu_ns(server.pid)
    used = under_load(server, program, base, limit_s, standing)
    if used.fault is not None:
        return used
    return replace(used, server_cpu_ns=tree_cpu_ns(server.pid) - before_ns)


def under_load(
    server: process.Child, program: Program, base: Mapping[str, str], limit_s: float, standing: bool
) -> Run:
    """Puts a server that answers under load once; returns the time and the words of the load."""
    service = program.service
    assert service is not None, "not a server"
    with process.Child(
        ["/bin/sh", "-c", service.load], env=base, output_limit=OUTPUT_BYTES
    ) as load:
        began, was_told = time.monotonic(), False
        while not load.wait(_PAUSE_S) and time.monotonic() < began + limit_s:
            if server.wait(0.0):
                return Run(Fault("failed", "the server ended under load"))
            if program.span_s and not was_told and time.monotonic() > began + program.span_s:
                was_told = True
                os.killpg(load.pid, signal.SIGINT)
            if standing:
                _stand_still(server, load)
        done = load.finish(0.0)
    if done.timed_out:
        late = overtime(program, limit_s, done.stderr)
        return Run(replace(late, detail=f"--load: {late.detail}"))
    if not (done.ok or (was_told and ended_when_told(done.code))):
        return Run(Fault("failed", f"--load {done.describe()}"))
    if done.truncated:
        return Run(Fault("bad_output", f"--load printed more than {OUTPUT_BYTES >> 20} MiB"))
    return Run(None, wall_s=done.wall_s, stdout=done.stdout, was_told=was_told)


def ended_when_told(code: int) -> bool:
    """Whether an exit status, or minus a signal, is that of a load that ended as it was told to."""
    return code in (0, -signal.SIGINT, 128 + signal.SIGINT)


def ends_well(program: Program, run: Run) -> bool:
    """Whether a run counts and has a number to tell."""
    return run.fault is None and not isinstance(program.measure(run.wall_s, run.stdout), Fault)


def _stand_still(server: process.Child, load: process.Child) -> None:
    """Stops the server for as long as it then goes on."""
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in live.descendants(server.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        load.wait(_TURN_S)


def refuse_fixed_time(alone_s: float, longer_s: float, worked: float) -> None:
    """Sees to it that the load's time tells of the server, where that is all that is measured.

    Args:
        alone_s: Its time where the server went on.
        longer_s: Its time where the server stood still half of the time.
        worked: CPU time of the server there, as a share of that where it went on. Other programs
            on the machine may make any time longer, but do no work for the server.

    Raises:
        HztuneError: The load takes as long as before, in which the server answers less.
    """
    if longer_s < _LONGER * alone_s and worked < _LESS:
        raise HztuneError(
            f"--load takes {alone_s:.3g} s, and {longer_s:.3g} s where the server stands still for "
            "half of the time: its time says nothing of the server; give --metric-regex or "
            "--metric-cmd for a number that it prints, or a load of a fixed number of requests"
        )


def answers(
    program: Program,
    base: Mapping[str, str],
    ended: Callable[[float], bool],
    launcher: int,
    *,
    has_network: bool = False,
) -> Fault | None:
    """Waits until a server answers; returns why it does not.

    Args:
        program: The server.
        base: The environment of hztune's own programs.
        ended: Waits so many seconds, and says whether the server has ended.
        launcher: The process above the server's.
        has_network: Whether it is in a network of its own.
    """
    service = program.service
    assert service is not None, "not a server"
    deadline = time.monotonic() + program.ready_s
    while not ended(_PAUSE_S):
        if _is_ready(service, base, launcher if has_network else 0):
            return None
        if time.monotonic() > deadline:
            why = f"the server did not answer {_where(service)} within {program.ready_s:g} s"
            return Fault("hang", why + (_elsewhere(service, launcher) or _WAIT_LONGER))
    return ENDED_EARLY


def _ports_below(launcher: int) -> set[str]:
    """The ports on which the processes of a server listen, in words."""
    return {port for pid in live.descendants(launcher) for port in ports_of(pid)}


def _elsewhere(service: Service, launcher: int) -> str:
    """What is said of a server that listens on another port than the one that is tried."""
    found = _ports_below(launcher)
    if service.ready or not found:
        return ""
    return f"; it listens on {' and '.join(sorted(found))}"


def ended_by_itself(run: Run) -> Fault:
    """Why a server that nothing has ended does not count."""
    if run.fault is not None:
        return Fault(run.fault.status, f"the server ended: {run.fault.detail}")
    return IN_BACKGROUND if run.left else ENDED


def _where(service: Service) -> str:
    """How it is found out whether a server answers, in words."""
    return f"to --ready {service.ready!r}" if service.ready else f"on port {service.port}"


def _is_ready(service: Service, base: Mapping[str, str], network_of: int) -> bool:
    """Whether a server answers, in the network of a process; 0: in this one."""
    if not service.ready and network_of:
        return port_in_words(service.port) in _ports_below(network_of)
    if not service.ready:
        return _listens(service.port)
    words = ["/bin/sh", "-c", service.ready]
    if network_of:
        words = network.inside(network_of, service.ready)
    return process.run(words, env=base, deadline_s=_ASK_S).ok


def _listens(port: int) -> bool:
    """Whether something on this machine takes connections on a port."""
    with contextlib.suppress(OSError), socket.create_connection(("localhost", port), _ASK_S):
        return True
    return False


def tree_cpu_ns(launcher: int) -> int:
    """CPU time of the processes below hz-launch, and of those that they have reaped, to 10 ms."""
    return _tree_sum(launcher, 11, 15) * 10**9 // os.sysconf("SC_CLK_TCK")


def tree_faults(launcher: int) -> int:
    """Their page faults without a disk."""
    return _tree_sum(launcher, 7, 9)


def _tree_sum(launcher: int, first: int, end: int) -> int:
    """The sum of some fields of /proc/PID/stat behind the name, of all processes below one."""
    total = 0
    for pid in live.descendants(launcher):
        with contextlib.suppress(OSError):
            told = Path("/proc", str(pid), "stat").read_text(errors="replace")
            total += sum(map(int, told[told.rindex(")") + 2 :].split()[first:end]))
    return total
