"""A process that is killed at any moment loses nothing that it has said is kept.

TEST_SEED chooses other moments, and TEST_MORE=N N times as many writers (tests/soak sets both).
"""

from __future__ import annotations

import json
import os
import signal
import traceback
from functools import cache
from random import Random

import pytest
from lab.replay import ReplayExecutor

from hztune.blocks import Arm
from hztune.errors import UsageError
from hztune.store.log import LocalStudy, recording

from .conftest import MACHINE, flat, tell

SEED = int(os.environ.get("TEST_SEED", "0"))
MORE = int(os.environ.get("TEST_MORE", "1"))
CANDIDATE = Arm.of("hz", {"lock": "spin"})
# ---- a child that is killed ----------------------------------------------------------------------


def killed(work, after):
    """Lets a forked process work, and kills it once it has told so often, wherever it then is.

    Gives the last that it told. One that ends before is not killed.
    """
    reading, writing = os.pipe()
    pid, last = os.fork(), 0
    if pid == 0:  # it must never come back into the tests
        try:
            work(lambda number: os.write(writing, b"%d\n" % number) and None)
        except BaseException:
            traceback.print_exc()
        os._exit(0)
    os.close(writing)
    try:
        with os.fdopen(reading, "rb") as file:
            for number, line in enumerate(file, start=1):
                last = int(line) if line.endswith(b"\n") else last
                if number == after:
                    os.kill(pid, signal.SIGKILL)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return last


# ---- samples -------------------------------------------------------------------------------------


class Telling:
    """A sink that tells how many records are kept after each one.

    To count them anew for each takes longer than all the rest.
    """

    def __init__(self, store, tell):
        self.store, self.tell, self.count = store, tell, len(records(store.folder))

    def __getattr__(self, name):
        def put(*what):
            getattr(self.store, name)(*what)
            self.count += name != "end"
            self.tell(self.count)

        return put


def records(folder):
    """Every sample that is kept, in order."""
    try:
        return [json.loads(line) for line in recording(folder).lines]
    except UsageError:  # it was killed before there was a study
        return []


@cache
def block(number):
    """The same block for the same number; it cannot be changed."""
    executor = ReplayExecutor(flat, seed=1)
    return executor.measure([Arm("hz"), CANDIDATE], role="search", rounds=3, number=number)


def kill_writers(folder, seed, kills):
    """Kills one writer after the other, each of which goes on where the last one ended."""

    def write(tell_count):
        with LocalStudy(folder, {}, MACHINE, resume=True) as store:
            sink = Telling(store, tell_count)
            for pair in range(len(store.replay()), 1_000_000):
                tell(sink, block(pair))

    rng = Random(seed)
    before = []
    for _ in range(kills):
        told = killed(write, after=rng.randrange(1, 60))
        with LocalStudy(folder, {}, MACHINE, resume=True) as store:
            kept = store.replay()
        found = records(folder)
        assert len(found) >= told > len(before)
        assert found[: len(before)] == before
        assert [row["seq"] for row in found] == list(range(len(found)))
        assert kept == tuple(block(pair) for pair in range(len(kept)))
        before = found


@pytest.mark.parametrize("seed", range(SEED, SEED + 4 * MORE))
def test_of_sixty_killed_writers_none_loses_a_record(tmp_path, seed):
    kill_writers(tmp_path, seed, kills=15)
