/*
 * What goes back to the system: by age, whatever else is in use; and never much in one call. That
 * no lock is held meanwhile is shown by test_builds.py. hz is given a clock that only the checks
 * move, and its madvise is watched.
 */
#include "check.h"
#include "fake_os.h"

#include <hz/hz.h>

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "internal.h"

enum {
    MIB = 1 << 20,
    BURST = 200, /* blocks of 1 MiB */
    LIGHT_BYTES = 300000,
    LIGHT_PAGES = 5,    /* of each of those */
    LIGHT_MOST = 64,    /* how many of them the light load has at once */
    SPAN_BLOCKS = 3000, /* of those below: they fill many spans */
    SPAN_BYTES = 20000,
    DELAY_MS = 100,
    SECOND_MS = 1000,
    REFUSALS_MOST = 16, /* as in purge.c */
    VAIN_MOST = 4,      /* as in rest.c */
    LOCKED_MIB = 8,
};

/* ---- between hz and the system -------------------------------------------------------------- */

_Atomic uint64_t os_ms = 1000;

static size_t returned_bytes, largest_bytes, return_count;
static size_t in_this_call, most_in_a_call; /* bytes that this call has returned, and one at most */
static void (*meanwhile)(void); /* what happens while memory goes back */
static bool refuses;            /* whether the system takes none back */
static uintptr_t locked, unlocked; /* it takes none between the two */

long os_call(long number, const long words[HZ_OS_CALL_WORDS])
{
    const size_t bytes = (size_t)words[1];
    if (number == SYS_madvise && words[2] == MADV_DONTNEED) {
        returned_bytes += bytes;
        in_this_call += bytes;
        return_count++;
        if (bytes > largest_bytes) largest_bytes = bytes;
        if (in_this_call > most_in_a_call) most_in_a_call = in_this_call;
        if (meanwhile != NULL) meanwhile();
        if (refuses || ((uintptr_t)words[0] < unlocked && (uintptr_t)words[0] + bytes > locked))
            return -EINVAL;
    }
    return os_call_behind(number, words);
}

/* ---- what a program does -------------------------------------------------------------------- */

static void *take(size_t size)
{
    in_this_call = 0;
    void *block = hz_malloc(size);
    require(block != NULL, "no block of %zu bytes", size);
    return block;
}

static void give(void *block)
{
    in_this_call = 0;
    hz_free(block);
}

static void *resize(void *block, size_t size)
{
    in_this_call = 0;
    void *resized = hz_realloc(block, size);
    require(resized != NULL, "no block of %zu bytes", size);
    return resized;
}

static void take_all(void **blocks, size_t count, size_t size)
{
    for (size_t i = 0; i < count; i++) blocks[i] = take(size);
}

static void give_all(void **blocks, size_t count)
{
    for (size_t i = 0; i < count; i++) give(blocks[i]);
}

static void burst(void)
{
    static void *blocks[BURST];
    take_all(blocks, BURST, MIB);
    give_all(blocks, BURST);
}

static void load(size_t blocks, uint64_t every_ms, size_t rounds)
{
    void *light[LIGHT_MOST];
    for (size_t round = 0; round < rounds; round++, os_ms += every_ms) {
        take_all(light, blocks, LIGHT_BYTES);
        give_all(light, blocks);
    }
}

static size_t dirty_bytes(void)
{
    return hz_usage_now().free_bytes;
}

/* ---- by age --------------------------------------------------------------------------------- */

/* After a burst: the burst goes back in time, and what the load uses never does. */
static void require_decay_beside(size_t blocks, uint64_t every_ms, uint64_t within_ms)
{
    const size_t used = blocks * LIGHT_PAGES * HZ_PAGE_BYTES;
    burst();
    require(dirty_bytes() >= (size_t)BURST * MIB, "only %zu bytes are free", dirty_bytes());
    load(blocks, every_ms, (DELAY_MS + within_ms) / every_ms + 1);
    require(dirty_bytes() <= used + used / 4, "%zu bytes stay, %zu are used", dirty_bytes(), used);
    const size_t settled = returned_bytes;
    load(blocks, every_ms, 4 * DELAY_MS / every_ms);
    require(returned_bytes == settled, "%zu bytes in use go back", returned_bytes - settled);
}

