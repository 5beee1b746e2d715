"""Do equals stay equal, and are a planted difference of 15 % and a planted leak found?

Real processes, judged as a study judges its finalist: fresh pairs, planned intervals, the error of
a first claim. `python planted.py COMPARISONS` prints how many claims each kind of comparison made;
`python planted.py 34:50 equals` goes on with some of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from hztune.allocator.live import Running
from hztune.blocks import Arm
from hztune.measure.identity import Fault
from hztune.measure.program import Program
from hztune.measure.whole import RunExecutor
from hztune.progress import Reporter
from hztune.rests import RestPlan
from hztune.result.kept import fresh_outcomes, kept_memory
from hztune.study.bench import Budget, Workbench, system_clock
from hztune.study.ledger import Ledger
from hztune.study.proof import claim_error, prove

ROUNDS, IDLE_S, BUDGET_S = 5, 0.04, 8.0
CONTROL = Arm("none")
CASES = {
    "equals": ((0, 0), (0, 0)),
    "15 % less is kept": ((15, 0), (0, 0)),
    "a leak of 1 MiB a round": ((0, 0), (0, 1024)),
}
"""By name: (percent more, KiB leaked a round) of the default and of what is compared with it."""


class ByKnobs:
    """Lets every arm run; nothing is preloaded."""

    base = {"PATH": os.environ["PATH"]}  # noqa: RUF012

    def prepare(self, arm: Arm) -> dict[str, str] | Fault:
        """Gives the arm its variables."""
        return {f"BURST_{name}": str(value) for name, value in arm.params}

    def program(self, arm: Arm) -> Path | None:
        """Returns no file of its own."""
        return None

    def inspect(self, arm: Arm, running: Running) -> Fault | None:
        """Finds nothing wrong."""
        return None

    def judge(self, arm: Arm, library: str, stderr: str) -> Fault | None:
        """Finds nothing wrong."""
        return None


def compare(burst: Path, default: tuple[int, int], other: tuple[int, int], seed: int) -> list[bool]:
    """Whether less kept memory, a growth of the default, and one of the other is claimed."""
    words = (
        f'if [ -n "$BURST_other" ]; then set -- {other[0]} {other[1]}; '
        f"else set -- {default[0]} {default[1]}; fi; exec {burst} {ROUNDS} $1 $2"
    )
    program = Program(
        ("/bin/sh", "-c", words),
        timeout_s=20.0,
        rest=RestPlan(IDLE_S, ROUNDS, "^at rest$"),
        seeks_kept=True,
    )
    executor = RunExecutor(program, seed=seed, identity=ByKnobs(), warmups=0)
    arm = Arm.of("any", {"other": 1})
    bench = Workbench(executor, Ledger(), Budget(system_clock, BUDGET_S), Reporter())
    bench.measure([CONTROL, CONTROL], "aa", 1)
    proof = prove(bench, CONTROL, [arm], alpha=claim_error(0), until=1.0)
    kept = kept_memory(fresh_outcomes(bench.ledger, arm), ())
    assert kept is not None and kept.tuned is not None
    return [proof.succeeded, kept.default.grows, kept.tuned.grows]


def main() -> None:
    """Carries out so many comparisons of each kind."""
    first, _, last = (sys.argv[1] if len(sys.argv) > 1 else "10").rpartition(":")
    seeds = range(int(first or 0), int(last))
    names = sys.argv[2:] or list(CASES)
    with tempfile.TemporaryDirectory() as folder:
        burst = Path(folder, "burst")
        source = Path(__file__).with_name("burst.c")
        subprocess.run(["cc", "-O2", "-o", str(burst), str(source)], check=True)
        for name in (each for each in CASES if each in names):
            found = [compare(burst, *CASES[name], seed) for seed in seeds]
            less, default, other = (sum(each[place] for each in found) for place in range(3))
            print(
                f"{name}: of {len(seeds)} comparisons, {less} claim that less is kept, {default} "
                f"that the default grows, {other} that the other grows",
                flush=True,
            )


if __name__ == "__main__":
    main()
