"""Governing a process: looks, sets under a lease, says each action, and lets go in good order."""

from __future__ import annotations

import json
import math
import os
import secrets
import select
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NamedTuple

from hztune import allocator, artifacts, files, params
from hztune.allocator.base import Installed
from hztune.attach import channel, statistics_of
from hztune.attach.channel import Process
from hztune.errors import HztuneError, UsageError
from hztune.govern import context, policy
from hztune.govern.governor import Action, Governor
from hztune.govern.learner import Learner
from hztune.govern.observe import Watched
from hztune.params import Value

LEASE_S = 10  # after which the process restores its settings if the governor is gone

_STARTS_S = 0.5  # before which the program has hardly begun
_RENEWED_S = 3.0
_TRIMMED_S = 60.0  # what is freed under an arm that trims is returned after so long
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
    address: tuple[str, str] | None  # where it is asked: another program has another one
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    in_effect: str = ""  # arm

    @classmethod
    def of(cls, pid: int, chosen: policy.Policy) -> Levers:
        """UsageError: it takes no requests, or has not the levers and values of the policy."""
        process, address = Process.of(pid), channel.socket_of(pid)
        found = statistics_of(process)
        main = next(iter(found.parts), None)
        if main is None:
            raise UsageError(f"{process} has no allocator with levers")
        if found.is_governed:  # its values now are not those of its start
            raise UsageError(f"{process} has a governor, or lost one some seconds ago")
        arms = chosen.settings_for(main.allocator)
        names = {name for settings in arms.values() for name in settings}
        if unknown := sorted(names - main.levers.keys()):
            raise UsageError(
                f"{', '.join(unknown)} cannot change in process {pid} ({process.name}, "
                f"{main.allocator} {main.version}); what can: {', '.join(sorted(main.levers))}"
            )
        installed = Installed(main.allocator, main.version, "", Path(), "", "")
        for knob in allocator.get(main.allocator).knobs(installed):
            for settings in arms.values():
                if knob.name in settings:
                    params.parse(knob, str(settings[knob.name]))
        start = {name: main.levers[name] for name in sorted(names)}
        full = {name: {**start, **settings} for name, settings in arms.items()}
        return cls(process, main.allocator, start, full, address)

    def hold(self, arm: str) -> str:
        """Sets an arm or renews its lease, anew if that had ended; returns why to let go, or ""."""
        settings = {} if arm == self.in_effect else self.arms[arm]
        told = {name: str(value) for name, value in settings.items()}
        found = channel.govern(self.process, self.token, LEASE_S, told)
        if found.began and self.in_effect:
            if channel.socket_of(self.process.pid) != self.address:
                return "it is another program now"
            self.in_effect = ""
            return self.hold(arm)
        self.in_effect = arm
        return f"somebody else has changed {', '.join(found.taken)}" if found.taken else ""

    def let_go(self) -> str:
        """Ends the lease now; returns what becomes of the settings."""
        try:
            left = channel.govern(self.process, self.token, 0, {}).values
        except HztuneError:
            return f"; what was set ends by itself within {LEASE_S} s, or when the process goes on"
        kept = [f"{name}={value}" for name, value in left.items() if value != self.start[name]]
        but = f" but for {', '.join(kept)}" if kept else ""
        return f"; the process has the settings of its start{but}"


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

    def tell(words: str, **facts: object) -> None:
        say(f"{time.strftime('%H:%M:%S')} {words}")
        if log is not None:
            entry = {"time": time.time(), "pid": pid, **facts}
            files.append_to(log, json.dumps(entry) + "\n", "--log")

    def note(action: Action) -> None:
        changed = ", ".join(f"{k}={v}" for k, v in levers.arms[action.arm].items())
        what = f"{'would be ' * is_dry}{action.what} in {action.context}: {action.arm} ({changed})"
        tell(what + f": {action.told}" * (not is_dry), **action._asdict())

    first = {each: names.index(arm.name) for arm in chosen.arms if arm.name in names
             for each in arm.contexts}  # fmt: skip
    learner = Learner(names, error=chosen.error, most_loss=chosen.most_loss, rng=rng, first=first)
    made = Governor(chosen, names, learner, context.named(chosen.context), rng, note)
    say(f"{levers.process} on {levers.allocator}: "
        + "; ".join(f"{name} ({', '.join(f'{k}={v}' for k, v in arm.items())})"
                    for name, arm in levers.arms.items()))  # fmt: skip
    if log is not None:
        files.append_to(log, "", "--log")
    end = End("the governor was told to end")
    try:
        end = _followed(levers, watched, made, chosen, is_dry=is_dry, until=began + for_s)
    finally:
        left = "" if is_dry or not levers.process.exists() else levers.let_go()
        watched.close()
        with suppress(HztuneError):  # a log that cannot be written is a reason to end
            tell(f"let go: {end.why}{left}", what="let go", told=end.why + left)
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
    names, held_at, trimmed_at = [*levers.arms], -math.inf, -math.inf
    trimming = {each.name for each in chosen.arms if each.trims}
    pause_s = min(_MOST_LOOK_S, max(_LEAST_LOOK_S, chosen.epoch_s / _LOOKS))
    try:
        while (sight := watched.look()).at_s < until:
            if sight.memory_bytes > chosen.most_bytes:
                mib = f"{sight.memory_bytes >> 20} MiB"
                return End(f"it takes {mib}, more than {chosen.brakes.most_memory}")
            arm = names[made.look(sight)]
            is_new = arm != levers.in_effect
            if not is_dry and (is_new or sight.at_s - held_at >= _RENEWED_S):
                if why := levers.hold(arm):
                    return End(why)
                held_at = sight.at_s
                if arm in trimming and (is_new or sight.at_s - trimmed_at >= _TRIMMED_S):
                    watched.trim()
                    trimmed_at = sight.at_s
            watched.rest(pause_s, until_busy=made.told_context == "idle")
    except HztuneError as error:
        is_over = not levers.process.exists()
        return End("the process has ended" if is_over else str(error), is_over)
    return End("the time is over", is_planned=True)


def governed_child(name: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Has another process govern this one as soon as it takes requests; it will be the program.

    Returns the variables with which it does. The governor is no child of the program, which may
    wait for its own. UsageError: there is no such policy.
    """
    policy.load(name)
    ended = os.pidfd_open(os.getpid())
    command = [sys.executable, "-m", "hztune", "govern", name, "--pid", str(os.getpid())]
    if (between := os.fork()) == 0:
        if os.fork() == 0:
            os.setsid()
            if not select.select([ended], [], [], _STARTS_S)[0]:
                # else whoever reads what the program writes would wait for the governor, too
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(2, 1)
                os.closerange(3, os.sysconf("SC_OPEN_MAX"))
                os.execv(command[0], command)
        os._exit(0)
    os.waitpid(between, 0)
    loaded = filter(None, [environment.get("LD_PRELOAD"), str(artifacts.agent())])
    return {**environment, "HZ_CONTROL": "1", "LD_PRELOAD": ":".join(loaded)}
