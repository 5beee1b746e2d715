/*
 * The memory system calls of hz fail, at any point: it says so with NULL and ENOMEM, breaks
 * nothing, and goes on when the system recovers. TEST_FAULT_POINTS is the number of points at which
 * the failures begin.
 */
#include "linked.h"

#include "churn.h"
#include "fake_os.h"

#include <stdio.h>
#include <sys/mman.h>

enum { ALL_CALLS = -1, STEPS = 2000, CALLS_LEAST = 18 }; /* calls that each victim makes */

/* ---- what fails ------------------------------------------------------------------------------ */

static long failing_call = ALL_CALLS; /* the number of the system call to fail, or all */
static size_t first;                  /* the first call that fails, counted from 1 */
static bool is_random;                /* from there on fail every second call, not each */
static size_t larger_than;            /* of mmap: only requests above so many bytes */
static atomic_bool fails;             /* or else everything passes */
static atomic_size_t seen, failed;    /* calls that counted, and that failed */

static bool is_memory_call(long number)
{
    return number == SYS_mmap || number == SYS_munmap || number == SYS_mremap ||
           number == SYS_madvise || number == SYS_mprotect;
}

long os_call(long number, const long words[HZ_OS_CALL_WORDS])
{
    const bool counts = failing_call == ALL_CALLS ? is_memory_call(number) : failing_call == number;
    const bool is_little = number == SYS_mmap && (size_t)words[1] <= larger_than;
    if (!fails || !counts || is_little) return os_call_behind(number, words);
    uint64_t state = atomic_fetch_add(&seen, 1) + 1000 * first;
    if (state - 1000 * first + 1 < first || (is_random && random_next(&state) % 2 == 0))
        return os_call_behind(number, words);
    failed++;
    return -ENOMEM;
}

/* ---- the victim ------------------------------------------------------------------------------ */

static void require_recovered(void)
{
    static void *blocks[400];
    fails = false;
    for (size_t i = 0; i < COUNT(blocks); i++) {
        const size_t size = (i * i * 37) % 60000 + 1;
        blocks[i] = filled_block(malloc(size), size);
    }
    for (size_t i = 0; i < COUNT(blocks); i++) free(blocks[i]);
}

static void victim_alone(void)
{
    fails = true;
    churn_steps(first, STEPS);
    require_recovered();
}

static void *churn_in_thread(void *number)
{
    churn_steps(first * 10 + (uintptr_t)number, STEPS);
    return NULL;
}

static void victim_with_threads(void)
{
    crowd all;
    fails = true; /* a thread's own memory is the C library's business */
    crowd_start(&all, 4, churn_in_thread);
    crowd_end(&all);
    require_recovered();
}

static void victim_that_must_not_grow(void)
{
    size_t settled = 0;
    for (int round = 0; round < 6; round++) {
        fails = true;
        churn_steps((uint64_t)round, STEPS);
        fails = false;
        (void)malloc_trim(0);
        settled = round == 1 ? resident_bytes() : settled;
    }
    const size_t after = resident_bytes();
    require(after < settled + (8u << 20), "%zu, then %zu bytes are resident", settled, after);
}

/* Under hardening malloc(0) needs pages that may not be touched: without them it keeps nothing. */
static void victim_that_asks_for_no_bytes(void)
{
    enum { TRIES = 5000, MOST_BYTES = 8 << 20 };
    const size_t before = mapped_bytes();
    fails = true;
    for (size_t i = 0; i < TRIES; i++) {
        errno = 0;
        require(malloc(0) == NULL && errno == ENOMEM, "call %zu, errno %d", i, errno);
    }
    require(mapped_bytes() < before + MOST_BYTES, "%zu, then %zu bytes", before, mapped_bytes());
}

/* ---- checks ---------------------------------------------------------------------------------- */

static void (*chosen)(void);

static void be_the_victim(void *unused)
{
    (void)unused;
    chosen();
    const bool any_may = first > CALLS_LEAST || failing_call != ALL_CALLS;
    require(any_may || is_random || failed > 0, "no call failed");
}

static void require_survival(long call, size_t from, bool at_random, void (*victim)(void))
{
    failing_call = call;
    first = from;
    is_random = at_random;
    chosen = victim;
    require_well(be_the_victim, NULL, 20);
}

static size_t point_count(void)
{
    return number_chosen("TEST_FAULT_POINTS", 12);
}

static void fail_from_each_point(long call, void (*victim)(void))
{
    for (size_t point = 1; point <= point_count(); point++)
        require_survival(call, point <= 8 ? point : point * point / 8, false, victim);
}

static void fail_at_random(void (*victim)(void))
{
    for (size_t seed = 1; seed <= point_count() / 3; seed++)
        require_survival(ALL_CALLS, seed, true, victim);
}

CHECK_IN(300, "each memory call, and all of them, may fail from any call on")
{
    static const long calls[] = {SYS_mmap,    SYS_munmap,   SYS_mremap,
                                 SYS_madvise, SYS_mprotect, ALL_CALLS};
    for (size_t i = 0; i < COUNT(calls); i++) fail_from_each_point(calls[i], victim_alone);
}
CHECK_IN(120, "all memory calls may fail under four threads")
{
    fail_from_each_point(ALL_CALLS, victim_with_threads);
}
CHECK_IN(240, "every second call at random may fail, and leaks nothing")
{
    fail_at_random(victim_alone);
    fail_at_random(victim_with_threads);
    fail_at_random(victim_that_must_not_grow);
}
CHECK_IN(60, "a malloc(0) that fails leaks nothing")
{
    if (!is_hardened()) return; /* there malloc(0) is a small block */
    require_survival(SYS_mprotect, 1, false, victim_that_asks_for_no_bytes);
}

PROGRAM("--little")
{
    churn_steps(5, STEPS); /* what is beyond the limit must fail in order */
}

CHECK_IN(120, "a process starts where large mappings are refused")
{
    char setting[64];
    for (size_t limit = (size_t)1 << 40; limit >= (size_t)1 << 22; limit /= 4) {
        (void)snprintf(setting, sizeof setting, "TEST_LARGEST=%zu", limit);
        require_program("--little", 0, setting);
    }
}

__attribute__((constructor(101))) static void begin_under_a_limit(void)
{
    larger_than = number_chosen("TEST_LARGEST", 0);
    failing_call = larger_than != 0 ? SYS_mmap : ALL_CALLS;
    fails = larger_than != 0;
    first = 1;
    shadow_may_fail = true;
}
