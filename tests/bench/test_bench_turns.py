"""hz-turns: gives processes turns, and types what goes wrong with them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from .conftest import DEADLINE_S, Preload, Programs, read_event

Event = dict[str, Any]
QUICK = ("--turn-ms", 10, "--skip-ms", 1, "--warmup-ms", 20, "--stall-ms", 1000)


def play(programs: Programs, *words: object, **variables: str) -> list[Event]:
    done = programs.turns(*QUICK, *words, **variables)
    assert done.returncode == 0, done.stderr
    return [read_event(line) for line in done.stdout.splitlines()]


def of(events: list[Event], kind: str, arm: str | None = None) -> list[Event]:
    return [e for e in events if e["event"] == kind and arm in (None, e.get("arm"))]


def until(holds: Callable[[], bool]) -> bool:
    """Whether something becomes true within the deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.01)
    return False


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("workload", ["larson", "remote", "threads"])
@pytest.mark.parametrize("threads", [2, 32])
def test_every_arm_gets_one_turn_a_round_and_gives_its_result(
    programs: Programs, preload: Preload, workload: str, threads: int
) -> None:
    arms = [word for name in ("mimalloc", "jemalloc") for word in (
        "--arm", name, "--env", f"LD_PRELOAD={preload(name)['LD_PRELOAD']}")]  # fmt: skip
    events = play(
        programs, "--rounds", 5, *arms, "--", programs.bench_path, workload, "--threads", threads
    )
    assert [e["event"] for e in events[:2]] == ["start", "start"]
    assert events[-1]["event"] == "end"
    for arm in ("mimalloc", "jemalloc"):
        turns = of(events, "turn", arm)
        assert [t["round"] for t in turns] == list(range(5))
        assert len(of(events, "warm", arm)) == 1
        (last,) = of(events, "exit", arm)
        assert (last["status"], last["code"], last["signal"]) == ("ok", 0, 0)
        assert last["result"]["allocator"]["name"] == arm
        assert last["result"]["ops"] >= sum(t["ops"] for t in turns) > 0
    for r in range(5):
        assert {t["position"] for t in of(events, "turn") if t["round"] == r} == {0, 1}


def test_turns_of_different_arms_never_overlap(programs: Programs) -> None:
    events = play(
        programs, "--rounds", 10, "--arm", "a", "--arm", "b", "--arm", "c",
        "--", programs.bench_path, "kv", "--threads", 2,
    )  # fmt: skip
    turns = of(events, "turn")
    for one, next_one in pairwise(turns):
        assert one["start_ns"] + one["counted_ns"] <= next_one["start_ns"]
    counted = sum(t["counted_ns"] for t in turns)
    assert events[-1]["counted_ns"] == counted <= events[-1]["wall_ns"]


def test_the_beginning_of_a_turn_is_not_counted(programs: Programs) -> None:
    events = play(
        programs, "--rounds", 3, "--turn-ms", 40, "--skip-ms", 20, "--arm", "a",
        "--", programs.bench_path, "kv", "--threads", 1,
    )  # fmt: skip
    result = of(events, "exit")[0]["result"]
    counted_ns = sum(t["counted_ns"] for t in of(events, "turn"))
    warmed_ns = of(events, "warm")[0]["ns"]
    assert result["seconds"] * 1e9 >= warmed_ns + counted_ns + 3 * 15e6


def test_the_order_is_random_and_repeatable(programs: Programs) -> None:
    def order(seed: int) -> list[str]:
        words = ("--rounds", 12, "--turn-ms", 2, "--seed", seed)
        arms = ("--arm", "a", "--arm", "b", "--arm", "c")
        events = play(programs, *words, *arms, "--", programs.bench_path, "lifo", "--threads", 1)
        return [t["arm"] for t in of(events, "turn")]

    first = order(1)
    assert first == order(1)
    assert first != order(2)
    assert len({tuple(first[i : i + 3]) for i in range(0, 36, 3)}) > 1


def test_further_rounds_can_be_asked_for(programs: Programs) -> None:
    done = subprocess.run(
        [programs.turns_path, *map(str, QUICK), "--ask", "--rounds", "2", "--arm", "a", "--",
         programs.bench_path, "lifo", "--threads", "1"],
        input="more 3\n", capture_output=True, text=True, timeout=DEADLINE_S,
    )  # fmt: skip
    events = [read_event(line) for line in done.stdout.splitlines()]
    assert [e["done"] for e in of(events, "rounds")] == [2, 5]
    assert [t["round"] for t in of(events, "turn")] == [0, 1, 2, 3, 4]


