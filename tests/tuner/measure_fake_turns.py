"""A double of hz-turns: the same command line and events, but the arms are what FAKE_ARMS says.

FAKE_ARMS is a JSON object: for each arm (by its key) what it does. It starts no process and keeps
no time. All that was given on the command line is written to the file FAKE_LOG.
"""

from __future__ import annotations

import json
import os
import sys
import time

FLAGS = ("--ask",)
ENDINGS = {
    "ok": (0, 0),
    "crash": (11, 0),
    "hang": (9, 0),
    "oom": (9, 0),
    "rejected": (0, 78),
    "failed": (0, 3),
}


def parse(words):
    """Returns the options, the environment of each arm, and the program."""
    options = {}
    arms = {}
    while words[0] != "--":
        name = words.pop(0)
        value = "" if name in FLAGS else words.pop(0)
        if name == "--arm":
            arms[value] = {}
        elif name == "--env":
            key, _, text = value.partition("=")
            arms[list(arms)[-1]][key] = text
        else:
            options[name] = value
    return options, arms, words[1:]


def tell(event, **fields):
    """Writes one event."""
    print(json.dumps({"event": event, **fields}), flush=True)


class Arm:
    """One arm that is alive."""

    def __init__(self, key, plan):
        self.key = key
        self.plan = plan
        self.alive = True
        tell("start", arm=key, pid=1000 + int(key))

    def turn(self, number, position):
        """One turn, or the end that is planned for it."""
        if number == self.plan.get("ends_in_round"):
            self.end(str(self.plan["status"]))
            return
        fields = {"cpu_ns": 36_000_000, "involuntary": 1, "steal_ticks": 0, "psi_us": 0}
        fields |= {"rss_kb": 5000, "minor_faults": 0, "live_kb": 4000}
        fields |= {"ops": self.plan.get("ops", 1000), "counted_ns": 18_000_000}
        fields |= self.plan.get("rounds", {}).get(str(number), {})
        start_ns = time.monotonic_ns()
        tell("turn", arm=self.key, round=number, position=position, start_ns=start_ns, **fields)

    def end(self, status):
        """The end of it."""
        self.alive = False
        signal, code = ENDINGS[status]
        result = {
            "live_peak_kb": 4000,
            "allocator": {"path": self.plan.get("library", "/lib/right.so")},
            "hz": {"counters": {"refills": 7}},
        }
        tell(
            "exit",
            arm=self.key,
            status=status,
            signal=signal,
            code=code,
            rss_peak_kb=6000,
            minor_faults=1,
            cpu_s=0.1,
            stderr=self.plan.get("stderr", ""),
            result=json.dumps(self.plan.get("result", result)) if status == "ok" else None,
        )


def play(options, arms):
    """All rounds, those that are asked for in the end, too."""
    done, wanted = 0, int(options["--rounds"])
    while done < wanted and any(arm.alive for arm in arms):
        for position, arm in enumerate(arm for arm in arms if arm.alive):
            arm.turn(done, position)
        done += 1
        if done == wanted and "--ask" in options and any(arm.alive for arm in arms):
            tell("rounds", done=done)
            word, _, count = sys.stdin.readline().strip().partition(" ")
            wanted += int(count) if word == "more" else 0


def main():
    """Plays a block; FAKE_SELF is what happens to hz-turns itself."""
    options, environments, program = parse(sys.argv[1:])
    with open(os.environ["FAKE_LOG"], "a", encoding="utf-8") as log:
        log.write(json.dumps([options, environments, program, dict(os.environ)]) + "\n")
    plans = json.loads(os.environ.get("FAKE_ARMS", "{}"))
    misfortune = os.environ.get("FAKE_SELF", "")
    arms = [Arm(key, plans.get(key, {})) for key in environments]
    for arm in arms:
        tell("warm", arm=arm.key, ns=1)
    if misfortune == "fails":
        print("hz-turns: cannot make a turn page", file=sys.stderr)
        return 1
    play(options, arms)
    if misfortune == "falls silent":
        time.sleep(3600)
    for arm in arms:
        if arm.alive:
            arm.end("ok")
    tell("end", warmup_ns=1, counted_ns=1, wall_ns=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