CHECK("a burst goes back while 64 blocks are used again and again")
{
    require_decay_beside(LIGHT_MOST, 20, SECOND_MS);
}

CHECK("a burst goes back while one block is used again and again")
{
    require_decay_beside(1, 50, BURST * 50 + SECOND_MS);
}

/* Three neighbours are freed at different times, and are one run then. */
CHECK("pages that are joined keep their ages")
{
    void *three[3];
    take_all(three, 3, MIB);
    for (int i = 0; i < 3; i++, os_ms += 30) give(three[(i + 1) % 3]);
    require(dirty_bytes() == 3 * MIB, "at 90 ms %zu bytes stay", dirty_bytes());
    for (size_t stay = 2; stay > 0; stay--) {
        for (uint64_t passed = 0; passed < 30; passed++, os_ms++) let_decay();
        require(dirty_bytes() == stay * MIB, "of %zu MiB %zu bytes stay", stay, dirty_bytes());
    }
}

CHECK("nothing goes back before the delay has passed")
{
    burst();
    os_ms += DELAY_MS - 1;
    let_decay();
    require(returned_bytes == 0, "%zu bytes go back", returned_bytes);
    os_ms += 1;
    let_decay();
    require(dirty_bytes() == 0, "%zu bytes stay", dirty_bytes());
}

CHECK("what rests for weeks goes back at the next look")
{
    burst();
    os_ms += (uint64_t)5 << 31;
    let_decay();
    require(dirty_bytes() == 0, "%zu bytes stay", dirty_bytes());
}

/* ---- never much at once --------------------------------------------------------------------- */

static void require_parts(void)
{
    require(most_in_a_call > 0, "no call returns anything");
    require(most_in_a_call <= MIB, "a call returns %zu bytes", most_in_a_call);
}

CHECK("a free returns a part of what a burst has left")
{
    static void *small[SPAN_BLOCKS];
    take_all(small, SPAN_BLOCKS, SPAN_BYTES);
    burst();
    os_ms += 2 * DELAY_MS;
    give_all(small, SPAN_BLOCKS);
    require_parts();
    require(returned_bytes > 4 * (size_t)MIB, "only %zu bytes go back", returned_bytes);
}

/* Calls that follow each other at once share the work: the slowest of them is the one that does
 * most. */
CHECK("a call returns what is due for the time since the last one")
{
    void *light[LIGHT_MOST];
    burst();
    take_all(light, LIGHT_MOST, LIGHT_BYTES);
    os_ms += 2 * DELAY_MS;
    give_all(light, LIGHT_MOST);
    require(most_in_a_call > 0, "no call returns anything");
    require(most_in_a_call <= MIB / 8, "at once a call returns %zu bytes", most_in_a_call);
    for (uint64_t pause_ms = 2; pause_ms <= 8; pause_ms *= 2) {
        const size_t before = returned_bytes;
        os_ms += pause_ms;
        give(take(LIGHT_BYTES));
        const size_t more = returned_bytes - before;
        require(more == pause_ms * MIB / 8, "after %d ms it is %zu bytes", (int)pause_ms, more);
    }
}

CHECK("of what is too much each call returns a part")
{
    hz_cfg.max_dirty_bytes = 0;
    give(take(100 * (size_t)MIB));
    require_parts();
    for (int i = 0; i < 100; i++) give(take(MIB));
    require_parts();
    require(dirty_bytes() <= MIB, "%zu bytes stay", dirty_bytes());
}

