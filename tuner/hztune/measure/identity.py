"""What is measured is proved: for each arm what its process is given, and what it must show.

A process is under the right allocator when the file that provides its malloc is the installed one,
and under the right configuration when it says so itself (allocators that confirm) or when a probe
process under the same environment said so (the others). One that is inside the program is proved by
what it says, or else by the variables that a process of the program was started with.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hztune import allocator
from hztune.allocator import Adapter, Installed, WrongConfiguration, live
from hztune.allocator.live import Running
from hztune.blocks import UNCHANGED_PROGRAM, Arm, Status
from hztune.errors import UsageError


@dataclass(frozen=True, slots=True)
class Fault:
    status: Status
    detail: str


def user_settings() -> dict[str, str]:
    """The variables of any allocator that the user has set: part of today's state."""
    adapters = [allocator.get(each) for each in allocator.names()]
    foreign = {name for each in adapters
               for name in (*each.variables(), *each.disturbing(os.environ))}  # fmt: skip
    return {name: value for name, value in os.environ.items() if name in foreign}


class AllocatorIdentity:
    def __init__(
        self, command: str = "", inside: Iterable[Installed] = (), *, seen: bool = True
    ) -> None:
        """`seen`: whether processes will be looked at; where none is, a probe speaks for them."""
        path = shutil.which(command)
        self._program, self._is_seen = Path(path) if path else None, seen
        self._user = user_settings()
        # the environment of everything that is started, without any allocator's variable
        self.base: Mapping[str, str] = {
            n: value for n, value in os.environ.items() if n not in self._user
        }
        self._prepared: dict[Arm, dict[str, str] | Fault] = {}
        self._installed = {each.name: each for each in inside}

    def prepare(self, arm: Arm) -> dict[str, str] | Fault:
        """The arm's variables beyond `base`, or why it cannot run; UsageError: not installed."""
        if arm not in self._prepared:
            self._prepared[arm] = self._prepare(arm)
        return self._prepared[arm]

    def program(self, arm: Arm) -> Path | None:
        """The arm's own build of the program, for turns; None: the usual."""
        return None  # installed allocators are preloaded

    def inspect(self, arm: Arm, running: Running) -> Fault | None:
        """Compares a process's library and variables with those given; wrappers may change them."""
        given = self._prepared.get(arm, self._user)
        if arm.allocator == UNCHANGED_PROGRAM or isinstance(given, Fault):
            return None
        adapter = allocator.get(arm.allocator)
        installed = self._find(adapter)
        process = f"process {running.pid} ({running.program})"
        if adapter.is_inside and adapter.confirms:
            return None  # it says itself what reached it, from wherever it stands
        if not adapter.is_inside and not _same(running.provider, installed.path):
            said = f"{process} has its malloc from {running.provider}, not {installed.path}"
            return Fault("wrong_allocator", said)
        if running.environment is None:
            return None
        # LD_PRELOAD may name more libraries; which of them provides malloc is seen.
        asked = {name: value for name, value in given.items() if name != "LD_PRELOAD"}
        added = set(adapter.disturbing(running.environment)) - set(asked)
        names = (*live.undelivered(running, asked), *sorted(added))
        why = (
            f"{process} does not have {' '.join(names)} as it was given; "
            "look for a wrapper or a start script that changes the environment"
        )
        return Fault("wrong_config", why) if names else None

    def judge(self, arm: Arm, library: str, stderr: str) -> Fault | None:
        """Compares the library, and the configuration if the process confirms one.

        `library`: the file that provides its malloc; "": not seen. `stderr`: from its start. A
        program that is over before it could be looked at is proved by its confirmation.
        """
        if arm.allocator == UNCHANGED_PROGRAM:
            return None
        adapter = allocator.get(arm.allocator)
        installed = self._find(adapter)
        if not library and not adapter.confirms:
            why = "each run was over before its allocator could be seen; give it more work"
            return Fault("wrong_allocator", why)
        if library and not adapter.is_inside and not _same(library, installed.path):
            return Fault("wrong_allocator", f"malloc comes from {library}, not {installed.path}")
        return confirmation_fault(adapter, arm, stderr) if adapter.confirms else None

    def _prepare(self, arm: Arm) -> dict[str, str] | Fault:
        """Asks the adapter for the variables, and proves them where the process itself cannot."""
        if arm.allocator == UNCHANGED_PROGRAM:
            return self._user
        adapter = allocator.get(arm.allocator)
        installed = self._find(adapter)
        try:
            environment = adapter.environment(arm.config, installed)
        except UsageError as error:
            return Fault("rejected", str(error))
        if not (adapter.confirms and self._is_seen):
            try:
                answers = adapter.read_back(environment, installed, self._program)
                adapter.verify(arm.config, answers)
            except WrongConfiguration as error:
                return Fault("wrong_config", str(error))
        return adapter.confirm_environment(environment) if self._is_seen else environment

    def _find(self, adapter: Adapter) -> Installed:
        if adapter.name not in self._installed:
            self._installed[adapter.name] = adapter.installed()
        return self._installed[adapter.name]


def _same(one: Path | str, other: Path | str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def confirmation_fault(adapter: Adapter, arm: Arm, stderr: str) -> Fault | None:
    try:
        answers = adapter.confirmed(stderr)
        if answers is None:
            return Fault("wrong_config", f"{adapter.name} did not say what it runs with")
        adapter.verify(arm.config, answers)
    except WrongConfiguration as error:
        return Fault("wrong_config", str(error))
    return None
