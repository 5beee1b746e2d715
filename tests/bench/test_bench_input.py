"""What the measuring programs are told wrongly is refused, in one sentence."""

from __future__ import annotations

import pytest

from .conftest import run

REFUSED = {
    "hz-bench": [
        ("", "the workload is missing"),
        ("larsen", "no workload is called larsen"),
        ("larson remote", "one workload at a time"),
        ("remote@wide", "has no setting called wide"),
        ("larson --slots 0", "--slots 0: want a whole number from 1 to"),
        ("larson --slots", "--slots: its value is missing"),
        ("larson --slot 5", "--slot: neither an option nor a parameter of larson"),
        ("larson --min-size 9 --max-size 8", "--max_size 8: less than --min_size 9"),
        ("larson --seconds nan", "--seconds nan: want a number"),
        ("larson --touch all", "--touch all: want one of: none head full"),
        ("remote --threads 1", "there is no other thread to free the blocks of one"),
        ("pipeline --threads 1", "--threads 1: pipeline needs at least 2"),
        ("larson --turns 9 --ops 5", "--ops and --turns exclude each other"),
        ("larson --turns 0", "not a conductor's memory"),
        ("larson --rests 1 --turns 9", "exclude each other"),
        ("--slots 5 larson", "parameters stand after the workload's name"),
    ],
    "hz-turns": [
        ("", "the program is missing"),
        ("--env A=1 --arm a -- /bin/true", "stands before the first --arm"),
        ("-- /bin/true", "--arm is missing"),
        ("--arm a -- /nonexistent/program", "cannot run /nonexistent/program"),
        ("--turn-ms 5 --skip-ms 5 --arm a -- /bin/true", "--skip-ms: must be shorter"),
    ],
    "hz-launch": [
        ("", "the program is missing"),
        ("-- /nonexistent/program", "cannot run /nonexistent/program"),
        ("--json-fd 99 -- /bin/true", "--json-fd 99: not an open descriptor"),
    ],
    "hz-alternate": [
        ("", "--unit is missing"),
        ("--unit a", "--unit a: --main is missing"),
        ("--main 1 true", "--main: stands before the first --unit"),
        ("--unit a --main 3 -- true", "--main 3: only 2 words stand behind it"),
        ("--unit a/b", "want a name without a slash"),
        ("--freezer /tmp", "--freezer: stands before the first --unit"),
        ("--unit a --freezer /tmp", "--freezer /tmp: want a control group"),
        ("--turns 3", "--turns: not an option"),
    ],
}


@pytest.mark.parametrize(
    ("program", "line", "sentence"),
    [(name, *row) for name, rows in REFUSED.items() for row in rows],
)
def test_bad_input_is_refused_in_one_sentence(programs, program, line, sentence):
    done = run([programs.bench_path.with_name(program), *line.split()])
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"{program}: ") and done.stderr.count("\n") == 1
    assert sentence in done.stderr
