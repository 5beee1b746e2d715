"""What `import hztune` offers: with it, a script written today works with later versions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hztune.api.functions import environment, request
from hztune.api.functions import tune as _tune
from hztune.arguments import seconds_of
from hztune.comparing.comparison import Comparison
from hztune.comparing.conduct import compare
from hztune.errors import HztuneError, UsageError
from hztune.measure.program import Measure, Program, Programs, asked_programs
from hztune.measure.program import described as program
from hztune.profile import Profile
from hztune.profile import load as load_profile
from hztune.progress import Reporter
from hztune.result import Result
from hztune.verifying import claim, history
from hztune.verifying.claim import Verification
from hztune.workload import Goal

__all__ = [
    "Comparison", "HztuneError", "Profile", "Program", "Result", "UsageError", "Verification",
    "compare", "environment", "load_profile", "program", "tune", "verify",
]  # fmt: skip


def tune(
    workload: str | None = None,
    *,
    program: Programs | None = None,
    measure: Measure | None = None,
    maximize: bool = False,
    threads: int | None = None,
    params: Sequence[str] = (),
    objective: Goal = "throughput",
    allocator: str | None = None,
    budget: str | float = "3m",
    max_rss: str = "",
    max_kept: str = "",
    max_loss: str = "5%",
    pareto: str = "",
    panel: bool | None = None,
    prove_on: Program | None = None,
    idle_s: float = 0.0,
    rounds: int | None = None,
    cpus: float | None = None,
    memory: str = "",
    space: str = "",
    allow_keeping: bool = False,
    trials: int | None = None,
    seed: int = 1,
    sampler: str = "sparse",
    on: str = "",
    term_days: int = 90,
    out: str | Path | None = None,
    resume: bool = False,
    reporter: Reporter | None = None,
) -> Result:
    """Searches the best configuration, proves it on fresh data and writes the results directory.

        hztune.tune("larson", threads=2, budget="60s")
        hztune.tune(program=["./server", "--selftest"], allocator="glibc,jemalloc")
        hztune.tune(measure=seconds)

    With a function of your own for each measurement:

        def seconds(environment: dict[str, str]) -> float:
            began = time.perf_counter()
            subprocess.run(["./program"], env=environment, check=True)
            return time.perf_counter() - began

    It is called for each measurement, one after the other, and must start a fresh process with
    that environment every time: an allocator and its parameters are read when a process starts,
    and nothing changes in the process that calls. Whether the process has the allocator is yours
    to see to (`ldd` of a static program, ssh and daemons drop variables); the profile says so.
    What it raises, and what is no number above 0, is a failure of that configuration; of the
    default, the end of the study, which `resume` goes on with. It must end by itself.

    Args:
        workload: Built-in workloads, "larson" or "larson,remote@main".
        program: A program of yours: its words, or what `program` returns, or several of these.
        measure: A function of yours: from the environment of a fresh process to its seconds.
        maximize: Whether `measure` returns a figure of which more is better.
        threads: Threads of the workload; None: as many as there are CPUs.
        params: "KEY=VALUE", parameters of the workload.
        objective: "throughput", "p99" (of a workload), or "kept": memory at rest.
        allocator: A name, several with commas, or "any"; None: "hz" for a workload, else "any".
        budget: Time for all of it: "90s", "5m", or seconds.
        max_rss: Limit of peak memory: "1.10x" of the default's, or "512M".
        max_kept: The same of what is kept at rest.
        max_loss: What each of several may lose; with "kept", the speed of the load.
        pareto: "throughput,rss" or "throughput,kept": a front instead of one winner.
        panel: Whether the winner is measured on other workloads; None: of a workload.
        prove_on: The program on which what was found on its trace is proved.
        idle_s: Of a workload: seconds of rest until its memory is read; 0: 2 where it is needed.
        rounds: Of a workload: loads, each with such a rest behind it.
        cpus: Of a workload: CPUs of the container in which it is measured; None: all.
        memory: Of a workload: memory of that container, "512M"; "": all.
        space: Name or path of a search space; "": the allocator's own.
        allow_keeping: Whether settings are tried that never return freed memory.
        trials: Most configurations to search; None: as time allows.
        seed: Of everything that is chosen at random.
        sampler: What proposes configurations; `hztune tune --help` names them.
        on: A Dask scheduler, "tcp://HOST:8786"; "": this machine measures.
        term_days: After which the profile should be measured again.
        out: The results directory; None: a new one under hztune-results/.
        resume: Whether to go on with the study in `out`.
        reporter: Is told how it goes, see `hztune.progress`; None: nothing is shown.

    Returns:
        `.profile` with its `.claim` (verdict, ratio, interval) and `.params`, and `.blocks`. After
        Ctrl-C the verdict is "interrupted", after too small a budget "not_enough_data".

    Raises:
        UsageError: The request is not legal, and nothing was written.
        HztuneError: The measuring failed; what was measured is kept, and `resume` goes on with it.
    """
    asked = {name: value for name, value in locals().items() if name != "reporter"}
    return _tune(request(**asked), reporter=reporter)


def verify(
    profile: Profile | str | Path,
    *,
    program: Programs | None = None,
    measure: Measure | None = None,
    maximize: bool = False,
    budget: str | float = "30s",
    seed: int = 1,
    keep: bool = True,
    traces: Sequence[str | Path] = (),
    reporter: Reporter | None = None,
) -> Verification:
    """Measures a profile's claim again, on fresh pairs, here and now.

    Args:
        profile: What `load_profile` returns, or the path of its file.
        program: What it was made for, as in `tune`; None: it was made for workloads.
        measure: The same of a function of yours.
        maximize: Whether it returns a figure of which more is better.
        budget: Time for it: "90s", or seconds.
        seed: Of every random choice.
        keep: Whether the answer goes into the history of this user. Where it cannot be written,
            the reporter is told so.
        traces: Where the traces stand that it was made for, if not in the present folder.
        reporter: Is told how it goes; None: nothing is shown.

    Returns:
        `.answer`: "holds", "does not hold" or "cannot tell"; `.why`; and what was measured.

    Raises:
        UsageError: It makes no claim, or is not for this program or workload.
        HztuneError: The control does not run.
    """
    tuned = profile if isinstance(profile, Profile) else load_profile(profile)
    programs = asked_programs(program, measure, maximize=maximize)
    told, places = reporter or Reporter(), [Path(each) for each in traces]
    finding = claim.verify(tuned, programs, seconds_of(budget), seed, told, places)
    if keep:
        try:
            history.append(history.rechecked(tuned, programs, finding))
        except HztuneError as error:
            told.say(f"warning: this check is not in the history: {error}")
    return finding
