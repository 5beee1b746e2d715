"""What was seen of a program in a few seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_MAPPED_BYTES = 128 * 1024
"""From that size on, glibc maps a block for itself, as long as nothing was set."""

_PAGE_KB = 4


@dataclass(frozen=True, slots=True)
class Calls:
    """What a program asked of its allocator, in the process that asked most.

    Attributes:
        allocations: How many; of a server, under its load. So are sizes and frees.
        seconds: From the first call to the last one.
        sizes: (most bytes, allocations of at most so many and more than half), in order.
        threads: That called.
        frees: How many.
        frees_by_others: Of them, by another thread than the one that allocated the block.
        peak_kb: Most that was allocated at one time, KiB.
        is_part: Whether the program went on when the recording ended.
    """

    allocations: int
    seconds: float
    sizes: tuple[tuple[int, int], ...]
    threads: int
    frees: int
    frees_by_others: int
    peak_kb: int
    is_part: bool

    @classmethod
    def of(cls, told: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> Calls:
        """From what `hztune trace info` tells of a recording, without what came before a load."""
        start = before or {"sizes": (), "ends": 0, "ends_by_others": 0}
        earlier = dict(start["sizes"])
        sizes = tuple((most, count - earlier.get(most, 0)) for most, count in told["sizes"])
        return cls(
            allocations=sum(count for _, count in sizes),
            seconds=told["duration_ns"] * 1e-9,
            sizes=sizes,
            threads=told["threads"],
            frees=told["ends"] - start["ends"],
            frees_by_others=told["ends_by_others"] - start["ends_by_others"],
            peak_kb=told["peak_bytes"] // 1024,
            is_part=told["is_part"],
        )

    @property
    def by_others(self) -> float:
        """The share of frees by another thread."""
        return self.frees_by_others / self.frees if self.frees else 0.0

    @property
    def large(self) -> int:
        """Allocations that glibc maps for themselves."""
        return sum(count for most, count in self.sizes if most >= 2 * _MAPPED_BYTES - 1)


@dataclass(frozen=True, slots=True)
class Sight:
    """What was seen of a program.

    Attributes:
        wall_s: How long it was looked at; of a server, its load.
        ended: Whether it (of a server, its load) ended by itself meanwhile.
        cpu_s: CPU time that it took meanwhile, seconds.
        delay_s: For which its first thread waited for a CPU that others had, seconds.
        life_cpu_s: From its start to its end; of a server, under its load.
        processes: Most that lived at one time.
        threads: Most that lived at one time, in all of them together.
        faults: Page faults without a disk; of a server, under its load.
        peak_kb: Most memory that was resident at one time, KiB; no mapped file is in it.
        end_kb: What was resident when the look ended, KiB; of a server, a moment after its load.
        before_kb: Of a server: what was resident before its load, KiB; 0: it is none.
        allocator: The allocator that provides its malloc; "" where it is not known.
        provider: The file that does; "" where it was not seen.
        inside: Allocators that have names of their own in its files ("inside:jemalloc").
        links: Names of the libraries that it is linked with.
        obstacle: Why no allocator can be put under it, in one sentence; "": one can.
        gains_rights: Whether that is since it gains rights when it starts.
        is_of_go: Whether that is since Go's own runtime gives it all its memory.
        dropped: Programs that it started without the variables that it was given.
        ports: On which it listens ("the port 6379").
        calls: What it asked of its allocator; None: that was not seen.
        unseen: Why not, in one sentence.
    """

    wall_s: float
    ended: bool
    cpu_s: float
    delay_s: float
    life_cpu_s: float
    processes: int
    threads: int
    faults: int
    peak_kb: int
    end_kb: int
    before_kb: int
    allocator: str
    provider: str
    inside: tuple[str, ...]
    links: tuple[str, ...]
    obstacle: str
    gains_rights: bool
    is_of_go: bool
    dropped: tuple[str, ...]
    ports: tuple[str, ...]
    calls: Calls | None
    unseen: str

    @property
    def own_s(self) -> float:
        """Seconds without those for which other programs kept it from a CPU."""
        return max(0.0, self.wall_s - self.delay_s)

    @property
    def cpus(self) -> float:
        """CPUs that it kept busy in that time."""
        return self.cpu_s / self.own_s if self.own_s > 0 else 0.0

    @property
    def allocations_per_cpu_s(self) -> float:
        """Allocations in a second of its CPU time as it is, not recorded; 0: not known."""
        if self.calls is None:
            return 0.0
        is_whole = self.ended or self.before_kb
        cpu_s = self.life_cpu_s if is_whole else self.calls.seconds * self.cpus
        return self.calls.allocations / cpu_s if cpu_s > 0 else 0.0

    @property
    def faults_again(self) -> int:
        """Page faults beyond one for each page that was new: of memory that was taken again."""
        return max(0, self.faults - max(0, self.peak_kb - self.before_kb) // _PAGE_KB)

    @property
    def faults_per_cpu_s(self) -> float:
        """The same in a second of its CPU time."""
        return self.faults_again / self.life_cpu_s if self.life_cpu_s > 0 else 0.0

    @property
    def malloc_kb(self) -> int:
        """What of the peak may be its allocator's, KiB: at most twice its blocks.

        The rest is memory that it maps for itself, such as the heap of a JVM.
        """
        return min(self.peak_kb, 2 * self.calls.peak_kb) if self.calls else self.peak_kb

    @property
    def spare(self) -> float:
        """The share of the peak that is its allocator's and in no block; a tenth if not seen."""
        if self.calls is None or not self.peak_kb:
            return 0.1
        return max(0, self.malloc_kb - self.calls.peak_kb) / self.peak_kb