def state(pid: int) -> str:
    """The state of a process as /proc tells it: S sleeping, T stopped, ..."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_an_allocator_with_a_background_thread_does_not_work_in_the_turns_of_others(
    programs: Programs, preload: Preload
) -> None:
    library = preload("jemalloc")["LD_PRELOAD"]
    background = ("--env", "MALLOC_CONF=background_thread:true", "--env", f"LD_PRELOAD={library}")
    with subprocess.Popen(
        [programs.turns_path, *map(str, QUICK), "--ask", "--rounds", "2",
         "--arm", "background", *background, "--arm", "none", "--env", f"LD_PRELOAD={library}",
         "--", programs.bench_path, "lifo", "--threads", "2"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as turns:  # fmt: skip
        assert turns.stdin is not None
        assert turns.stdout is not None
        events: list[Event] = []
        while not events or events[-1]["event"] != "rounds":
            events.append(read_event(turns.stdout.readline()))
        pids = {e["arm"]: e["pid"] for e in of(events, "start")}
        assert until(lambda: state(pids["background"]) == "T")
        assert state(pids["none"]) == "S"
        turns.stdin.write("more 2\n")
        turns.stdin.close()
        events += map(read_event, turns.stdout)
    assert len(of(events, "turn", "background")) == 4
    assert [e["status"] for e in of(events, "exit")] == ["ok", "ok"]


def test_variables_are_set_and_unset_for_one_arm_or_for_all(programs: Programs) -> None:
    show = ("sh", "-c", 'echo "$COMMON/$OWN/${GONE-unset}" >&2')
    done = programs.turns(
        "--env", "COMMON=1", "--arm", "a", "--env", "OWN=a", "--arm", "b", "--unset", "GONE",
        "--", *show, GONE="here",
    )  # fmt: skip
    tails = {
        e["arm"]: e["stderr_tail"]
        for e in map(read_event, done.stdout.splitlines())
        if e["event"] == "exit"
    }
    assert tails == {"a": "1/a/here\n", "b": "1//unset\n"}


@pytest.mark.parametrize(
    ("how", "status", "number"),
    [
        ("crash", "crash", signal.SIGSEGV),
        ("abort", "crash", signal.SIGABRT),
        ("hang", "hang", signal.SIGKILL),
        ("never_ready", "hang", signal.SIGKILL),
        ("eat", "oom", signal.SIGKILL),
        ("refuse", "rejected", 0),
        ("exit", "failed", 0),
    ],
)
def test_a_bad_arm_is_typed_and_the_good_one_goes_on(
    mischief: Programs, how: str, status: str, number: int
) -> None:
    events = play(
        mischief, "--rounds", 40, "--rss-limit-mb", 50, "--ready-ms", 1000, "--arm", "bad", "--env",
        f"HZ_MISCHIEF={how}", "--arm", "good",
        "--", mischief.bench_path, "misbehave", "--threads", 2,
    )  # fmt: skip
    (bad,) = of(events, "exit", "bad")
    (good,) = of(events, "exit", "good")
    assert (bad["status"], bad["signal"]) == (status, number)
    assert bad["result"] is None
    assert good["status"] == "ok"
    assert len(of(events, "turn", "good")) == 40
    assert gone(of(events, "start", "bad")[0]["pid"])


def test_a_flood_blocks_nothing_and_only_its_end_is_kept(mischief: Programs) -> None:
    events = play(
        mischief, "--rounds", 4, "--arm", "err", "--env", "HZ_MISCHIEF=flood",
        "--arm", "out", "--env", "HZ_MISCHIEF=drown",
        "--", mischief.bench_path, "misbehave", "--threads", 1,
    )  # fmt: skip
    ends = {each["arm"]: each for each in of(events, "exit")}
    assert (ends["err"]["status"], ends["err"]["stderr_tail"]) == ("ok", "x" * 64 * 1024)
    assert ends["out"]["result"] is None, "it is no whole result"
    assert len(of(events, "turn")) == 8


def test_what_is_neither_json_nor_text_never_breaks_an_event(programs: Programs) -> None:
    script = "printf '{\"a\":\"\\001\"}'; printf 'h\\303\\251\\377\\n' >&2"
    done = programs.turns("--arm", "a", "--", "sh", "-c", script)
    last = json.loads(done.stdout.splitlines()[1])
    assert (last["event"], last["result"]) == ("exit", '{"a":"\x01"}')
    assert last["stderr_tail"] == "hé\ufffd\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_no_arm_outlives_its_conductor(programs: Programs, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [programs.turns_path, "--rounds", "100000", "--arm", "a", "--arm", "b",
         "--", programs.bench_path, "larson", "--threads", "4"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    pids = [json.loads(process.stdout.readline())["pid"] for _ in "ab"]
    process.stdout.readline()  # the first arm is warm
    process.send_signal(number)
    rest = [json.loads(line) for line in process.stdout.read().splitlines() if line.endswith("}")]
    process.wait(DEADLINE_S)
    if number != signal.SIGKILL:
        assert process.returncode == 143
        assert len(of(rest, "exit")) == 2 and rest[-1]["event"] == "end"
    assert until(lambda: all(map(gone, pids)))


def test_the_conductor_ends_with_its_parent(programs: Programs) -> None:
    script = (
        f"{programs.turns_path} --rounds 100000 --arm a -- {programs.bench_path} lifo & echo $!"
    )
    shell = subprocess.Popen(
        ["sh", "-c", f"{script}; read wait"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert shell.stdout is not None
    conductor = int(shell.stdout.readline())
    arm = json.loads(shell.stdout.readline())["pid"]
    shell.kill()
    assert until(lambda: gone(conductor) and gone(arm))
    shell.wait(DEADLINE_S)


def test_arms_run_at_the_usual_priority(programs: Programs) -> None:
    done = programs.turns("--arm", "a", "--", "sh", "-c", "ps -o ni= -p $$ >&2")
    last = [read_event(line) for line in done.stdout.splitlines()][1]
    assert int(last["stderr_tail"]) == os.getpriority(os.PRIO_PROCESS, 0)
