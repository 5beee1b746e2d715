/*
 * What the background thread of a program that rests does, and when. hz is given a clock of its
 * own, and the background thread's sleeps pass at once: each moves the clock by what was asked, or
 * by much more, as in a process that was stopped meanwhile.
 */
#include "check.h"
#include "fake_os.h"

#include <errno.h>
#include <hz/hz.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

enum { BLOCKS = 4096, SIZE = 1024, SOME_SLEEPS = 100 };

/* ---- between hz and the system -------------------------------------------------------------- */

_Atomic uint64_t os_ms = 1000;

static atomic_uint lateness = 1;     /* how many times as long as asked a sleep takes */
static atomic_bool is_cut_short;     /* whether a signal ends each sleep after a millisecond */
static atomic_uint asked_for_ms[2];  /* what the first ones were to take */
static void (*_Atomic during)(void); /* what the program does while the background thread sleeps */
static atomic_uint sleeps;           /* sleeps with a timer so far */
static atomic_uint sleeps_for_good;  /* sleeps without one */
static void (*at_shortage)(void);    /* what holds a thread up whose magazine is full or empty */

uint64_t os_ns(void)
{
    void (*const act)(void) = at_shortage;
    if (act != NULL) act();
    return os_ms * 1000000;
}

static long sleep_at_once(const struct timespec *span)
{
    void (*const act)(void) = during;
    const uint64_t asked_ms = (uint64_t)span->tv_sec * 1000 + (uint64_t)span->tv_nsec / 1000000;
    if (sleeps < COUNT(asked_for_ms)) asked_for_ms[sleeps] = (unsigned)asked_ms;
    os_ms += is_cut_short ? 1 : asked_ms * lateness;
    if (act != NULL) act();
    sleeps++;
    (void)sched_yield();
    return 0;
}

long os_call(long number, const long words[HZ_OS_CALL_WORDS])
{
    const bool is_wait =
        number == SYS_futex && words[0] == (long)&hz_rest.word && words[1] % 2 == 0;
    if (is_wait && words[3] != 0) return sleep_at_once((const struct timespec *)words[3]);
    if (is_wait) sleeps_for_good++;
    return os_call_behind(number, words);
}

/* ---- the program ---------------------------------------------------------------------------- */

static uint64_t rounds(void)
{
    return hz_counter("background_rounds");
}

static void leave_much_unused(void)
{
    static void *blocks[BLOCKS];
    for (size_t i = 0; i < BLOCKS; i++) blocks[i] = hz_malloc(SIZE);
    for (size_t i = 0; i < BLOCKS; i++) hz_free(blocks[i]);
}

static const hz_thread_calls calls = {pthread_create, pthread_join, NULL};

static void bring_the_background_thread(void)
{
    leave_much_unused();
    hz_rest_thread_made(&calls);
}

static void wait_for_sleeps(unsigned count)
{
    const unsigned before = sleeps;
    while (sleeps - before < count) (void)sched_yield();
}

static void wait_until_it_sleeps_for_good(unsigned times)
{
    while (sleeps_for_good < times) (void)sched_yield();
}

/* For ever if it stays. */
static void wait_until_it_ends(void)
{
    while (hz_rest_has_thread()) (void)sched_yield();
}

static void require_that_everything_is_returned(void)
{
    bring_the_background_thread();
    wait_until_it_sleeps_for_good(1);
    require(hz_usage_now().free_bytes == 0, "%zu bytes stay", hz_usage_now().free_bytes);
    require(hz_atomic_peek(&hz_shards[0].depots[hz_class_of(SIZE)].count) == 0,
            "a depot kept some");
}

static void *make_a_thread(void *unused)
{
    hz_rest_thread_made(&calls);
    return unused;
}

static int make_with_helpers(pthread_t *thread, const pthread_attr_t *attributes,
                             void *(*start)(void *), void *argument)
{
    (void)thread_end(thread_start(make_a_thread, NULL));
    return pthread_create(thread, attributes, start, argument);
}

