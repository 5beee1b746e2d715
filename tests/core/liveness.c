/*
 * Runs a script of allocations, given as words, and prints what hz counted and what it asked of the
 * system, as one JSON object. No test: test_liveness.py runs it under one value of a parameter
 * after the other.
 *
 *   take COUNT SIZE   allocates blocks
 *   give COUNT        frees the oldest blocks that are held
 *   until NAME COUNT  lets time pass, and memory churn, until a counter of hz is that high
 *   await NAME COUNT  lets time pass, and does nothing, until another thread has made a counter of
 *                     hz that high
 *   pace US           from now on, each look of hz at the exact clock finds it so much later
 *   twice SIZE        frees a block twice, then allocates until hz has noticed
 *   overrun SIZE      writes to the byte behind a block, and frees it
 *   thread            a new thread runs the rest of the script; this one stays, with its magazines
 *   meet SIZE         the same, and until the new thread waits or ends, this one holds the lock of
 *                     the depot for SIZE
 *   rest              brings the background thread of a program that rests, and waits until it
 *                     sleeps
 *
 * The program stands between hz and the C library: it notes what hz asks of the system, and gives
 * hz a coarse clock of its own, which `until` and `await` move, and an exact one, which `pace`
 * moves. So nothing here depends on how fast the machine is.
 */
#include "check.h"
#include "fake_os.h"

#include <hz/hz.h>

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

enum { BLOCKS_MAX = 1 << 16, CHURN_BLOCKS = 4096, CHURN_BYTES = 64, ROUNDS_MAX = 10000 };

/* ---- between hz and the system -------------------------------------------------------------- */

static struct {
    _Atomic uint64_t clock_us;        /* the exact time that hz is given */
    _Atomic uint64_t pace_us;         /* what passes of it from one look to the next */
    _Atomic uint64_t sleep_us;        /* what it last asked to sleep */
    _Atomic uint64_t watch_ms;        /* what it first asked to sleep until it is woken */
    _Atomic uint64_t yields;          /* times that it let others run */
    _Atomic uint64_t huge_bytes;      /* for which it asked for huge pages */
    _Atomic uint64_t small_bytes;     /* for which it declined them */
    _Atomic uint64_t populated_bytes; /* which it asked to be populated */
} seen;

uint64_t os_ns(void)
{
    return 1000 * (seen.clock_us += seen.pace_us);
}

static void note_advice(size_t bytes, long advice)
{
    if (advice == MADV_HUGEPAGE) seen.huge_bytes += bytes;
    if (advice == MADV_NOHUGEPAGE) seen.small_bytes += bytes;
    if (advice == MADV_POPULATE_WRITE) seen.populated_bytes += bytes;
}

static uint64_t us_of(long span)
{
    const struct timespec *at = (const struct timespec *)span;
    return (uint64_t)at->tv_sec * 1000000 + (uint64_t)at->tv_nsec / 1000;
}

long os_call(long number, const long words[HZ_OS_CALL_WORDS])
{
    if (number == SYS_nanosleep) seen.sleep_us = us_of(words[0]);
    if (number == SYS_sched_yield) seen.yields++;
    if (number == SYS_madvise) note_advice((size_t)words[1], words[2]);
    if (number == SYS_futex && words[3] != 0 && seen.watch_ms == 0)
        seen.watch_ms = us_of(words[3]) / 1000;
    return os_call_behind(number, words);
}

/* ---- the steps ------------------------------------------------------------------------------ */

typedef struct script {
    char **words;       /* those that are left, then NULL */
    _Atomic bool ended; /* whether all have been run */
} script;

/* Blocks taken and not yet given, in order of age; threads use them one after the other. */
static struct {
    void *blocks[BLOCKS_MAX];
    size_t oldest, count;
} held;

static const char *met = "no thread";           /* how the other thread fared at the lock */
static const char *volatile caught = "nowhere"; /* where hz noticed a second free */
static const char *volatile overrun_caught =
    "nowhere"; /* where it noticed a write behind a block */

static const char *next_word(script *rest)
{
    require(*rest->words != NULL, "the script ends in the middle of a step");
    return *rest->words++;
}

static size_t next_number(script *rest)
{
    return strtoul(next_word(rest), NULL, 10);
}

static void take(size_t count, size_t size)
{
    require(held.count + count <= BLOCKS_MAX, "more than %d blocks", BLOCKS_MAX);
    for (size_t i = 0; i < count; i++) {
        void *block = hz_malloc(size);
        require(block != NULL, "no memory for %zu bytes", size);
        held.blocks[(held.oldest + held.count++) % BLOCKS_MAX] = block;
    }
}

static void give(size_t count)
{
    require(count <= held.count, "%zu blocks are held, not %zu", held.count, count);
    for (; count > 0; count--, held.count--) hz_free(held.blocks[held.oldest++ % BLOCKS_MAX]);
}