/* All of it would become resident. */
CHECK("zeroes are not written to what is too much")
{
    hz_cfg.max_dirty_bytes = 0;
    give(take(1024 * (size_t)MIB));
    const size_t before = resident_bytes();
    require(hz_calloc(1, 1000 * (size_t)MIB) != NULL, "no zeroes");
    require(resident_bytes() < before + 8 * MIB, "%zu bytes are resident", resident_bytes());
}

CHECK("a block that shrinks returns a part")
{
    hz_cfg.max_dirty_bytes = MIB;
    void *block = resize(take(100 * (size_t)MIB), 2 * MIB);
    require_parts();
    give(resize(resize(block, 50 * (size_t)MIB), 100));
    require_parts();
}

/* One call carries out eight frees, and returns no more for it than for one. */
CHECK("frees that were deferred return a part")
{
    hz_cfg.defer_free = 8;
    burst();
    os_ms += 2 * DELAY_MS;
    for (int i = 0; i < 64; i++, os_ms++) give(take(LIGHT_BYTES));
    require_parts();
}

CHECK("a trim returns everything, in parts")
{
    burst();
    require(hz_trim(), "it returns nothing");
    require(dirty_bytes() == 0, "%zu bytes stay", dirty_bytes());
    require(returned_bytes >= (size_t)BURST * MIB, "only %zu bytes go back", returned_bytes);
    require(largest_bytes <= MIB, "%zu bytes in one piece", largest_bytes);
}

/* Most of it was never touched: a part for each MiB would take the system half a second. */
CHECK("what is huge goes back in few parts")
{
    const size_t huge = (size_t)256 << 30;
    give(take(huge));
    return_count = 0;
    void *block = hz_calloc(1, huge);
    require(block != NULL, "no zeroes");
    require(return_count <= 4096, "zeroes took %zu parts", return_count);
    give(block);
    return_count = 0;
    (void)hz_trim();
    require(dirty_bytes() == 0, "%zu bytes stay", dirty_bytes());
    require(return_count <= 4096, "a trim took %zu parts", return_count);
}

static uint64_t pages_looked_at(void)
{
    return hz_atomic_peek(&hz_heap_mine->counters.of[HZ_STAT_purge_looks]);
}

/* Free pages lie far from each other, as large blocks that were never touched lie between them; the
 * highest are in use. */
CHECK("a call looks at few pages of a large arena")
{
    enum { FREE = 32, CALLS_MOST = 500, LOOKS_MOST = 1 << 15 };
    void *small[FREE];
    for (int i = 0; i < FREE; i++) {
        small[i] = take(LIGHT_BYTES);
        (void)take(512 * (size_t)MIB);
    }
    give_all(small, FREE);
    (void)take(256 * (size_t)1024 * MIB);
    hz_cfg.max_dirty_bytes = 0;
    for (int calls = 0; dirty_bytes() > LIGHT_PAGES * HZ_PAGE_BYTES; calls++) {
        const uint64_t before = pages_looked_at();
        give(take(LIGHT_BYTES));
        const uint64_t looks = pages_looked_at() - before;
        require(looks <= LOOKS_MOST, "a call looks at %llu pages", (unsigned long long)looks);
        require(calls < CALLS_MOST, "%zu bytes stay", dirty_bytes());
    }
}

/* ---- never in vain --------------------------------------------------------------------------- */

static void free_again_and_again(uint64_t ms)
{
    for (uint64_t passed = 0; passed < ms; passed++, os_ms++) give(take(MIB));
}

CHECK("where the system refuses, it is asked ever more seldom")
{
    hz_cfg.max_dirty_bytes = MIB;
    refuses = true;
    burst();
    require(return_count <= REFUSALS_MOST, "it is asked %zu times at once", return_count);
    free_again_and_again(SECOND_MS);
    require(return_count <= 11 * REFUSALS_MOST, "%zu times in a second", return_count);
    free_again_and_again(10 * SECOND_MS);
    require(return_count <= 22 * REFUSALS_MOST, "%zu times in eleven seconds", return_count);
    let_decay(); /* for ever if it does not leave off */
    refuses = false;
    free_again_and_again(2 * SECOND_MS);
    require(dirty_bytes() <= MIB, "%zu bytes stay when it takes them", dirty_bytes());
}