CHECK("a program with a malloc of its own gets none")
{
    hz_rest_thread_made(&calls);
    require(!hz_rest_has_thread(), "it has one");
    bring_the_background_thread();
    require(hz_rest_has_thread(), "with a heap it gets none");
}

/* For ever if a thread of the library waits for the one that waits for it. */
CHECK("a library that makes it may first make threads of its own, which make threads")
{
    static const hz_thread_calls of_library = {make_with_helpers, pthread_join, NULL};
    leave_much_unused();
    hz_rest_thread_made(&of_library);
    wait_until_it_sleeps_for_good(1);
}

CHECK("it returns everything, and then sleeps without a timer")
{
    require_that_everything_is_returned();
    const unsigned before = sleeps;
    for (int i = 0; i < SOME_SLEEPS; i++) (void)sched_yield();
    require(sleeps == before, "it goes on looking");
}

CHECK("a slow free wakes it")
{
    bring_the_background_thread();
    wait_until_it_sleeps_for_good(1);
    leave_much_unused();
    while (hz_usage_now().free_bytes > 0) (void)sched_yield(); /* for ever if it is not woken */
    wait_until_it_sleeps_for_good(2);
}

/* One more than the four that find nothing. */
CHECK("after what it returned it looks four times in vain")
{
    void *block = hz_malloc(1 << 20);
    bring_the_background_thread();
    wait_until_it_sleeps_for_good(1);
    const uint64_t before = rounds();
    hz_free(block);
    wait_until_it_sleeps_for_good(2);
    require(rounds() == before + 5, "%llu rounds", (unsigned long long)(rounds() - before));
}

static void wait_until_it_sleeps(void)
{
    at_shortage = NULL;
    wait_until_it_sleeps_for_good(1);
}

CHECK("a free that was held up wakes it")
{
    static void *blocks[BLOCKS];
    for (size_t i = 0; i < BLOCKS; i++) blocks[i] = hz_malloc(SIZE);
    bring_the_background_thread();
    at_shortage = wait_until_it_sleeps;
    for (size_t i = 0; at_shortage != NULL; i++) hz_free(blocks[i]);
    wait_until_it_sleeps_for_good(2); /* for ever if it is not woken */
}

CHECK("while the program works it does nothing")
{
    during = let_decay; /* as a tick of a slow path does */
    bring_the_background_thread();
    wait_for_sleeps(SOME_SLEEPS);
    require(rounds() == 0, "%llu rounds", (unsigned long long)rounds());
    during = NULL;
    wait_until_it_sleeps_for_good(1);
    require(rounds() > 0, "it never began");
}

static void visit_in_the_middle(void)
{
    const uint64_t end_ms = os_ms;
    during = NULL;
    os_ms = end_ms - (uint64_t)hz_cfg.rest_ms / 2;
    let_decay();
    os_ms = end_ms;
}

CHECK("a rest begins with the last visit")
{
    during = visit_in_the_middle;
    bring_the_background_thread();
    wait_until_it_sleeps_for_good(1);
    require(asked_for_ms[0] == hz_cfg.rest_ms, "first it slept for %u ms", asked_for_ms[0]);
    require(asked_for_ms[1] == hz_cfg.rest_ms / 2, "then it slept for %u ms", asked_for_ms[1]);
}

CHECK("a process that was stopped did not rest")
{
    lateness = 10;
    bring_the_background_thread();
    wait_for_sleeps(SOME_SLEEPS);
    require(rounds() == 0, "%llu rounds", (unsigned long long)rounds());
    lateness = 1;
    wait_until_it_sleeps_for_good(1);
    require(rounds() > 0, "it never began");
}

CHECK("a sleep that signals cut short goes on")
{
    is_cut_short = true;
    require_that_everything_is_returned();
}

static void *burst_in_a_thread(void *unused)
{
    leave_much_unused();
    return unused;
}

static void let_a_thread_come_and_go(void)
{
    (void)thread_end(thread_start(burst_in_a_thread, NULL));
}

static void *(*start_behind)(void *);

static void *allocate_around(void *argument)
{
    hz_free(hz_malloc(100));
    void *result = start_behind(argument);
    hz_free(hz_malloc(200));
    return result;
}

