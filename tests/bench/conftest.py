"""What the tests of the measuring programs share: the programs, allocators to run them on."""

from __future__ import annotations

import json
import os
import struct
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import QUICK, finished

from .traces import KINDS

DEADLINE_S = 120
LIBRARIES = {
    "jemalloc": "libjemalloc.so.2",
    "mimalloc": "libmimalloc.so.2",
    "tcmalloc": "libtcmalloc_minimal.so.4",
}

Event = dict[str, Any]


class Programs:
    """The programs of one build, each as a function that returns the finished process."""

    def __init__(self, core: Path, bench: Path | None = None) -> None:
        self.bench_path = bench or core / "bench" / "hz-bench"
        self.turns_path = core / "bench" / "hz-turns"
        self.launch_path = core / "bench" / "hz-launch"
        self.alternate_path = core / "bench" / "hz-alternate"

    def bench(self, *words: object, **variables: str) -> subprocess.CompletedProcess[str]:
        return run([self.bench_path, *words], **variables)

    def turns(self, *words: object, **variables: str) -> subprocess.CompletedProcess[str]:
        return run([self.turns_path, *words], **variables)

    def launch(self, *words: object, **variables: str) -> subprocess.CompletedProcess[str]:
        return run([self.launch_path, *words], **variables)

    def result(self, *words: object, **variables: str) -> dict[str, Any]:
        """The JSON of a run of hz-bench that must succeed."""
        done = self.bench(*words, **variables)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def events(self, *words: object, **variables: str) -> list[Event]:
        """What hz-turns tells of a run that must succeed."""
        done = self.turns(*words, **variables)
        assert done.returncode == 0, done.stderr
        return [read_event(line) for line in done.stdout.splitlines()]


def of(events: list[Event], kind: str, arm: str | None = None) -> list[Event]:
    """The events of a kind, of all arms or of one."""
    return [e for e in events if e["event"] == kind and arm in (None, e.get("arm"))]


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def state_of(pid: int) -> str:
    """The state of a process as /proc tells it: S sleeping, T stopped, ..."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def read_event(line: str) -> Event:
    """A line of hz-turns or hz-alternate; what its program reported is unpacked, too."""
    read: Event = json.loads(line)
    if read.get("result"):
        read["result"] = json.loads(read["result"])
    return read


def run(words: list[object], **variables: str) -> subprocess.CompletedProcess[str]:
    return finished(words, env={**os.environ, **variables})


@pytest.fixture(scope="session")
def programs(core_build) -> Programs:
    return Programs(core_build)


@pytest.fixture(scope="session")
def mischief(core_build, build_core) -> Programs:
    """The programs, and an hz-bench with one more workload, which goes wrong on demand."""
    source = Path(__file__).parent / "misbehave.c"
    built = build_core(targets=["hz-bench"], **QUICK, HZ_EXTRA_WORKLOAD=str(source))
    return Programs(core_build, built / "bench" / "hz-bench")


# ---- what a process asks of its allocator --------------------------------------------------------

SOURCE = Path(__file__).parent / "witness.c"
WORD = {number: word for word, number in KINDS.items()}
LOG_BYTES = 8 << 20
MARKED = 40000
"""Blocks of this size and more are a test's own; nothing else in hz-bench asks for so much."""


@dataclass(frozen=True)
class Call:
    """A call that a process made of its allocator."""

    kind: str
    thread: int
    size: int
    align: int
    address: int
    old: int


Witness = Callable[..., list[Call]]


@pytest.fixture(scope="session")
def witness(programs, tmp_path_factory) -> Witness:
    """Plays a workload or a trace; returns the calls about blocks of `least` bytes or more."""
    folder = tmp_path_factory.mktemp("witness")
    library, log = folder / "witness.so", folder / "log"
    flags = ("-std=gnu11", "-D_GNU_SOURCE", "-O1", "-shared", "-fPIC", "-fno-builtin")
    subprocess.run(["cc", *flags, SOURCE, "-o", library], check=True)

    def play(what: str | Path, *options: object, least: int = MARKED) -> list[Call]:
        name = f"trace:{what}" if isinstance(what, Path) else what
        with log.open("wb") as file:
            file.truncate(LOG_BYTES)
        programs.result(name, *options, LD_PRELOAD=str(library), WITNESS=str(log))
        data = log.read_bytes()
        count = struct.unpack_from("<Q", data)[0]
        assert count < (LOG_BYTES - 40) // 40, "the log is too short"
        calls = [
            Call(WORD[kind], thread, *rest)
            for kind, thread, *rest in struct.iter_unpack("<IIQQQQ", data[40 : 40 + 40 * count])
        ]
        return marked(calls, least)

    return play


def marked(calls: Sequence[Call], least: int) -> list[Call]:
    """The calls about blocks of `least` bytes or more, each free with its block's size."""
    sizes: dict[int, int] = {}
    kept = []
    for call in calls:
        known = sizes.pop(call.old or call.address, 0)
        if KINDS[call.kind] <= KINDS["realloc"] and call.size >= least:
            sizes[call.address] = call.size
            kept.append(call)
        elif known:
            kept.append(Call(call.kind, call.thread, known, call.align, call.address, 0))
    return kept
