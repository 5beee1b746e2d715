"""Governing a process: looks, sets under a lease, says each action, and lets go in good order."""

from __future__ import annotations

import json
import math
import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NamedTuple

from hztune import artifacts, files
from hztune.attach import channel
from hztune.attach.channel import Process
from hztune.attach.diagnosis import statistics_of
from hztune.errors import HztuneError, UsageError
from hztune.govern import context, policy
from hztune.govern.governor import Action, Governor
from hztune.govern.learner import Learner
from hztune.govern.observe import Watched
from hztune.params import Value

LEASE_S = 10  # after which the process restores its settings if the governor is gone

_STARTS_S = 0.5  # before which the program has hardly begun
_RENEWED_S = 3.0
_LOOKS = 12  # of an epoch
_LEAST_LOOK_S, _MOST_LOOK_S = 0.25, 2.0


class End(NamedTuple):
    why: str
    is_planned: bool = False  # whether it was no brake


@dataclass
class Levers:
    """The levers of a process that the arms of a policy move, and what each arm gives them."""

    process: Process
    allocator: str
    start: Mapping[str, Value]  # their values before
    arms: Mapping[str, Mapping[str, Value]]  # by name; a lever that an arm leaves out is as before
    token: str = field(default_factory=lambda: secrets.token_hex(16))

    @classmethod
    def of(cls, pid: int, chosen: policy.Policy) -> Levers:
        """UsageError: it takes no requests, or has not the levers of the policy."""
        process = Process.of(pid)
        main = next(iter(statistics_of(process).parts), None)
        if main is None:
            raise UsageError(f"{process} has no allocator with levers")
        arms = chosen.settings_for(main.allocator)
        names = {name for settings in arms.values() for name in settings}
        if unknown := sorted(names - main.levers.keys()):
            raise UsageError(
                f"{', '.join(unknown)} cannot change in process {pid} ({process.name}, "
                f"{main.allocator} {main.version}); what can: {', '.join(sorted(main.levers))}"
            )
        start = {name: main.levers[name] for name in sorted(names)}
        full = {name: {**start, **settings} for name, settings in arms.items()}
        return cls(process, main.allocator, start, full)

    def hold(self, arm: str | None) -> tuple[str, ...]:
        """Sets an arm, or renews the lease alone; returns what others have changed meanwhile."""
        told = {name: str(value) for name, value in self.arms[arm].items()} if arm else {}
        found = channel.govern(self.process, self.token, LEASE_S, told)
        if found.began and arm is None:  # the lease had ended: nobody looked for so long
            return ("the lease",)
        return found.taken

    def let_go(self) -> None:
        channel.govern(self.process, self.token, 0, {})


def steered(
    pid: int,
    chosen: policy.Policy,
    say: Callable[[str], None],
    *,
    seed: int = 1,
    is_dry: bool = False,
    log: Path | None = None,
    for_s: float = math.inf,
) -> End:
    """Governs a process until it ends, the time is over, or there is a reason to let go.

    Args:
        pid: A process that takes requests.
        chosen: What may be set, what is made less, and the brakes.
        say: Gets each action, a line for people.
        seed: Of the order of trials.
        is_dry: Nothing is set, and only what would be is said.
        log: A file to which each action is added, a line of JSON.
        for_s: Seconds after which to let go.

    HztuneError: it cannot be governed. KeyboardInterrupt: the user wants an
    end; like any other end it leaves the process with the settings that it had.
    """
    levers, watched = Levers.of(pid, chosen), Watched(pid, chosen.figure)
    names, rng, began = [*levers.arms], Random(seed), time.monotonic()

    def note(action: Action) -> None:
        changed = ", ".join(f"{k}={v}" for k, v in levers.arms[action.arm].items())
        told = "" if is_dry else f": {action.told}"
        say(f"{time.strftime('%H:%M:%S')} {'would be ' * is_dry}{action.what} in {action.context}: "
            f"{action.arm} ({changed}){told}")  # fmt: skip
        if log is not None:
            with files.appended(log, "--log") as lines:
                lines.write(json.dumps({"time": time.time(), **action._asdict()}) + "\n")

    first = {each: names.index(arm.name) for arm in chosen.arms if arm.name in names
             for each in arm.contexts}  # fmt: skip
    learner = Learner(names, error=chosen.error, most_loss=chosen.most_loss, rng=rng, first=first)
    made = Governor(chosen, names, learner, context.named(chosen.context), rng, note)
    say(f"{levers.process} on {levers.allocator}: "
        + "; ".join(f"{name} ({', '.join(f'{k}={v}' for k, v in arm.items())})"
                    for name, arm in levers.arms.items()))  # fmt: skip
    if log is not None:
        files.appended(log, "--log").close()
    try:
        end = _followed(levers, watched, made, chosen, is_dry=is_dry, until=began + for_s)
    finally:
        if not is_dry and levers.process.exists():
            levers.let_go()
    say(f"{time.strftime('%H:%M:%S')} let go: {end.why}; the process has the settings of its start")
    return end


def _followed(
    levers: Levers,
    watched: Watched,
    made: Governor,
    chosen: policy.Policy,
    *,
    is_dry: bool,
    until: float,
) -> End:
    names, now, held_at = [*levers.arms], -1, -math.inf
    pause_s = min(_MOST_LOOK_S, max(_LEAST_LOOK_S, chosen.epoch_s / _LOOKS))
    while True:
        try:
            sight = watched.look()
        except HztuneError as error:
            return End(str(error), not levers.process.exists())
        if sight.at_s >= until:
            return End("the time is over", is_planned=True)
        if sight.memory_bytes > chosen.most_bytes:
            mib = f"{sight.memory_bytes >> 20} MiB"
            return End(f"it takes {mib}, more than {chosen.brakes.most_memory}")
        arm = made.look(sight)
        if not is_dry and (arm != now or sight.at_s - held_at >= _RENEWED_S):
            if taken := levers.hold(names[arm] if arm != now else None):
                if taken == ("the lease",):
                    now = -1  # and set it again at the next look
                    continue
                return End(f"somebody else has changed {', '.join(taken)}")
            held_at = sight.at_s
        now = arm
        time.sleep(pause_s)


def governed_child(name: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Has another process govern this one as soon as it takes requests; it will be the program.

    Returns the variables with which it does. The governor is no child of the program, which may
    wait for its own. UsageError: there is no such policy.
    """
    policy.load(name)
    command = [sys.executable, "-m", "hztune", "govern", name, "--pid", str(os.getpid())]
    if (between := os.fork()) == 0:
        if os.fork() == 0:
            os.setsid()
            time.sleep(_STARTS_S)
            os.execv(command[0], command)
        os._exit(0)
    os.waitpid(between, 0)
    loaded = filter(None, [environment.get("LD_PRELOAD"), str(artifacts.agent())])
    return {**environment, "HZ_CONTROL": "1", "LD_PRELOAD": ":".join(loaded)}
