"""The parts without locks hold in every order of accesses that the search tries.

hz's own sources run under Relacy (see model.h). Each case is searched twice: exhaustively with a
bound on the preemptions, where a load may also see the value before the newest; and by random runs
with a fixed seed, without a bound, where it may see one more. Then one order of memory is made
weaker at a time, and the search must find that.

HZ_MODEL_MORE=1 raises the bounds (tests/soak): by one preemption, and forty times as many runs;
TEST_SEED is the number of the first of them.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.conftest import ROOT, built, finished

MORE = os.environ.get("HZ_MODEL_MORE") == "1"
RUNS = 200_000 if MORE else 5_000
FIRST = os.environ.get("TEST_SEED", "1")
DEADLINE_S = 7200 if MORE else 120


@pytest.fixture(scope="session")
def model():
    """The program that searches the cases."""
    return built(ROOT / "tests/model", {}) / "model"


# The sentence of each case, its name, and the bound on preemptions up to which the search is
# exhaustive.
CASES = {
    "a block handed over singly has one owner": ("remote_none", 2),
    "a block handed over to an inbox has one owner": ("remote_shard", 2),
    "a block handed over by shard and class has one owner": ("remote_shard_class", 2),
    "a block handed over to an inbox above a spinning depot has one owner": ("remote_spin", 2),
    "a block handed over to a depot without locks has one owner": ("remote_lockfree", 2),
    "two threads hand over to a third at once": ("remote_from_two", 1),
    "two threads use a depot under a lock": ("depot_mutex", 2),
    "two threads use a depot under a spinning lock": ("depot_spin", 2),
    "two threads use a depot without locks": ("depot_lockfree", 2),
    "three threads use a depot without locks": ("depot_lockfree_three", 1),
    "a batch that is on top again is told from one that stayed": ("depot_returned", 1),
    "two threads make a depot without locks at once": ("depot_first_lockfree", 2),
    "two threads make a depot under a lock at once": ("depot_first_mutex", 2),
    "a depot without locks decays beside a thread that uses it": ("depot_decay_lockfree", 2),
    "a depot under a lock decays beside a thread that uses it": ("depot_decay_mutex", 2),
    "two threads use a span that is kept": ("span", 2),
    "three threads use a span that dies": ("span_three", 1),
    "a block is freed while the next one is cut": ("cut_beside_free", 2),
    "a free that sees a page's new step sees its new origin": ("page_new_step", 3),
    "a thread ends while another frees its block": ("exit_beside_free", 2),
    "a thread ends while one of another shard frees its block": ("exit_beside_free_shards", 2),
    "a thread ends while another trims": ("exit_beside_cooling", 2),
    "a heap is born while another thread walks the list": ("birth", 2),
    "two threads start hz at once": ("cold_start", 1),
    "a child of a fork beside a thread in a locked depot can allocate": ("fork_mutex", 1),
    "a child of a fork beside one in a depot without locks can, too": ("fork_lockfree", 1),
    "three threads sleep and wake on a lock": ("lock", 2),
    "two threads spin on a lock": ("spinlock", 2),
    "two threads use the page heap while one returns memory": ("large", 1),
}

# What the model finds in hz as it is, and why it stays: the search of these must fail.
KNOWN = {
    # hz_entry_set writes two words. A free of a live block asks the page of that block, which is
    # not cut anew. A free of what is no live block may ask one that is: it then works with a
    # distance that is as good as random, and passes for one of the old class with a probability of
    # 2^-17.
    "a free that sees a page's old step may see its new origin": "page_old_step",
    # hz_malloc reads two limits of hz_map as plain words, so that each is one instruction. A second
    # thread finds hz started: its creation allocates, and so does the loader before it. One that
    # did not would still be served, as every mix of old and new limits leads to a class.
    "a malloc before the library's constructor reads limits that a start writes": "cold_malloc",
}


def search_bounded(model, case, bound):
    return finished([model, case, "--search", "bound", "--bound", bound], DEADLINE_S)


def test_every_case_is_searched(model):
    listed = finished([model, "--list"]).stdout.split()
    assert sorted(listed) == sorted([*(case for case, _ in CASES.values()), *KNOWN.values()])


@pytest.mark.slow
@pytest.mark.parametrize(("case", "bound"), CASES.values(), ids=CASES.keys())
def test_in_every_order_within_the_bound(case, bound, model):
    done = search_bounded(model, case, bound + MORE)
    assert done.returncode == 0, done.stdout[-6000:]


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case, _ in CASES.values()], ids=CASES.keys())
def test_in_random_orders(case, model):
    words = (case, "--search", "random", "--first", FIRST, "--runs", RUNS)
    done = finished([model, *words], DEADLINE_S)
    assert done.returncode == 0, done.stdout[-6000:]


@pytest.mark.slow
@pytest.mark.parametrize("case", KNOWN.values(), ids=KNOWN.keys())
def test_what_is_known_is_found(case, model):
    assert search_bounded(model, case, 2).returncode == 1


# --- the search finds what it is to find ----------------------------------------------------------


ACQ_REL = "(value), memory_order_acq_rel,   "
SWAP = "atomic_exchange_explicit((object), (value), memory_order_acq_rel)"
ORIGIN = "    hz_atomic_poke(&entry->origin, -((uintptr_t)last * step));"
STEP = "    hz_atomic_put(&entry->step, step);"

PUT = ("atomic.h", "(value), memory_order_release)", "(value), memory_order_relaxed)")
GET = ("atomic.h", "(object), memory_order_acquire)", "(object), memory_order_relaxed)")
RELEASED = ("atomic.h", SWAP, SWAP.replace("acq_rel", "relaxed"))
NO_RELEASE = ("atomic.h", ACQ_REL, "(value), memory_order_acquire,   ")
NO_ACQUIRE = ("atomic.h", ACQ_REL, "(value), memory_order_release,   ")
NEITHER = (
    "atomic.h",
    ACQ_REL + "\\\n" + " " * 44 + "memory_order_acquire)",
    "(value), memory_order_release, memory_order_relaxed)",
)
NO_FENCE = ("atomic.h", "    atomic_thread_fence(memory_order_acquire);\n", "")
NO_GENERATION = ("depot.c", "((head >> 32) + 1) << 32", "(head >> 32) << 32")
NO_ORDER = ("block.h", f"{ORIGIN}\n{STEP}", f"{STEP}\n{ORIGIN}")
NO_LOOK = ("lock.h", "& HZ_LOCK_SLEEPERS) != 0", "& HZ_LOCK_SLEEPERS) > 1")

# What is made weaker (a file, a text in it, and a weaker one) in which source, and the case whose
# search must fail.
WEAKENINGS = {
    "a heap enters the list without a release": (PUT, "heap.c", "birth"),
    "the list of heaps is read without an acquire": (GET, "heap.c", "birth"),
    "hz is called ready without a release": (PUT, "start.c", "cold_start"),
    "whether hz is ready is read without an acquire": (GET, "start.c", "cold_start"),
    "a depot's batches are asked for without an acquire": (GET, "depot.c", "depot_first_lockfree"),
    "a batch is pushed without a release": (NO_RELEASE, "depot.c", "depot_lockfree"),
    "a batch is popped without an acquire": (NEITHER, "depot.c", "depot_lockfree"),
    "the head of a stack has no generation": (NO_GENERATION, "depot.c", "depot_returned"),
    "a page's step is written before its origin": (NO_ORDER, "cases.c", "page_new_step"),
    "a page's step is written without a release": (PUT, "cases.c", "page_new_step"),
    "a page's origin is read without a fence": (NO_FENCE, "cases.c", "page_new_step"),
    "an inbox is unlocked without a release": (RELEASED, "remote.c", "remote_shard"),
    "an inbox is locked without an acquire": (NO_ACQUIRE, "remote.c", "remote_shard"),
    "the lists of heaps are unlocked without a release": (RELEASED, "heap.c", "exit_beside_free"),
    "a bin is unlocked without a release": (RELEASED, "span.c", "span"),
    "a sleeper takes its lock without an acquire": (NO_ACQUIRE, "lock.c", "lock"),
    "a lock is released without a look for sleepers": (NO_LOOK, "cases.c", "lock"),
    "the page heap is unlocked without a release": (RELEASED, "pages.c", "large"),
}


def weakened(model, folder, weakening, source):
    """A model of which a source was compiled with one text of one file replaced."""
    copy, (file, text, weaker) = folder / "src", weakening
    shutil.copytree(ROOT / "core/src", copy)
    whole = (copy / file).read_text()
    assert text in whole, f"{file} does not hold {text!r}"
    (copy / file).write_text(whole.replace(text, weaker))
    linked = []
    for entry in json.loads((model.parent / "compile_commands.json").read_text()):
        words, path = shlex.split(entry["command"]), Path(entry["file"])
        made = words.index("-o") + 1
        if path.name == source:  # by the same command, which finds the copy of the sources first
            words[made] = str(folder / "weak.o")
            words[words.index("-c") + 1] = str(copy / source if (copy / source).exists() else path)
            subprocess.run([words[0], f"-I{copy}", *words[1:]], cwd=entry["directory"], check=True)
        linked.append(Path(entry["directory"]) / words[made])
    linked.sort(key=lambda each: "engine" not in each.name)  # its hz_os_* come first
    program = folder / "model"
    subprocess.run(["g++", "-no-pie", "-Wl,-z,muldefs", *linked, "-o", program], check=True)
    return program


@pytest.mark.slow
@pytest.mark.parametrize(
    ("weakening", "source", "case"), WEAKENINGS.values(), ids=WEAKENINGS.keys()
)
def test_the_search_finds_that(weakening, source, case, model, tmp_path):
    bounded = search_bounded(weakened(model, tmp_path, weakening, source), case, 2)
    assert bounded.returncode == 1, bounded.stdout[-1000:] + bounded.stderr[-1000:]
    assert any(word in bounded.stdout for word in ("DATA RACE", "ASSERT", "DEADLOCK", "LIVELOCK"))
