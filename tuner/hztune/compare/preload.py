"""The proof for what no adapter knows: libraries in files, and commands of the user's.

The file that was given must give malloc. A command runs as it is, so that nothing is to be proved.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from hztune import allocator
from hztune.allocator.live import Running
from hztune.blocks import UNCHANGED_PROGRAM, Arm
from hztune.compare.contenders import COMMAND, Contender, is_build
from hztune.measure.identity import (
    AllocatorIdentity,
    Fault,
    IdentityCheck,
    confirmation_fault,
)


class FileIdentity:
    """Proves arms whose library is a file, and leaves all others to the adapters' proof."""

    def __init__(
        self, contenders: Sequence[Contender], others: IdentityCheck | None = None
    ) -> None:
        """Makes the proof; `others` None: by the allocators' adapters."""
        self._files: dict[Arm, tuple[Path, Contender]] = {
            each.arm: (each.file, each) for each in contenders if each.file is not None
        }
        self._others = others or AllocatorIdentity()

    @property
    def base(self) -> Mapping[str, str]:
        """The environment of everything that is started."""
        return self._others.base

    def prepare(self, arm: Arm) -> dict[str, str] | Fault:
        """Returns the variables of an arm's processes, or why it cannot run."""
        if arm not in self._files:
            return self._others.prepare(Arm(UNCHANGED_PROGRAM) if _is_command(arm) else arm)
        file, contender = self._files[arm]
        preload = {} if contender.is_program else {"LD_PRELOAD": str(file)}
        return {**dict(contender.variables), **preload}

    def program(self, arm: Arm) -> Path | None:
        """Returns the file of an arm that is a program of its own."""
        file, contender = self._files.get(arm, (None, None))
        return file if contender and contender.is_program else self._others.program(arm)

    def inspect(self, arm: Arm, running: Running) -> Fault | None:
        """Returns what is wrong with a running process of an arm that an adapter knows."""
        known = arm not in self._files and not _is_command(arm)
        return self._others.inspect(arm, running) if known else None

    def judge(self, arm: Arm, library: str, stderr: str) -> Fault | None:
        """Returns what is wrong with a process of the arm; None: it is the one asked for."""
        if _is_command(arm):
            return None
        if arm not in self._files:
            return self._others.judge(arm, library, stderr)
        asked = os.path.realpath(self._files[arm][0])
        if os.path.realpath(library) != asked:
            return Fault(
                "wrong_allocator", f"malloc comes from {library or 'nowhere'}, not {asked}"
            )
        return confirmation_fault(allocator.get("hz"), arm, stderr) if is_build(arm) else None


def _is_command(arm: Arm) -> bool:
    """Whether an arm is a command of the user's."""
    return arm.allocator.startswith(COMMAND)
