"""Tune real programs, one study each, and write down what came out.

    run.py                                all cases, about a quarter of an hour
    run.py --only large-buffers redis     some of them; the others' results are kept
    run.py --list                         what there is, and the command of each

Each case is one `hztune tune` of its own, as a user would start it. Its summary and its profile go
to results.json as soon as it has ended, with the machine.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cases import CASES, Case, CaseError, build, missing

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.json"
MEANT_STATUSES = (0, 3)  # a verdict, or "nothing keeps the limit"


def study(case: Case, work: Path, budget: str, allocator: str, out: Path) -> list[str]:
    """The command line of a case's study."""
    line = [sys.executable, "-m", "hztune", "tune", "--allocator", allocator, "--budget", budget]
    line += ["--out", str(out), "--json", *case.told(work, case.size)]
    return [*line, "--", *case.words(work, case.size)] if case.command else line


def measure(case: Case, work: Path, budget: str, allocator: str) -> dict[str, Any]:
    """Carries out a case's study and returns what it left."""
    if lacking := missing(case):
        raise CaseError(f"{case.name}: {'; '.join(lacking)}")
    out = work / f"study-{case.name}"
    line = study(case, work, budget, allocator, out)
    variables = [f"{name}={value}" for name, value in case.variables.items()]
    done = subprocess.run(
        ["env", *variables, *line], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode not in MEANT_STATUSES:
        raise CaseError(f"{case.name}: hztune ended with status {done.returncode}")
    summary = json.loads(done.stdout)
    del summary["out"]
    return {
        "name": case.name,
        "options": list(case.options),
        "command": list(case.command),
        "size": case.size,
        "variables": case.variables,
        "asked": allocator,
        "budget": budget,
        "exit_status": done.returncode,
        "remarks": remarks(case),
        "summary": summary,
        "profile": json.loads((out / "profile.json").read_text()),
    }


def remarks(case: Case) -> list[str]:
    """What hztune says of the programs that a case needs: one may bring its own allocator."""
    from hztune.allocator import loaded_program

    return [said for program in case.needs for said in loaded_program.inspect(program).remarks]


def record(results: Path, rows: dict[str, dict[str, Any]]) -> None:
    """Writes the results so far, in the order of CASES."""
    ordered = [rows[case.name] for case in CASES if case.name in rows]
    text = json.dumps({"schema": 1, "cases": ordered}, indent=1)
    results.write_text(text + "\n")


def known(results: Path) -> dict[str, dict[str, Any]]:
    """The results of an earlier run, by name."""
    if not results.is_file():
        return {}
    return {row["name"]: row for row in json.loads(results.read_text())["cases"]}


def line_of(row: dict[str, Any]) -> str:
    """A result in one line."""
    found = row["summary"]
    ratio = "-" if found["ratio"] is None else f"{found['ratio']:.3f}x"
    ends = "" if found["ratio"] is None else f" [{found['ci_low']:.3f}, {found['ci_high']:.3f}]"
    rss = "" if found["rss_ratio"] is None else f"  memory {found['rss_ratio']:.2f}x"
    allocator = row["profile"]["allocator"]["name"]
    failed = "".join(f"  FAILED: {name} ({status})" for name, status in failing(row).items())
    best = f"{allocator} {found['params']}{failed}"
    return f"{row['name']:18}{found['verdict']:13}{ratio}{ends}{rss}  {best}"


def failing(row: dict[str, Any]) -> dict[str, str]:
    """The allocators that failed at their defaults, each with the status of its last failure."""
    seen = row["summary"].get("as_they_come", {})
    return {name: one for name, one in seen.items() if isinstance(one, str)}


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--only", nargs="+", metavar="NAME", choices=[case.name for case in CASES], default=[])
    add("--budget", default="90s", help="of each study; default 90s")
    add("--allocator", default="", help="instead of each case's own: any, glibc, ...")
    add("--results", type=Path, default=RESULTS, help="default: results.json beside this file")
    add("--list", action="store_true", help="print the cases and measure nothing")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Carry out the studies; 1 when one could not be measured, or an allocator failed."""
    asked = arguments(words)
    chosen = [case for case in CASES if not asked.only or case.name in asked.only]
    if asked.list:
        for case in chosen:
            line = study(case, Path("WORK"), asked.budget, case.allocator, Path("OUT"))
            print(case.name, shlex.join(line[3:]))
        return 0
    rows, status = known(asked.results), 0
    with tempfile.TemporaryDirectory(prefix="hztune-programs-") as folder:
        work = Path(folder)
        build(work, chosen)
        for case in chosen:
            try:
                row = measure(case, work, asked.budget, asked.allocator or case.allocator)
            except CaseError as error:
                print(error, file=sys.stderr)
                status = 1
                continue
            row["measured"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            rows[case.name] = row
            record(asked.results, rows)
            print(line_of(row), flush=True)
            status = 1 if failing(row) else status
    return status


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CaseError as error:
        sys.exit(f"run.py: {error}")
