"""hz-turns: gives processes turns, and types what goes wrong with them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from itertools import pairwise

import pytest
from tests.conftest import until

from .conftest import DEADLINE_S, LIBRARIES, Event, gone, of, read_event, state_of

QUICK = ("--turn-ms", 10, "--skip-ms", 1, "--warmup-ms", 20, "--stall-ms", 1000)


@pytest.mark.parametrize("workload", ["larson", "remote", "threads"])
@pytest.mark.parametrize("threads", [2, 32])
def test_every_arm_gets_one_turn_a_round_alone_and_gives_its_result(programs, workload, threads):
    arms = [word for name in ("mimalloc", "jemalloc") for word in (
        "--arm", name, "--env", f"LD_PRELOAD={LIBRARIES[name]}")]  # fmt: skip
    events = programs.events(
        *QUICK, "--rounds", 5, *arms, "--", programs.bench_path, workload, "--threads", threads
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
    for one, next_one in pairwise(of(events, "turn")):
        assert one["start_ns"] + one["counted_ns"] <= next_one["start_ns"]


def test_the_beginning_of_a_turn_is_not_counted(programs):
    events = programs.events(
        *QUICK, "--rounds", 3, "--turn-ms", 40, "--skip-ms", 20, "--arm", "a",
        "--", programs.bench_path, "kv", "--threads", 1,
    )  # fmt: skip
    result = of(events, "exit")[0]["result"]
    counted_ns = sum(t["counted_ns"] for t in of(events, "turn"))
    warmed_ns = of(events, "warm")[0]["ns"]
    assert result["seconds"] * 1e9 >= warmed_ns + counted_ns + 3 * 15e6


def test_the_order_is_random_and_repeatable(programs):
    def order(seed):
        words = ("--rounds", 12, "--turn-ms", 2, "--seed", seed)
        arms = ("--arm", "a", "--arm", "b", "--arm", "c")
        events = programs.events(
            *QUICK, *words, *arms, "--", programs.bench_path, "lifo", "--threads", 1
        )
        return [t["arm"] for t in of(events, "turn")]

    first = order(1)
    assert first == order(1)
    assert first != order(2)
    assert len({tuple(first[i : i + 3]) for i in range(0, 36, 3)}) > 1


def test_a_background_thread_rests_in_turns_of_others(programs):
    library = LIBRARIES["jemalloc"]
    background = ("--env", "MALLOC_CONF=background_thread:true", "--env", f"LD_PRELOAD={library}")
    with subprocess.Popen(
        [programs.turns_path, *map(str, QUICK), "--ask", "--rounds", "2",
         "--arm", "background", *background, "--arm", "none", "--env", f"LD_PRELOAD={library}",
         "--", programs.bench_path, "lifo", "--threads", "2"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as turns:  # fmt: skip
        events: list[Event] = []
        while not events or events[-1]["event"] != "rounds":
            events.append(read_event(turns.stdout.readline()))
        pids = {e["arm"]: e["pid"] for e in of(events, "start")}
        assert until(lambda: state_of(pids["background"]) == "T")
        assert state_of(pids["none"]) == "S"
        turns.stdin.write("more 2\n")
        turns.stdin.close()
        events += map(read_event, turns.stdout)
    assert len(of(events, "turn", "background")) == 4
    assert [e["status"] for e in of(events, "exit")] == ["ok", "ok"]


@pytest.mark.parametrize(
    ("how", "status", "number"),
    [
        ("crash", "crash", signal.SIGSEGV),
        ("hang", "hang", signal.SIGKILL),
        ("never_ready", "hang", signal.SIGKILL),
        ("eat", "oom", signal.SIGKILL),
        ("exit", "failed", 0),
    ],
)
def test_a_bad_arm_is_typed_and_the_good_one_goes_on(mischief, how, status, number):
    events = mischief.events(
        *QUICK, "--rounds", 40, "--rss-limit-mb", 50, "--ready-ms", 1000, "--arm", "bad", "--env",
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


def test_a_flood_blocks_nothing_and_only_its_beginning_and_end_are_kept(mischief):
    events = mischief.events(
        *QUICK, "--rounds", 4, "--arm", "err", "--env", "HZ_MISCHIEF=flood",
        "--arm", "out", "--env", "HZ_MISCHIEF=drown",
        "--", mischief.bench_path, "misbehave", "--threads", 1,
    )  # fmt: skip
    ends = {each["arm"]: each for each in of(events, "exit")}
    assert (ends["err"]["status"], ends["err"]["stderr"]) == ("ok", "x" * 128 * 1024)
    assert ends["out"]["result"] is None, "it is no whole result"
    assert len(of(events, "turn")) == 8


def test_what_is_neither_json_nor_text_never_breaks_an_event(programs):
    script = "printf '{\"a\":\"\\001\"}'; printf 'h\\303\\251\\377\\n' >&2"
    done = programs.turns("--arm", "a", "--", "sh", "-c", script)
    last = json.loads(done.stdout.splitlines()[1])
    assert (last["event"], last["result"]) == ("exit", '{"a":"\x01"}')
    assert last["stderr"] == "hé\ufffd\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_no_arm_outlives_its_conductor(programs, number):
    process = subprocess.Popen(
        [programs.turns_path, "--rounds", "100000", "--arm", "a", "--arm", "b",
         "--", programs.bench_path, "larson", "--threads", "4"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    pids = [json.loads(process.stdout.readline())["pid"] for _ in "ab"]
    process.stdout.readline()  # the first arm is warm
    process.send_signal(number)
    rest = [json.loads(line) for line in process.stdout.read().splitlines() if line.endswith("}")]
    process.wait(DEADLINE_S)
    if number != signal.SIGKILL:
        assert process.returncode == 143
        assert len(of(rest, "exit")) == 2 and rest[-1]["event"] == "end"
    assert until(lambda: all(map(gone, pids)))


def test_the_conductor_ends_with_its_parent(programs):
    script = (
        f"{programs.turns_path} --rounds 100000 --arm a -- {programs.bench_path} lifo & echo $!"
    )
    shell = subprocess.Popen(
        ["sh", "-c", f"{script}; read wait"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    conductor = int(shell.stdout.readline())
    arm = json.loads(shell.stdout.readline())["pid"]
    shell.kill()
    assert until(lambda: gone(conductor) and gone(arm))
    shell.wait(DEADLINE_S)


def test_arms_run_at_the_usual_priority(programs):
    (last,) = of(programs.events("--arm", "a", "--", "sh", "-c", "ps -o ni= -p $$ >&2"), "exit")
    assert int(last["stderr"]) == os.getpriority(os.PRIO_PROCESS, 0)
