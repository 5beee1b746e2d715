"""The proof for libraries that no adapter knows: the file that was given must give malloc."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from hztune.compare.contenders import Contender
from hztune.measure.proof import AllocatorProof, Fault, Proof
from hztune.samples import Arm


class FileProof:
    """Proves arms whose library is a file, and leaves all others to the adapters' proof."""

    def __init__(self, contenders: Sequence[Contender], others: Proof | None = None) -> None:
        """Makes the proof; `others` None: by the allocators' adapters."""
        self._files: dict[Arm, Path] = {
            each.arm: each.file for each in contenders if each.file is not None
        }
        self._others = others or AllocatorProof()

    @property
    def base(self) -> Mapping[str, str]:
        """The environment of everything that is started."""
        return self._others.base

    def prepare(self, arm: Arm) -> dict[str, str] | Fault:
        """Returns the variables of an arm's processes, or why it cannot run."""
        if arm in self._files:
            return {"LD_PRELOAD": str(self._files[arm])}
        return self._others.prepare(arm)

    def judge(self, arm: Arm, library: str, stderr: str) -> Fault | None:
        """Returns what is wrong with a process of the arm; None: it is the one asked for."""
        if arm not in self._files:
            return self._others.judge(arm, library, stderr)
        asked = os.path.realpath(self._files[arm])
        if os.path.realpath(library) == asked:
            return None
        return Fault("wrong_allocator", f"malloc comes from {library or 'nowhere'}, not {asked}")
