"""Every parameter is alive: moving it moves what it is there for.

Each row of the table has a claim: a script of allocations (see liveness.c), a quantity that hz
counts or asks of the system, and what that quantity is under some values of the parameter. The
scripts are deterministic, and hz is given a clock that only they move, so the figures are exact on
any machine. That each claim watches the code that uses its parameter, and not something beside it,
is shown by experiments/liveness/mutate.py, which cuts that code out.
"""

from __future__ import annotations

import ast
import json
import os
import re
import sys

import pytest
from tests.conftest import ROOT, finished

from .conftest import variables_of

# Of each claim: the parameter and what it does; the script, the quantity in names that the program
# prints, and the settings beside; what the quantity is under which value. A parameter that acts at
# a second place, in a way of its own, has a second claim.
#
# The quarantine keeps a multiple of four; without the 5 to 8 in a magazine of 8, whose number
# depends on the lengths of the refills before, as the last one from a span is shorter.
CLAIMS = """
magazine_cap bounds the blocks that a thread keeps of a small class
take 2048 16 give 2048 | refill_blocks - flush_blocks | MAGAZINE_GROWTH=full
{64: 64, 256: 256, 1024: 1024}

magazine_bytes bounds the bytes that a thread keeps of a class
take 2048 16 give 2048 | 16 * (refill_blocks - flush_blocks) | WIDE
{4096: 4096, 8192: 8192, 16384: 16384}

thread_cache_bytes bounds what all the magazines of a thread may grow to
take 2048 64 give 2048 take 2048 128 give 2048 | grown_bytes | WORTH_IT MAGAZINE_BYTES=65536 \
    THREAD_CACHE_SHARE=1000
{65536: 61440, 67108864: 131072}

thread_cache_bytes sets how many rings 64 large blocks of another shard fill
take 64 32768 thread take 1 16 give 65 | ring_full | SHARDS=2 MAGAZINE_BYTES=65536
{65536: 32, 131072: 16, 67108864: 8}

thread_cache_share bounds what they may grow to by a share of all small blocks, at least of 2 MiB
take 2048 64 give 2048 | grown_bytes | WORTH_IT
{1: 20480, 50: 65536}

magazine_growth sets the steps in which a magazine grows from nothing to 256 blocks
take 2048 16 give 2048 | magazines_grown |
{'full': 1, 'double': 6, 'batch': 4}

growth_rent sets what a magazine grows to that runs empty or full every millisecond
pace 1000 take 2048 16 give 2048 | grown_bytes | MAGAZINE_CAP=1024
{1: 2048, 4: 8192, 65536: 16384}

refill_batch sets how often 1024 blocks must be asked for
take 1024 16 | refills | WIDE
{4: 256, 32: 32, 256: 5}

refill_batch sets how many blocks the background thread puts into an empty depot
take 1 64 await background_blocks 1 | background_blocks | BACKGROUND_PERIOD_US=64
{4: 4, 64: 64, 256: 256}

refill_batch sets the step of a magazine that grows by batches, up to 256 blocks
take 2048 16 give 2048 | magazines_grown | MAGAZINE_GROWTH=batch
{16: 16, 64: 4, 128: 2}

flush_batch sets how many blocks a full magazine gives back at once
take 2048 16 give 2048 | flush_blocks // flushes | WIDE
{4: 4, 32: 32, 256: 256}

flush_batch sets how many blocks the 64 slots of a locked depot keep
take 16384 16 give 16384 | (flushes - depot_overflows) * (flush_blocks // flushes) |
{4: 256, 32: 2048, 128: 8192}

flush_batch sets how many blocks the 64 slots of a lock-free depot keep
take 16384 16 give 16384 | (flushes - depot_overflows) * (flush_blocks // flushes) | \
    DEPOT_LOCK=lockfree
{4: 256, 32: 2048, 128: 8192}

defer_free sets how many queues of frees 1024 of them fill
take 1024 16 give 1024 | defer_batches |
{0: 0, 64: 16, 1024: 1}

double_free decides whether a free that follows a free looks for it
twice 16 | caught |
{'at_reuse': 'at the next allocations', 'at_call': 'at the call'}

hardening decides where a second free and a write behind a block are noticed
twice 16 overrun 100 | [overrun_caught, caught] |
{'off': ['nowhere', 'at the next allocations'], 'light': ['nowhere', 'at the call'], \
 'full': ['at the call', 'at the call']}

quarantine_blocks sets how many freed blocks wait under hardening=full
take 16384 16 give 16384 | (refill_blocks - flush_blocks - 5) // 4 * 4 | HARDENING=full \
    MAGAZINE_CAP=8 REFILL_BATCH=4 FLUSH_BATCH=4
{8: 8, 16: 16, 64: 64}

remote_ring_size sets how many rings 2048 blocks of another shard fill
take 2048 16 thread take 1 16 give 2049 | ring_full | SHARDS=2
{64: 32, 512: 4, 2048: 1}

remote_ring_size sets in how many parts an inbox of 4096 blocks is emptied
take 4096 8 thread take 1 8 give 4097 thread take 4096 8|inbox_drains|SHARDS=2 REMOTE_GROUPING=shard
{64: 64, 512: 8, 2048: 2}

remote_grouping sets how many groups 396 blocks of two classes and two shards are handed over in
take 99 8 take 99 64 thread take 99 8 take 99 64 thread take 1 8 give 397 | handed_groups | SHARDS=4
{'none': 396, 'shard': 2, 'shard_class': 4}

remote_grouping decides whether blocks wait in an inbox until a thread of their shard needs some
take 4096 16 thread take 1 16 give 4097 thread take 4096 16 | inbox_drains | SHARDS=2
{'shard_class': 0, 'shard': 4}

shards sets how many of 4096 blocks of four threads are another shard's
take 1024 16 thread take 1024 16 thread take 1024 16 thread take 1024 16 give 4096 | handed_blocks |
{1: 0, 2: 2048, 4: 3072}

depot_slots sets how many batches a depot keeps
take 16384 16 give 16384 | flushes - depot_overflows | FLUSH_BATCH=32
{1: 1, 64: 64, 256: 256}

depot_lock decides what a thread does that finds a depot's lock taken
take 2048 16 give 1024 meet 16 give 1024 | met |
{'mutex': 'sleeps', 'spin': 'yields', 'lockfree': 'passes'}

depot_lock decides how a thread gets blocks from a depot whose lock is taken
take 2048 16 give 2048 meet 16 take 256 16 | met if depot_hits > 0 else 'gets none' |
{'mutex': 'sleeps', 'spin': 'yields', 'lockfree': 'passes'}

background_period_us sets how long the background thread sleeps that fills an empty depot
take 1 64 await background_blocks 1 | sleep_us |
{64: 64, 1024: 1024}

background_period_us sets how long it sleeps while it returns what a program left
take 4096 1024 give 4096 await decayed_blocks 1 await purges 1 | sleep_us |
{64: 64, 1024: 1024}

span_bytes sets how many spans 4000 blocks of 64 bytes need
take 4000 64 | spans_made |
{65536: 4, 131072: 2, 2097152: 1}

span_cache sets how many of the empty spans of a class are kept
take 16384 64 give 16384 | spans_kept | DEPOT_SLOTS=1
{0: 0, 4: 4, 8: 8}

decay_ms sets how long freed pages stay resident
take 1 1000000 give 1 until purges 1 | passed_ms |
{0: 0, 10: 10, 200: 200}

decay_ms sets from one look at the depots to the next, of which the second finds them unasked
take 4096 1024 give 4096 until decayed_blocks 1 | passed_ms |
{10: 20, 200: 400}

rest_ms sets how long the background thread sleeps from one look at the program to the next
take 1 16 rest | watch_ms |
{10: 10, 500: 500}

max_dirty_bytes bounds the freed pages that stay resident
take 16 1048576 give 16 | unused_bytes |
{0: 0, 4194304: 4194304, 67108864: 16777216}

thp decides whether huge pages are asked for or declined, for all that is made usable
take 1 16 | [huge_bytes == committed_bytes, small_bytes == committed_bytes] |
{'off': [False, False], 'on': [True, False], 'never': [False, True]}

thp asks, if adaptive, for what short blocks fill, and declines the rest
take 16384 1024 take 999 65536 | [huge_bytes // 2e6, small_bytes > 6e7] |
{'off': [0, False], 'on': [58, False], 'adaptive': [7, True]}

prefault decides whether the pages of every new span are populated at once
take 4000 64 | populated_bytes |
{'off': 0, 'on': 262144}
"""