static int make_allocating(pthread_t *thread, const pthread_attr_t *attributes,
                           void *(*start)(void *), void *argument)
{
    start_behind = start;
    return pthread_create(thread, attributes, allocate_around, argument);
}

/* As one that keeps a register of threads. For ever if the background thread counts as one of the
 * program's. */
CHECK("a library that makes it may allocate on it, before and after")
{
    static const hz_thread_calls of_library = {make_allocating, pthread_join, NULL};
    let_a_thread_come_and_go();
    hz_rest_thread_made(&of_library);
    wait_until_it_ends();
}

static void let_another_one_come_and_go(void)
{
    during = NULL;
    let_a_thread_come_and_go();
    hz_rest_thread_made(&calls);
}

static void require_that_it_ends_after_it_returned_everything(void)
{
    wait_until_it_ends();
    require(rounds() > 0, "it ended without a round");
    require(hz_usage_now().free_bytes == 0, "%zu bytes stay", hz_usage_now().free_bytes);
}

CHECK("what threads between two looks left is returned")
{
    during = let_another_one_come_and_go;
    let_a_thread_come_and_go();
    bring_the_background_thread();
    require_that_it_ends_after_it_returned_everything();
}

/* ---- many threads ---------------------------------------------------------------------------- */

enum { MANY = 40 }; /* more than the heaps that may stay warm */

static pthread_barrier_t all_have_heaps;

static void *use_many_blocks(void *unused)
{
    void *blocks[200];
    (void)pthread_barrier_wait(&all_have_heaps);
    for (size_t i = 0; i < COUNT(blocks); i++) {
        blocks[i] = hz_malloc(64);
        memset(blocks[i], 1, 64);
    }
    for (size_t i = 0; i < COUNT(blocks); i++) hz_free(blocks[i]);
    (void)pthread_barrier_wait(&all_have_heaps);
    return unused;
}

static void let_many_threads_come_and_go(void)
{
    pthread_t threads[MANY];
    require(pthread_barrier_init(&all_have_heaps, NULL, MANY) == 0, "no barrier");
    for (size_t i = 0; i < MANY; i++) threads[i] = thread_start(use_many_blocks, NULL);
    for (size_t i = 0; i < MANY; i++) (void)thread_end(threads[i]);
}

/* Whole pages of the slots of heaps without a thread, as far as a heap has so many. */
static size_t resident_slot_pages(void)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), some = 65536 / page;
    size_t count = 0;
    unsigned char is_resident[16];
    for (const hz_heap *heap = hz_heap_first(); heap != NULL; heap = heap->next) {
        void *first = (void *)(((uintptr_t)heap->arrays + page - 1) & -page);
        if (heap == hz_heap_mine) continue;
        require(mincore(first, some * page, is_resident) == 0, "mincore: %s", strerror(errno));
        for (size_t i = 0; i < some; i++) count += is_resident[i] & 1;
    }
    return count;
}

CHECK("the slots of heaps whose threads ended cost no memory, and come again")
{
    leave_much_unused(); /* main gets a heap of its own */
    let_many_threads_come_and_go();
    require(resident_slot_pages() > 0, "no slots were used");
    bring_the_background_thread();
    wait_until_it_ends();
    require(resident_slot_pages() == 0, "%zu pages stay", resident_slot_pages());
    const uint64_t born = hz_counter("heaps_born");
    let_many_threads_come_and_go();
    require(hz_counter("heaps_born") == born, "the heaps were not used again");
    require(resident_slot_pages() > 0, "no slots were used again");
}

/* ---- main alone ------------------------------------------------------------------------------ */

static void visit_once(void)
{
    during = NULL;
    let_decay();
}

CHECK("what threads left is returned, although main worked for a moment after their end")
{
    during = visit_once;
    let_a_thread_come_and_go();
    bring_the_background_thread();
    require_that_it_ends_after_it_returned_everything();
}

CHECK("it ends while main works on alone")
{
    during = let_decay;
    let_a_thread_come_and_go();
    bring_the_background_thread();
    wait_until_it_ends();
    require(rounds() == 0, "%llu rounds", (unsigned long long)rounds());
}
