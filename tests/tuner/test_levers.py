"""Every lever of every allocator moves a figure in a process that runs, and is given back."""

from __future__ import annotations

import os

import pytest

from hztune import api
from hztune.attach import channel
from hztune.attach.channel import Process
from hztune.errors import HztuneError, UsageError

TOKEN = f"{7:032x}"
AGENTS_OWN = {"google_tcmalloc": {"GLIBC_TUNABLES": "glibc.pthread.rseq=0"}}

# For each line, the ms to rest in it: fills and frees memory, and tells how much is resident (KiB),
# how many blocks of 1 MiB are mapped one by one (of one), and how many threads there are.
LOAD = r"""
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
enum { COUNT = 8000, BYTES = 4000, LARGE = 1 << 20, THREADS = 4 };
int mallctl(const char *, void *, size_t *, void *, size_t) __attribute__((weak));
static void *fill(void *unused) {
    static __thread void *blocks[COUNT];
    for (int i = 0; i < COUNT; i++) memset(blocks[i] = malloc(BYTES), 1, BYTES);
    for (int i = COUNT; i-- > 0;) free(blocks[i]);
    return unused;
}
static long told(const char *name) {
    char line[200];
    long value = 0;
    FILE *status = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, status))
        if (strncmp(line, name, strlen(name)) == 0) value = atol(line + strlen(name));
    fclose(status);
    return value;
}
int main(void) {
    char line[100];
    long own = 0; /* decay of jemalloc's first arena */
    size_t size = sizeof own;
    if (getenv("OWN")) mallctl("arena.0.dirty_decay_ms", NULL, NULL, &own, size);
    puts("ready");
    while (fflush(stdout) == 0 && fgets(line, sizeof line, stdin)) {
        pthread_t threads[THREADS];
        for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, fill, NULL);
        for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
        fill(NULL);
        for (int i = 0; i < COUNT; i++) {
            void *volatile block = malloc(LARGE);
            free(block);
        }
        void *volatile large = malloc(LARGE);
        const size_t mapped = mallinfo2().hblks;
        free(large);
        usleep((useconds_t)atol(line) * 1000);
        if (mallctl) mallctl("arena.0.dirty_decay_ms", &own, &size, NULL, 0);
        printf("%ld %zu %ld %ld\n", told("RssAnon:"), mapped, told("Threads:"), own);
    }
    return 0;
}
"""
LEVERS = [  # allocator, lever, two values of which the first gives the larger figure; set before
    ("jemalloc", "dirty_decay_ms", ("-1", "0"), "resident", {}),
    ("jemalloc", "muzzy_decay_ms", ("-1", "0"), "resident",
     {"background_thread": "true", "dirty_decay_ms": "50"}),
    ("jemalloc", "background_thread", ("true", "false"), "threads", {}),
    ("jemalloc", "max_background_threads", ("4", "1"), "threads", {"background_thread": "true"}),
    ("mimalloc", "purge_delay", ("60000", "0"), "resident", {}),
    ("mimalloc", "arena_purge_mult", ("1000", "0"), "resident", {"purge_delay": "1"}),
    ("mimalloc", "purge_decommits", ("0", "1"), "resident", {"purge_delay": "0"}),
    ("tcmalloc", "max_total_thread_cache_bytes", ("1073741824", "524288"), "cached", {}),
    ("tcmalloc", "aggressive_decommit", ("false", "true"), "resident", {}),
    ("tcmalloc", "release_rate_percent", ("0", "1000"), "resident", {}),
    ("google_tcmalloc", "background_release_rate", ("0", "1099511627776"), "resident", {}),
    ("glibc", "trim_threshold", ("1000000000", "0"), "resident", {}),
    ("glibc", "top_pad", ("100000000", "0"), "resident", {}),
    ("glibc", "mmap_threshold", ("4096", "10000000"), "mapped", {}),
]  # fmt: skip
RESTS_MS = {"muzzy_decay_ms": 1000, "background_release_rate": 2500}


@pytest.fixture
def start(started, compiled, core_build):
    """Starts the load under an allocator, with the agent."""
    program, agent = compiled("load", LOAD, "-O1", "-pthread"), core_build / "libhz-agent.so"

    def run(name, **variables):
        state = api.allocators()[name]
        if isinstance(state, HztuneError):
            pytest.skip(str(state))
        preload = f"{state.path}:{agent}" if state.preload else str(agent)
        own = {**os.environ, "LD_PRELOAD": preload, **AGENTS_OWN.get(name, {}), **variables}
        return started([program], **own)

    return run


