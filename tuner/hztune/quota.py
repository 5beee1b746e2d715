"""The container in which every arm is measured: so many CPUs, and so much memory."""

from __future__ import annotations

import os

from hztune.arguments import memory_amount, within
from hztune.errors import UsageError
from hztune.schema import Schema

LEAST_CPUS, MOST_CPUS = 0.01, 4096.0
LEAST_MEMORY_KB, MOST_MEMORY_KB = 1024, 1 << 40


class Quota(Schema, frozen=True, omit_defaults=False):
    """What the processes of a run may use together; the kernel holds them to it. None: all."""

    cpus: float | None = None
    memory_kb: int | None = None

    def __post_init__(self) -> None:
        if self.cpus is None and self.memory_kb is None:
            raise UsageError("a container needs --cpus, --memory, or both")
        if self.cpus is not None:
            within("--cpus", self.cpus, LEAST_CPUS, MOST_CPUS)
        if self.memory_kb is not None and not LEAST_MEMORY_KB <= self.memory_kb <= MOST_MEMORY_KB:
            raise UsageError(
                f"--memory is {self.memory_kb} KiB; legal is a size from 1M to 1048576G"
            )

    @classmethod
    def of(cls, cpus: float | None, memory: str) -> Quota | None:
        """The container that a user described; None: none was; UsageError: it is not legal."""
        if cpus is None and not memory:
            return None
        here = len(os.sched_getaffinity(0))
        if cpus is not None and here < cpus <= MOST_CPUS:
            raise UsageError(
                f"--cpus is {cpus:g}, and hztune may use {here} here: what more would do cannot be "
                "measured; give fewer, or leave it out"
            )
        if not memory:
            return cls(cpus, None)
        try:
            times, kb = memory_amount(memory)
        except UsageError:
            times, kb = 1.0, 0
        if times:
            raise UsageError(f"--memory {memory!r}: legal is a size with its unit (512M, 2G)")
        return cls(cpus, kb)

    @property
    def text(self) -> str:
        cpus = "" if self.cpus is None else cpus_text(self.cpus)
        memory = "" if self.memory_kb is None else f"{memory_text(self.memory_kb)} of memory"
        return " and ".join(each for each in (cpus, memory) if each)

    @property
    def options(self) -> tuple[str, ...]:
        cpus = () if self.cpus is None else ("--cpus", f"{self.cpus:g}")
        memory = () if self.memory_kb is None else ("--memory", memory_text(self.memory_kb))
        return (*cpus, *memory)


def cpus_text(cpus: float) -> str:
    return f"{cpus:g} CPU{'s' * (cpus != 1)}"


def memory_text(kb: int) -> str:
    if kb % (1 << 20) == 0:
        return f"{kb >> 20}G"
    return f"{kb >> 10}M" if kb % 1024 == 0 else f"{kb}K"
