"""Measure real programs under hz and its peers, by turns.

    run.py                      every row that is not measured yet
    run.py --only lua z3        some of them
    run.py --for 170            begin no row after so many seconds; the next call goes on
    run.py --with mimalloc3=/path/to/libmimalloc.so       a further allocator, several times
    run.py --experiment experiments/huge-pages            the rows of another experiment
    run.py --missing            say which programs are not here, and where they come from

How a program is started stands in ../programs/cases.toml. A row is kept in results.unfinished.json
when it is measured; that becomes results.json when the last row is there. `python
experiments/report.py real-programs --rows` prints what the samples give.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from hztune.comparing import conduct, match
from hztune.comparing.comparison import Comparison
from hztune.comparing.contenders import Contender, ProgramSpec, glibc_obstacle
from hztune.errors import HztuneError, StoppedByUser
from hztune.files import scratch_folder
from hztune.progress import Plain

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "programs"), str(HERE.parent)]

from cases import BY_NAME, Case, CaseError, build, environment, missing  # noqa: E402
from lab import definition  # noqa: E402
from lab.definition import Experiment  # noqa: E402
from lab.run import Ran, further, run  # noqa: E402


def measure(
    experiment: Experiment, case: Case, work: Path, extra: Sequence[Contender], *, anew: bool
) -> Ran:
    """Measures one row, unless it is there; keeps those that are there, unless all begins anew."""
    program, reporter = case.program(work, case.size), Plain(sys.stderr)
    given = {ProgramSpec.of(program): program}
    with environment(case):
        return run(
            experiment,
            reporter,
            extra=extra,
            resume=not anew,
            executors=partial(conduct.executors, programs=given, say=reporter.say),
            programs={case.name: program},
        )


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--experiment", type=Path, default=HERE, metavar="FOLDER", help="whose rows; this one's")
    add("--only", nargs="+", metavar="NAME", default=[])
    add("--for", type=float, default=math.inf, metavar="S", dest="span_s",
        help="begin no row after so many seconds")  # fmt: skip
    add("--with", action="append", default=[], metavar="NAME=/path/lib.so", dest="libraries",
        help="a further allocator")  # fmt: skip
    add("--anew", action="store_true", help="keep no row that is measured already")
    add("--missing", action="store_true", help="say what is not installed and measure nothing")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Measures what is asked for."""
    asked = arguments(words)
    experiment = definition.load(asked.experiment.resolve())
    for name in sorted({*asked.only} - {*experiment.programs}):
        raise CaseError(f"--only {name}: its rows are {', '.join(experiment.programs)}")
    chosen = [BY_NAME[name] for name in asked.only or experiment.programs]
    lacking = {case.name: said for case in chosen if (said := missing(case))}
    status = 1 if lacking else 0
    for name, said in lacking.items():
        print(f"{name}: {'; '.join(said)}", file=sys.stderr)
    if asked.missing:
        return status
    until_s, anew = time.monotonic() + asked.span_s, asked.anew
    extra = further(asked.libraries)
    with scratch_folder() as folder:
        os.chdir(folder)  # so that a program's words are the same each time
        here = [case for case in chosen if case.name not in lacking]
        build(Path(), here)
        for case in here:
            if time.monotonic() > until_s:
                break
            try:
                ran = measure(experiment, case, Path(), extra, anew=anew)
            except HztuneError as error:
                print(f"{case.name}: {error}", file=sys.stderr)
                status = 1
                continue
            anew = False
            kept = f"{len(ran.record.rows)} of {ran.rows} rows are in {ran.path}"
            if ran.stopped:
                raise StoppedByUser(f"interrupted; {kept}, and the next call goes on")
            print(f"{case.name}: {kept}")
            for said in failing(ran.record, case):
                print(said, file=sys.stderr)
                status = 1
    return status


def failing(record: Comparison, case: Case) -> list[str]:
    """Says how often allocators failed that failed in at least half of the pairs of a case's row.

    glibc is not among them where the program is linked with another malloc, which is no surprise.
    """
    rows = [row for row in record.rows if row.spec.label == case.name]
    often: dict[str, str] = {}
    for row in rows:
        often |= match.failing(record.contenders, row.blocks, 0.5)
    if "glibc" in often and glibc_obstacle(case.program(Path(), case.size)):
        del often["glibc"]
    return [f"{case.name}: {words}" for words in often.values()]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("run.py: interrupted", file=sys.stderr)
        sys.exit(StoppedByUser.exit_status)
    except HztuneError as error:
        print(f"run.py: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
    except CaseError as error:
        sys.exit(f"run.py: {error}")
