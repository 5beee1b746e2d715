"""What the user asked for; every mistake in it is found before anything is written."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from hztune.allocator import target
from hztune.errors import UsageError
from hztune.measure.program import Program
from hztune.search import MemoryLimit
from hztune.space import Space
from hztune.tune.candidates import Candidates, candidates
from hztune.workload import WorkloadSpec

DEFAULT_BUDGET_S = 180.0
LEAST_BUDGET_S = 20.0
MOST_BUDGET_S = 7 * 86400.0

_MANY_THREADS = 1024
"""Stands for the threads of a program that decides for itself: ranges are not narrowed by it."""


@dataclass(frozen=True, slots=True)
class TuneRequest:
    """One study.

    Attributes:
        workload: A built-in workload to measure; None: a program of the user's.
        program: That program; None: a workload.
        allocator: Whose configuration is sought: a name, several with commas, or `any`.
        space: Name or path of the search space; "" for the allocator's own.
        budget_s: Seconds that the whole study may take.
        trials: Most configurations to search; None: as many as there is time for.
        seed: Of everything that is chosen at random.
        out: The results directory; None: a new one under hztune-results/.
        resume: Whether to go on with the study that is there.
        max_rss: Memory limit as written, "1.10x" or "512M"; "" for none.
    """

    workload: WorkloadSpec | None = None
    program: Program | None = None
    allocator: str = "hz"
    space: str = ""
    budget_s: float = DEFAULT_BUDGET_S
    trials: int | None = None
    seed: int = 1
    out: Path | None = None
    resume: bool = False
    max_rss: str = ""

    @property
    def label(self) -> str:
        """What is measured, in words."""
        if self.workload is not None:
            return self.workload.label
        return self.name

    @property
    def name(self) -> str:
        """What is measured, in one word."""
        if self.workload is not None:
            return self.workload.name
        return Path(self.program.argv[0]).name if self.program else ""

    @property
    def threads(self) -> int:
        """Threads of the workload; 0: the program decides."""
        return self.workload.threads if self.workload else 0


@dataclass(frozen=True, slots=True)
class Task:
    """A request that can be carried out here.

    Attributes:
        request: What was asked.
        candidates: The allocators and what may be proposed for them.
        limit: The memory limit, if any.
        remarks: What the user should know of the target before it is measured.
    """

    request: TuneRequest
    candidates: Candidates
    limit: MemoryLimit | None
    remarks: tuple[str, ...] = ()

    @property
    def space(self) -> Space:
        """What may be proposed."""
        return self.candidates.space

    @property
    def identity(self) -> dict[str, str]:
        """What makes two studies the same one: samples of another must not be mixed in."""
        request = self.request
        return {
            "workload": _target_identity(request),
            **self.candidates.identity,
            "space": self.space.fingerprint(),
            "limit": self.limit.text if self.limit else "none",
            "seed": str(request.seed),
        }


def understand(request: TuneRequest) -> Task:
    """Judges a request.

    Raises:
        UsageError: Something in it does not exist, is not legal, or cannot be tuned.
    """
    if (request.workload is None) == (request.program is None):
        raise UsageError("give a workload (--workload NAME) or a program (-- PROGRAM), one of them")
    if not LEAST_BUDGET_S <= request.budget_s <= MOST_BUDGET_S:
        raise UsageError(
            f"--budget is {request.budget_s:g} s; legal is from {LEAST_BUDGET_S:g}s to 7 days: "
            "less leaves no time to prove anything"
        )
    if request.trials is not None and request.trials < 1:
        raise UsageError(f"--trials is {request.trials}; legal is a number from 1 on")
    if request.resume and request.out is None:
        raise UsageError("--resume needs the directory to go on with: give it with --out DIR")
    limit = MemoryLimit.parse(request.max_rss) if request.max_rss else None
    remarks = _remarks(request)
    found = candidates(request.allocator, request.space, request.threads or _MANY_THREADS)
    return Task(request, found, limit, remarks)


def _remarks(request: TuneRequest) -> tuple[str, ...]:
    """What is to be said of the target.

    Raises:
        UsageError: It does not exist, or no allocator can be put under it.
    """
    if request.workload is not None:
        request.workload.check()
        return ()
    assert request.program is not None  # `understand` saw to it
    found = target.inspect(request.program.argv[0])
    obstacle = found.obstacle()
    if obstacle is not None:
        raise UsageError(obstacle)
    return found.remarks()


def _target_identity(request: TuneRequest) -> str:
    """What is measured; a program's words may hold secrets, so that only their hash is kept."""
    if request.workload is not None:
        return request.workload.label
    program = request.program
    assert program is not None  # `understand` saw to it
    around = [program.prepare, program.cleanup, program.check, program.metric]
    told = [list(program.argv), around, asdict(program.service) if program.service else None]
    return f"{request.name} {hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]}"
