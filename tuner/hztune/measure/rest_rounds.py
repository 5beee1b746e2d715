"""Runs with rests: a program or a server is loaded and rests, as often as was asked.

A server rests when its load has ended. A program says on stdout that it does, by a line that
matches an expression of the user's, and goes on when it gets a line on stdin. hz-bench does that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from hztune import process
from hztune.measure.identity import Fault
from hztune.measure.launch import Launch, Run, launched
from hztune.measure.memory_watch import MemoryWatch
from hztune.measure.program import OUTPUT_BYTES, Program
from hztune.measure.server import answers, tree_cpu_ns, under_load
from hztune.measure.watch import Look
from hztune.rests import RestPlan

_GRACE_S = 30.0
_ENDED_AT_REST = Fault("failed", "it ended while it rested")


def rest_once(
    program: Program,
    seed: int,
    base: Mapping[str, str],
    changes: Mapping[str, str],
    timeout_s: float,
    look: Look,
) -> Run:
    """Runs a program that says when it rests; see `timed_run.time_once`.

    Its time is that of its loads.

    Raises:
        UsageError: The program cannot be started at all.
    """
    plan = program.rest
    assert plan is not None, "not a program with rests"
    limit_s = timeout_s + plan.rounds * plan.idle_s
    with launched(
        program, seed, base, changes, limit_s, look, keep_stdout=True, takes_lines=True
    ) as launch:
        watch = MemoryWatch(launch.child.pid, plan, launch.scope)
        with watch.watching():
            printed, fault = _follow(launch.child, plan, watch, limit_s + _GRACE_S)
        done = launch.child.finish(0.0 if fault else _GRACE_S)
    if done.timed_out:
        return Run(fault or Fault("hang", "hz-launch did not end it"), stderr=done.stderr)
    run, _ = launch.run(done)
    run = replace(run, stdout=printed + done.stdout, fault=run.fault or fault)
    if run.fault is not None:
        return run
    if watch.rounds < plan.rounds:
        times = {0: "never", 1: "once"}.get(watch.rounds, f"{watch.rounds} times")
        said = f"it said {times} that it rests (a line on stdout that matches --rests"
        why = f"{said} {plan.says!r}), and --rounds is {plan.rounds}"
        return replace(run, fault=Fault("bad_output", why))
    return replace(run, wall_s=watch.load_s, rested=watch.rested())


def _follow(
    child: process.Child, plan: RestPlan, watch: MemoryWatch, stall_s: float
) -> tuple[str, Fault | None]:
    """Reads what a program prints, and lets it rest; returns the rest of it, and what is wrong."""
    says, printed, size = re.compile(plan.says), list[str](), 0
    try:
        for line in child.lines(stall_s):
            if says.search(line):
                if watch.rounds < plan.rounds and not watch.rest(child.wait):
                    return "\n".join(printed), _ENDED_AT_REST
                child.send("")
                continue
            size += len(line) + 1
            if size > OUTPUT_BYTES:
                why = f"it printed more than {OUTPUT_BYTES >> 20} MiB"
                return "", Fault("bad_output", why)
            printed.append(line)
    except process.Stalled as error:
        return "\n".join(printed), Fault("hang", str(error))
    return "\n".join([*printed, ""]), None


def use_and_rest(
    launch: Launch, program: Program, base: Mapping[str, str], limit_s: float, standing: bool
) -> Run:
    """Waits until a server answers, and puts it under load as often as was asked."""
    plan, service = program.rest, program.service
    assert plan is not None and service is not None, "not a server with rests"
    server = launch.child
    watch = MemoryWatch(server.pid, plan, launch.scope)
    with watch.watching():
        fault = answers(program, base, server.wait, server.pid)
        if fault is not None:
            return Run(fault)
        before_ns, rates, runs = tree_cpu_ns(server.pid), list[float](), list[Run]()
        for _ in range(plan.rounds):
            watch.load()
            used = under_load(server, program, base, limit_s, standing)
            if used.fault is not None:
                return used
            rate = program.measure(used.wall_s, used.stdout)
            if isinstance(rate, Fault):
                return Run(rate)
            rates.append(rate)
            runs.append(used)
            if not watch.rest(server.wait):
                return Run(_ENDED_AT_REST)
        return replace(
            runs[-1],
            wall_s=sum(each.wall_s for each in runs),
            server_cpu_ns=tree_cpu_ns(server.pid) - before_ns,
            rested=watch.rested(sum(rates) / len(rates)),
        )


def limit_with_rests(program: Program, timeout_s: float) -> float:
    """Seconds that a server may take for all its rounds."""
    plan = program.rest
    assert plan is not None, "not a server with rests"
    return program.ready_s + plan.rounds * (timeout_s + plan.idle_s)
