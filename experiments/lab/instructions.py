"""Instructions of an operation, counted by valgrind's callgrind: no clock, hence no noise.

A count is the difference of two runs of a workload with a fixed number of operations, so that start
and fill fall out. What the workload itself does is in it, alike for every arm: differences between
arms are the allocators'. With several threads the order of their work is valgrind's; only one is
counted.
"""

from __future__ import annotations

import json
import re
from typing import Any

from hztune import process
from hztune.blocks import Arm
from hztune.errors import HztuneError
from hztune.measure.identity import AllocatorIdentity, Fault
from hztune.workload import WorkloadSpec
from lab.definition import INSTRUCTIONS

OPERATIONS = 100_000

_COLLECTED = re.compile(r"Collected : (\d+)")
_DEADLINE_S = 300.0
_SEED = 1


def count(spec: WorkloadSpec, arm: Arm, proof: AllocatorIdentity) -> dict[str, int]:
    """Returns the counters of INSTRUCTIONS for a workload with one thread under an arm."""
    less, more = (_run(spec, arm, proof, ops) for ops in (OPERATIONS, 2 * OPERATIONS))
    return {INSTRUCTIONS.count: more[1] - less[1], INSTRUCTIONS.per: more[0] - less[0]}


def _run(
    spec: WorkloadSpec, arm: Arm, proof: AllocatorIdentity, operations: int
) -> tuple[int, int]:
    """Returns the operations and the instructions of one run."""
    prepared = proof.prepare(arm)
    if isinstance(prepared, Fault):
        raise HztuneError(f"cannot count {arm.allocator}: {prepared.detail}")
    command = spec.command(_SEED)
    command[0] = str(proof.program(arm) or command[0])
    done = process.run(
        [
            *("valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"),
            *(*command, "--ops", str(operations), "--warmup", "0"),
        ],
        env={**proof.base, **prepared},
        deadline_s=_DEADLINE_S,
    )
    collected = _COLLECTED.search(done.stderr)
    if not done.ok or collected is None:
        raise HztuneError(f"{spec.label} under valgrind {done.describe()}")
    result: dict[str, Any] = json.loads(done.stdout)
    fault = proof.judge(arm, result["allocator"]["path"], done.stderr)
    if fault is not None:
        raise HztuneError(f"{spec.label} under valgrind: {fault.detail}")
    return int(result["ops"]), int(collected[1])