def figures_of(program, lever):
    program.stdin.write(f"{RESTS_MS.get(lever, 50)}\n")
    program.stdin.flush()
    names = ("resident", "mapped", "threads", "own")
    found = dict(zip(names, map(int, program.stdout.readline().split()), strict=True))
    return {**found, "cached": api.process_statistics(program.pid).parts[0].cached_bytes}


@pytest.mark.parametrize(("name", "lever", "values", "figure", "first"), LEVERS)
def test_a_lever_moves_a_figure(name, lever, values, figure, first, start):
    found = []
    for value in values:
        program = start(name)
        if lever not in api.process_statistics(program.pid).parts[0].levers:
            pytest.skip(f"this version of {name} has no {lever}")
        changed = api.change_process(program.pid, {**first, lever: value})
        assert str(changed.after[lever]) == value
        found.append(figures_of(program, lever)[figure])
    assert found[0] > 1.5 * found[1]


@pytest.mark.parametrize("name", ["jemalloc", "mimalloc", "tcmalloc", "google_tcmalloc"])
def test_a_lease_gives_every_lever_back(name, start):
    process = Process.of(start(name).pid)
    assert api.trim_process(process.pid).allocators[0] == name
    before = api.process_statistics(process.pid).parts[0].levers
    given = {lever: values for each, lever, values, *_ in LEVERS if each == name}
    settings = {lever: given[lever][1] for lever in before}
    governed = channel.govern(process, TOKEN, 60, settings)
    assert {lever: str(value) for lever, value in governed.values.items()} == settings
    assert (governed.taken, governed.began) == ((), True)
    assert channel.govern(process, TOKEN, 0, {}).values == before
    assert api.process_statistics(process.pid).parts[0].levers == before


def test_an_arena_keeps_its_own_value_also_where_a_lease_gives_the_others_the_same(start):
    process = Process.of((program := start("jemalloc", OWN="")).pid)
    for seconds, value in ((60, "0"), (60, "5"), (0, "5")):
        channel.govern(process, TOKEN, seconds, {"dirty_decay_ms": value})
    assert figures_of(program, "")["own"] == 0


def test_glibc_gets_back_what_it_was_started_with_or_its_defaults(start):
    adapting = dict.fromkeys(("trim_threshold", "top_pad", "mmap_threshold"), "auto")
    process = Process.of((program := start("glibc")).pid)
    assert channel.govern(process, TOKEN, 60, adapting).values == adapting
    assert figures_of(program, "")["mapped"] == 0  # its threshold has grown
    for variables, before, after in (
        ({}, adapting, {"trim_threshold": 131072, "top_pad": 131072}),
        ({"MALLOC_TRIM_THRESHOLD_": "-1"},
         {"trim_threshold": -1, "top_pad": 131072, "mmap_threshold": 131072},
         {"trim_threshold": -1, "top_pad": 131072}),
        ({"MALLOC_TOP_PAD_": "4096"}, {**dict.fromkeys(adapting, 131072), "top_pad": 4096},
         {"trim_threshold": 131072, "top_pad": 4096}),
        ({"GLIBC_TUNABLES": "glibc.malloc.top_pad=0x1000:glibc.malloc.trim_threshold=8192"},
         {"trim_threshold": 8192, "top_pad": 4096, "mmap_threshold": 131072},
         {"trim_threshold": 8192, "top_pad": 4096}),
    ):  # fmt: skip
        process = Process.of(start("glibc", **variables).pid)
        assert api.process_statistics(process.pid).parts[0].levers == before
        settings = {"trim_threshold": "1", "top_pad": "2"}
        channel.govern(process, TOKEN, 60, settings)
        assert channel.govern(process, TOKEN, 0, {}).values == after


def test_a_wrong_change_is_refused_and_names_the_process_and_what_is_legal(start):
    pid = start("jemalloc").pid
    before = api.process_statistics(pid).parts[0].levers
    for wrong, said in (
        ({"decay_ms": "0"}, "decay_ms cannot change in this process; legal are dirty_decay_ms, "),
        ({"muzzy_decay_ms": "-2"}, "legal is a whole number from -1 to 18446744072000"),
        ({"background_thread": "1"}, "legal is true or false"),
        ({"max_background_threads": "4000"}, "jemalloc refuses max_background_threads=4000"),
    ):
        with pytest.raises(UsageError, match=rf"process {pid} \(.+\) refuses: .*{said}"):
            api.change_process(pid, {"dirty_decay_ms": "0", **wrong})
    assert api.process_statistics(pid).parts[0].levers == before
