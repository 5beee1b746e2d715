"""What a user sees while a study runs: on a terminal, in a log, or nothing."""

from __future__ import annotations

import io
import math
from dataclasses import replace

from hztune import machine
from hztune.progress import Plain, StudyStatus, reporter

from .conftest import bench_of, flat

STATUS = StudyStatus("search", 12, 1, math.log(1.1), 0.02, math.log(1.03), 75.0)
PARTS = ("search", "12 configurations (1 failed)", "+10.0 % ± 2.0 %", "floor 3.0 %", "1:15 left")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_status_tells_trial_best_interval_floor_and_time_left_where_they_are_known():
    assert all(part in STATUS.line() for part in PARTS)
    proving = replace(STATUS, subject="finalist 1", pairs=3, planned=8)
    assert "pair 3 of 8  finalist 1: +10.0 % ± 2.0 %" in proving.line()
    line = StudyStatus("calibrate", 0, 0, 0.0, math.inf, 0.0, 80.0).line()
    assert "best so far -" in line and "noise floor ?" in line
    assert "inf" not in line and "inf" not in replace(STATUS, error=math.inf).line()


def test_a_log_gets_a_status_only_when_it_is_due_or_the_phase_changes():
    stream = io.StringIO()
    shown = Plain(stream, every_s=10.0)
    for left in (75.0, 74.0, 66.0, 64.0):
        shown.update(replace(STATUS, left_s=left))
    shown.update(replace(STATUS, phase="confirm", left_s=63.0))
    shown.say("calibrated \x1b[1.0, 2.0]")
    lines = stream.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == ["search", "search", "confirm", "calibrated"]
    assert "1:04 left" in lines[1]
    assert all(line.isprintable() for line in lines)


def test_a_terminal_keeps_what_is_said_above_one_line_that_is_cleared_at_the_end():
    stream = Terminal()
    with reporter(quiet=False, stream=stream) as shown:
        shown.update(STATUS)
        shown.say("finalist 1: lock=spin \x1b[1m")
    cleared = "\r\x1b[K"
    _, status, said, end = stream.getvalue().split(cleared)
    assert "12 configurations" in status and len(status) < 80 and end == ""
    assert said == f"finalist 1: lock=spin ?[1m\n{status}"


def test_that_another_hztune_measures_is_said_where_nothing_else_is():
    stream = io.StringIO()
    with reporter(quiet=True, stream=stream) as shown:
        bench = bench_of(flat)
        bench.reporter = shown
        shown.say("no progress")
        machine.waiting.tell()
    assert "another hztune measures" in stream.getvalue()
    assert "no progress" not in stream.getvalue()
