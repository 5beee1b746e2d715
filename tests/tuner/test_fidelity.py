"""May a trace stand for its program? The judgement on given numbers, and its file."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.bench import traces

from hztune import trace_file
from hztune.errors import UsageError
from hztune.fidelity.agreement import About, Judgement, Measurements, judged_fidelity
from hztune.fidelity.readings import Readings
from hztune.fidelity.second_recording import distance, strange
from hztune.trace import sidecar
from hztune.trace.sidecar import CheckPoint, TimeShare, TraceCheck

ROOT = Path(__file__).parents[2]
MEASURED = ROOT / "experiments" / "traces"

NAMES = ("glibc", "hz", "jemalloc", "mimalloc", "tcmalloc", "glibc:tcache_count=0")
CALLS_S = (1.0, 0.6, 0.7, 0.8, 0.65, 1.5)
"""Seconds of a round of the trace under each; of the program it is 1.0 and three seconds more."""
MEMORY_MB = (50.0, 52.0, 60.0, 55.0, 58.0, 50.0)


def readings(
    seconds: tuple[float, ...], memory: tuple[float, ...], seed: int = 1, noise: float = 0.01
) -> Readings:
    """What eight blocks show of contenders that take so much time and memory."""
    rng = random.Random(seed)

    def row(mean: float, scatter: float) -> tuple[float, ...]:
        return tuple(rng.gauss(mean, scatter) for _ in range(8))

    speeds = [row(math.log(seconds[0] / each), noise) for each in seconds[1:]]
    peaks = [row(each, 0.2) for each in memory]
    return Readings(((0.0,) * 8, *speeds), tuple(peaks), seconds[0])


PROGRAM = readings(tuple(3.0 + each for each in CALLS_S), tuple(9.0 + mb for mb in MEMORY_MB), 2)
TRACE = readings(CALLS_S, MEMORY_MB, 3)
SEEN = Measurements(PROGRAM, TRACE, TRACE)
ABOUT = About(NAMES, live_mb=45.0, strange=())


def states(judged: Judgement) -> dict[str, str]:
    return {point.name: point.state for point in judged.points}


def test_a_trace_whose_differences_are_those_of_the_program_stands() -> None:
    judged = judged_fidelity(SEEN, ABOUT)
    assert judged.answer == "stands", judged
    assert set(states(judged).values()) == {"agrees"}
    assert judged.share is not None and judged.share.low < 0.25 < judged.share.high
    assert "its calls take 25 % of it in the replay" in judged.points[1].text


@pytest.mark.parametrize(
    ("seen", "point", "words"),
    [
        (
            replace(SEEN, single=readings((1.0, 1.6, 1.5, 1.4, 1.6, 0.7), MEMORY_MB)),
            "order",
            "of the program, ",
        ),
        (
            replace(SEEN, trace=readings((0.01, 0.006, 0.007, 0.008, 0.0065, 0.015), MEMORY_MB)),
            "scale",
            "the program tells allocators further apart",
        ),
        (
            replace(SEEN, program=readings((4.0,) * 6, tuple(9.0 + mb for mb in MEMORY_MB))),
            "scale",
            "the program tells them hardly apart",
        ),
        (
            replace(SEEN, trace=readings((1.0, 0.6, 0.7, 0.8, 0.65, 3.5), MEMORY_MB)),
            "scale",
            "glibc:tcache_count=0 takes",
        ),
        (
            replace(SEEN, single=readings(CALLS_S, (50.0, 52.0, 85.0, 55.0, 58.0, 50.0))),
            "memory",
            "jemalloc takes +10.0 MiB against glibc in the program, +35.0 by the trace",
        ),
        (
            replace(SEEN, single=readings(CALLS_S, tuple(2.0 * mb for mb in MEMORY_MB))),
            "touch",
            "under glibc the replay takes 100",
        ),
        (
            replace(SEEN, single=readings(CALLS_S, tuple(mb - 40.0 for mb in MEMORY_MB))),
            "touch",
            "and it asks for 45.0",
        ),
    ],
)  # fmt: skip
def test_what_differs_is_named(seen: Measurements, point: str, words: str) -> None:
    judged = judged_fidelity(seen, ABOUT)
    assert judged.answer == "does not stand"
    found = next(each for each in judged.points if each.name == point)
    assert found.state == "disagrees" and words in found.text


def test_another_shape_is_named_and_no_second_recording_is_no_reason() -> None:
    judged = judged_fidelity(
        SEEN, replace(ABOUT, strange=("there are 4 threads, and 1 in the trace",))
    )
    assert judged.answer == "does not stand" and "4 threads" in judged.why
    assert judged_fidelity(SEEN, replace(ABOUT, strange=None)).answer == "stands"


def test_where_a_program_tells_no_allocators_apart_only_a_known_scale_lets_a_trace_stand() -> None:
    same = readings((400.0,) * 6, tuple(9.0 + mb for mb in MEMORY_MB), noise=0.002)
    assert judged_fidelity(replace(SEEN, program=same), ABOUT).answer == "stands"
    judged = judged_fidelity(replace(SEEN, program=replace(same, seconds=0.0)), ABOUT)
    assert judged.answer == "cannot tell" and states(judged)["scale"] == "open"


def test_a_wrong_order_of_round_after_round_is_told_and_does_not_count() -> None:
    """A warm process has no cost of a start; here that makes tcmalloc slower than two others."""
    warm = readings((1.0, 0.6, 0.7, 0.8, 0.85, 1.5), MEMORY_MB, 3)
    judged = judged_fidelity(replace(SEEN, trace=warm), ABOUT)
    told = {point.name: point for point in judged.points}
    assert judged.answer == "stands" and told["rounds"].state == "disagrees"
    assert "speed of tcmalloc / jemalloc" in told["rounds"].text
    once, often = told["order"].text.split("; round after round, ")
    assert once.endswith(" and 0 otherwise") and often.endswith(" and 2 otherwise")


def test_memory_of_round_after_round_is_told_and_does_not_count() -> None:
    hoards = readings(CALLS_S, (50.0, 52.0, 160.0, 55.0, 58.0, 50.0), 3)
    judged = judged_fidelity(replace(SEEN, trace=hoards), ABOUT)
    assert judged.answer == "stands" and states(judged)["rounds"] == "disagrees"


# ---- measured ------------------------------------------------------------------------------------


def judged_again(row: dict[str, Any], *, with_shape: bool = True) -> Judgement:
    """What is said of numbers that were measured once."""

    def part(name: str) -> Readings:
        held = row[name]
        both = (tuple(map(tuple, held[key])) for key in ("speeds", "peaks_mb"))
        return Readings(*both, held["seconds"])

    shape = tuple(row["strange"]) if row["strange"] is not None and with_shape else None
    about = About(tuple(row["contenders"]), row["live_mb"], shape)
    return judged_fidelity(Measurements(part("program"), part("trace"), part("single")), about)


def rows_of(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((MEASURED / name).read_text())
    return rows


def test_of_good_traces_at_most_one_in_ten_is_refused() -> None:
    """The threads of `phases` work in turns, which no trace tells: that one must be refused."""
    every = [{**row, **row["measured"]} for row in rows_of("checks.json")]
    rows = [row for row in every if row["name"] != "phases"]
    refused = [row["name"] for row in rows if judged_again(row).answer != "stands"]
    assert len(rows) >= 10 and len(refused) <= len(rows) // 10, refused


def test_of_traces_that_were_spoiled_at_least_nine_in_ten_are_named() -> None:
    rows = rows_of("unfaithful.json")
    passed = [(row["name"], row["how"]) for row in rows if judged_again(row).answer == "stands"]
    assert len(rows) >= 10 and len(passed) <= len(rows) // 10, passed


def test_what_is_kept_of_the_real_traces_is_what_their_numbers_give() -> None:
    for row in rows_of("checks.json"):
        judged = judged_again({**row, **row["measured"]})
        assert (judged.answer, judged.why) == (row["answer"], row["why"]), row["name"]


# ---- shape ---------------------------------------------------------------------------------------

TOLD: dict[str, Any] = {
    "is_part": False, "threads": 4, "calls": 100_000, "peak_bytes": 1 << 20, "ends": 50_000,
    "ends_by_others": 20_000, "touched": 0, "looked_at": 0, "sizes": [[63, 30_000], [127, 20_000]],
    "operations": {"malloc": 50_000, "free": 50_000, "spawn": 3, "touch": 9},
}  # fmt: skip


def test_a_second_recording_that_differs_a_little_is_alike() -> None:
    again = {**TOLD, "calls": 103_000, "peak_bytes": 1_100_000, "ends_by_others": 22_000}
    assert strange(TOLD, again) == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"threads": 1}, "there are 4 threads, and 1 in the trace"),
        ({"calls": 50_000}, "there are 100,000 calls, and 50,000 in the trace"),
        ({"peak_bytes": 3 << 20}, "bytes in use at most"),
        ({"sizes": [[4095, 50_000]]}, "100 % of the allocations have other sizes"),
        ({"operations": {"malloc": 30_000, "realloc": 20_000, "free": 50_000}}, "of another kind"),
        ({"ends_by_others": 0}, "40 % of the blocks are freed by another thread than their own"),
    ],
)
def test_what_a_spoiled_trace_lacks_is_said(changes: dict[str, Any], words: str) -> None:
    (said,) = strange({**TOLD, **changes}, TOLD)
    assert words in said


def test_what_is_touched_is_compared_where_both_recordings_know() -> None:
    noted = {**TOLD, "touched": 900, "looked_at": 1000}
    (said,) = strange({**noted, "touched": 10}, noted)
    assert said == "90 % of the bytes of blocks are touched, and 1 % in the trace"
    assert strange(noted, TOLD) == () and strange(noted, {**noted, "touched": 800}) == ()


def test_of_a_part_of_a_program_amounts_are_not_compared() -> None:
    assert strange({**TOLD, "is_part": True, "calls": 10, "threads": 1}, TOLD) == ()
    assert distance({}, {}) == 0.0 and distance({1: 2}, {2: 2}) == 1.0


# ---- the file beside the trace -------------------------------------------------------------------


def verdict(digest: str, answer: sidecar.CheckAnswer) -> TraceCheck:
    point = CheckPoint("order", "agrees", "all alike")
    return TraceCheck(
        digest + "0" * 52, answer, "because", "redis", NAMES, (point,), TimeShare(0.2, 0.1, 0.3),
        "2026-11-25T00:00:00Z", '{"program": {}}',
    )  # fmt: skip


def test_the_verdict_belongs_to_the_content_of_a_trace(tmp_path: Path) -> None:
    path = traces.write(tmp_path / "a.hzt", [traces.churn(400)])
    trace = trace_file.find(f"trace:{path}")
    assert "was not checked" in sidecar.remark(trace)
    sidecar.write(verdict(trace.digest, "stands"), path)
    assert sidecar.find(trace) == verdict(trace.digest, "stands")
    assert sidecar.remark(trace) == ""
    traces.write(path, [traces.churn(402)])
    assert "was not checked" in sidecar.remark(trace_file.find(f"trace:{path}"))


def test_a_place_where_no_verdict_can_be_written_is_refused_before_the_check(
    tmp_path: Path,
) -> None:
    sidecar.require_place(tmp_path / "a.hzt")
    sidecar.path_of(tmp_path / "a.hzt").mkdir()
    with pytest.raises(UsageError, match="copy the trace elsewhere"):
        sidecar.require_place(tmp_path / "a.hzt")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("does not stand", "may not stand for its program"),
        ("cannot tell", "it is not shown that it may stand for its program"),
    ],
)
def test_a_verdict_against_a_trace_is_said(
    answer: sidecar.CheckAnswer, words: str, tmp_path: Path
) -> None:
    path = traces.write(tmp_path / "a.hzt", [traces.churn(400)])
    trace = trace_file.find(f"trace:{path}")
    sidecar.write(verdict(trace.digest, answer), path)
    assert words in sidecar.remark(trace)


def test_a_file_that_is_no_verdict_counts_for_nothing(tmp_path: Path) -> None:
    path = traces.write(tmp_path / "a.hzt", [traces.churn(400)])
    sidecar.path_of(path).write_text("{}")
    assert sidecar.find(trace_file.find(f"trace:{path}")) is None
    with pytest.raises(UsageError, match="answer is 'perhaps'; legal is one of: stands"):
        text = verdict("0" * 12, "stands").as_json().replace('"stands"', '"perhaps"')
        sidecar.parse(text.encode())