static void wait_until(const char *name, size_t wanted, bool churns)
{
    for (int round = 0; hz_counter(name) < wanted; round++) {
        require(round < ROUNDS_MAX, "%s is still below %zu", name, wanted);
        os_ms++;
        if (churns) {
            take(CHURN_BLOCKS, CHURN_BYTES);
            give(CHURN_BLOCKS);
        } else {
            (void)usleep(1000);
        }
    }
}

static void *run(void *argument);

static void bring_the_background_thread(void)
{
    static const hz_thread_calls calls = {pthread_create, pthread_join, NULL};
    hz_rest_thread_made(&calls);
    while (seen.watch_ms == 0) (void)syscall(SYS_sched_yield);
}

static const char *how_it_fares(const script *other, const hz_lock *lock)
{
    for (;;) {
        if ((hz_atomic_peek(&lock->word) & HZ_LOCK_SLEEPERS) != 0) return "sleeps";
        if (seen.yields > 0) return "yields";
        if (other->ended) return "passes";
        (void)syscall(SYS_sched_yield);
    }
}

static void meet(script *rest, uint32_t class_)
{
    hz_lock *lock = &hz_shards[0].depots[class_].lock;
    hz_lock_take(lock);
    const pthread_t thread = thread_start(run, rest);
    met = how_it_fares(rest, lock);
    hz_lock_release(lock);
    (void)thread_end(thread);
}

static sigjmp_buf before_crime;

static void leave_abort(int signal)
{
    (void)signal;
    siglongjmp(before_crime, 1);
}

/* The class has a magazine with room by then, so that the second free goes the fastest way. */
static void free_twice(size_t size)
{
    enum { SOME = 3 };
    take(SOME, size);
    give(SOME);
    void *block = hz_malloc(size);
    hz_free(block);
    (void)signal(SIGABRT, leave_abort);
    if (sigsetjmp(before_crime, 1) != 0) return;
    caught = "at the call";
    hz_free(block);
    caught = "at the next allocations";
    take(SOME, size);
    caught = "nowhere";
}

static void overrun(size_t size)
{
    unsigned char *block = hz_malloc(size);
    block[size] ^= 1;
    (void)signal(SIGABRT, leave_abort);
    overrun_caught = "at the call";
    if (sigsetjmp(before_crime, 1) != 0) return;
    hz_free(block);
    overrun_caught = "nowhere";
}

static void step(script *rest)
{
    const char *verb = next_word(rest);
    const bool is_wait = strcmp(verb, "until") == 0 || strcmp(verb, "await") == 0;
    const bool is_alone = strcmp(verb, "thread") == 0 || strcmp(verb, "rest") == 0;
    const char *name = is_wait ? next_word(rest) : NULL;
    const size_t number = is_alone ? 0 : next_number(rest);
    if (strcmp(verb, "take") == 0)
        take(number, next_number(rest));
    else if (strcmp(verb, "give") == 0)
        give(number);
    else if (is_wait)
        wait_until(name, number, *verb == 'u');
    else if (strcmp(verb, "pace") == 0)
        seen.pace_us = number;
    else if (strcmp(verb, "twice") == 0)
        free_twice(number);
    else if (strcmp(verb, "overrun") == 0)
        overrun(number);
    else if (strcmp(verb, "meet") == 0)
        meet(rest, hz_class_of(number));
    else
        is_alone &&*verb == 't' ? (void)thread_end(thread_start(run, rest))
                                : bring_the_background_thread();
}

static void *run(void *argument)
{
    script *rest = argument;
    while (*rest->words != NULL) step(rest);
    rest->ended = true;
    return NULL;
}

/* ---- the answer ----------------------------------------------------------------------------- */

int main(int argc, char **argv)
{
    static char json[65536];
    script whole = {.words = argv + 1};
    (void)argc;
    alarm(60);
    const uint64_t start_ms = os_ms = 1000;
    run(&whole);
    require(hz_stats_json(json, sizeof json) < sizeof json, "hz_stats_json grew too long");
    printf("{\"hz\":%s,\"seen\":{", json);
    const struct {
        const char *name;
        uint64_t number;
    } numbers[] = {
        {"passed_ms", os_ms - start_ms},
        {"sleep_us", seen.sleep_us},
        {"watch_ms", seen.watch_ms},
        {"huge_bytes", seen.huge_bytes},
        {"small_bytes", seen.small_bytes},
        {"populated_bytes", seen.populated_bytes},
        {"unused_bytes", hz_usage_now().free_bytes},
        {"grown_bytes", hz_heap_mine->grown_bytes},
    };
    for (size_t i = 0; i < COUNT(numbers); i++)
        printf("\"%s\":%llu,", numbers[i].name, (unsigned long long)numbers[i].number);
    printf("\"met\":\"%s\",\"caught\":\"%s\",\"overrun_caught\":\"%s\"}}\n", met, caught,
           overrun_caught);
    return 0;
}