def read(text):
    """What an entry of CLAIMS says, in its order."""
    sentence, how, moves = text.splitlines()
    script, quantity, beside = how.split("|")
    row = sentence.split()[0]
    return row, script, quantity.strip(), variables_of(beside), ast.literal_eval(moves)


BY_SENTENCE = {text.split("\n")[0]: read(text) for text in CLAIMS.strip().split("\n\n")}


ROW = r"^HZ_(?:EXPERIMENT_|LIVE_)?(?:INT|ENUM)\s*\(\s*(\w+),"
ROWS = re.findall(ROW, (ROOT / "core/include/hz/params.def").read_text(), re.MULTILINE)
"""The names of the table's rows."""


@pytest.fixture(scope="module")
def look(as_it_stands, plain_environment):
    """Runs a script; gives what was counted and seen, and the names of the parameters."""
    program = as_it_stands("liveness") / "tests" / "liveness"

    def run(script, **variables):
        own = {**plain_environment, "HZ_STRICT": "1", **variables}
        done = finished([program, *script.split()], env=own)
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
        return {**said["hz"]["counters"], **said["seen"]}, list(said["hz"]["config"])

    return run


@pytest.mark.parametrize(
    ("row", "script", "quantity", "beside", "moves"), BY_SENTENCE.values(), ids=BY_SENTENCE.keys()
)
def test_the_parameter(row, script, quantity, beside, moves, look):
    found = {
        value: eval(quantity, look(script, **beside, **{f"HZ_{row.upper()}": str(value)})[0])
        for value in moves
    }
    assert found == moves


def test_a_magazine_whose_whole_cap_does_not_fit_grows_as_far_as_doubling_goes(look):
    beside = variables_of("WORTH_IT MAGAZINE_GROWTH=full THREAD_CACHE_SHARE=1")
    assert look("take 2048 64 give 2048", **beside)[0]["grown_bytes"] == 16 * 1024


def test_every_parameter_has_a_claim_whose_values_differ_in_what_they_move(look):
    assert look("take 1 16")[1] == ROWS
    assert {row for row, *_ in BY_SENTENCE.values()} == set(ROWS)
    for sentence, (*_, moves) in BY_SENTENCE.items():
        assert len(set(map(str, moves.values()))) == len(moves) > 1, sentence


@pytest.mark.slow
def test_no_claim_survives_the_loss_of_the_code_that_uses_its_parameter():
    """Of one parameter, and of all of them in the soak."""
    some = [] if os.environ.get("TEST_MORE", "1") != "1" else ROWS[:1]
    done = finished([sys.executable, ROOT / "experiments/liveness/mutate.py", *some], 3600)
    assert done.returncode == 0, done.stdout + done.stderr
