"""Which targets are looked at while they rest: where something that was asked needs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hztune.measure.program import Program
from hztune.rests import DEFAULT_IDLE_S, RestPlan, weighed_memory
from hztune.workload import Goal


def needs_rest(objective: Goal, others: Mapping[str, object]) -> bool:
    """Whether an objective, a limit or a front needs memory at rest."""
    weighed = weighed_memory(str(others.get("pareto", "")))
    return objective == "kept" or weighed == "kept" or bool(others.get("max_kept"))


def resting_plan(
    idle_s: float, rounds: int | None, objective: Goal, others: Mapping[str, object]
) -> RestPlan | None:
    """The rounds of load and rest of a workload; None: it is not looked at while it rests.

    Args:
        idle_s: Seconds of rest; 0: nothing was said.
        rounds: How many; None: nothing was said.
        objective: What is made better.
        others: Further fields of the request.

    Raises:
        UsageError: A number is not legal.
    """
    if not (idle_s or rounds is not None or needs_rest(objective, others)):
        return None
    return RestPlan(idle_s or DEFAULT_IDLE_S, 1 if rounds is None else rounds)


def resting_program(program: Program, objective: Goal, others: Mapping[str, object]) -> Program:
    """A program of the user's, which is looked at while it rests where that is needed.

    Raises:
        UsageError: Nothing says when it rests.
    """
    if not needs_rest(objective, others):
        return program
    return replace(program.resting(), seeks_kept=objective == "kept")