/* Blocks of which some, the highest, are locked, and all are free. */
static void burst_below_locked(void)
{
    static void *blocks[BURST];
    take_all(blocks, BURST, MIB);
    void *highest = take(LOCKED_MIB * MIB);
    locked = (uintptr_t)highest;
    unlocked = locked + LOCKED_MIB * MIB;
    give_all(blocks, BURST);
    give(highest);
}

static void require_only_locked(void)
{
    require(dirty_bytes() == LOCKED_MIB * MIB, "%zu bytes stay", dirty_bytes());
}

CHECK("below locked memory, a program that rests returns the rest of it")
{
    burst_below_locked();
    for (int vain = 0; vain < VAIN_MOST; os_ms += 2 * DELAY_MS)
        for (vain++; hz_decay(); vain = 0) continue;
    require_only_locked();
}

CHECK("beside locked memory, a trim returns the rest of it")
{
    burst_below_locked();
    locked -= 10 * MIB;
    unlocked -= 10 * MIB;
    require(hz_trim(), "nothing is returned");
    require_only_locked();
    require(!hz_trim(), "something is returned");
}

CHECK("beside locked memory, what exceeds max_dirty_bytes is returned")
{
    burst_below_locked();
    hz_cfg.max_dirty_bytes = 2 * LOCKED_MIB * MIB;
    free_again_and_again(SECOND_MS);
    require(dirty_bytes() <= 2 * LOCKED_MIB * MIB, "%zu bytes stay", dirty_bytes());
}

CHECK("where the system refuses, calloc zeroes, and does not take ever more memory")
{
    hz_cfg.max_dirty_bytes = MIB;
    refuses = true;
    burst();
    const size_t before = hz_arena_used_pages();
    for (int i = 0; i < BURST; i++) {
        unsigned char *zeroes = hz_calloc(1, 4 * MIB);
        require(*zeroes == 0 && memcmp(zeroes, zeroes + 1, 4 * MIB - 1) == 0, "it has other bytes");
        give(memset(zeroes, 1, 4 * MIB));
    }
    require(hz_arena_used_pages() == before, "%zu pages more", hz_arena_used_pages() - before);
}

/* ---- beside a fork -------------------------------------------------------------------------- */

static void trim_in_child(void)
{
    require(dirty_bytes() == (size_t)BURST * MIB, "the child has %zu bytes", dirty_bytes());
    require(hz_trim() && dirty_bytes() == 0, "in the child %zu bytes stay", dirty_bytes());
}

static void *fork_and_trim(void *unused)
{
    require_of_child(trim_in_child);
    return unused;
}

static void let_another_thread_fork(void)
{
    meanwhile = NULL;
    (void)thread_end(thread_start(fork_and_trim, NULL));
}

CHECK("a child gets what a thread was just returning")
{
    burst();
    os_ms += 2 * DELAY_MS;
    meanwhile = let_another_thread_fork;
    (void)hz_decay();
    require(meanwhile == NULL, "nothing went back");
}

/* As a signal handler would. */
static void fork_here(void)
{
    meanwhile = NULL;
    const pid_t child = fork();
    if (child == 0) return;
    require_child_ends(child);
}

CHECK("a child goes on with what its thread was returning")
{
    const pid_t parent = getpid();
    burst();
    os_ms += 2 * DELAY_MS;
    meanwhile = fork_here;
    let_decay();
    require(dirty_bytes() == 0, "%zu bytes stay", dirty_bytes());
    if (getpid() != parent) _exit(0);
}
