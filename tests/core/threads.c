/*
 * Threads come and go: destructors that allocate, blocks that outlive their thread, threads that
 * only free, what heaps hold and pass on, and that what all that leaves behind does not add up.
 * TEST_THREADS_TOTAL is the number of threads.
 */
#include "check.h"

#include <dlfcn.h>
#include <malloc.h>
#include <stdio.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { KEYS = 40, LEAST_STACK = 16 << 10, BLOCKS = 3000, SIZE = 48 };

static void *run_thread(void *(*body)(void *), const void *argument)
{
    return thread_end(thread_start(body, argument));
}

/* Runs it many times; after a tenth of them nothing more becomes resident. */
static void require_no_growth(void (*act)(void), size_t times, size_t most_bytes)
{
    size_t settled = 0;
    for (size_t i = 0; i < times; i++) {
        act();
        if (i == times / 10) settled = resident_bytes();
    }
    const size_t after = resident_bytes();
    require(after <= settled + most_bytes, "resident memory went from %zu to %zu bytes", settled,
            after);
}

/* ---- destructors ---------------------------------------------------------------------------- */

static pthread_key_t keys[KEYS];
static atomic_size_t destructor_runs;

/* Frees its block, works a little on the heap, and sets its key again: it runs in each of the four
 * rounds. */
static void free_and_set_again(void *value)
{
    size_t number = 0;
    memcpy(&number, value, sizeof number);
    free(value);
    free(malloc(3000));
    char *block = calloc(1, 200 + number);
    memcpy(block, &number, sizeof number);
    (void)pthread_setspecific(keys[number], block);
    atomic_fetch_add(&destructor_runs, 1);
}

static void *set_all_keys(void *unused)
{
    for (size_t i = 0; i < KEYS; i++) {
        char *block = calloc(1, 100 + i);
        memcpy(block, &i, sizeof i);
        (void)pthread_setspecific(keys[i], block);
    }
    return unused;
}

CHECK("destructors of thread-specific data allocate and free in every round")
{
    enum { THREADS = 200, ROUNDS = 4 };
    for (size_t i = 0; i < KEYS; i++)
        require(pthread_key_create(&keys[i], free_and_set_again) == 0, "pthread_key_create failed");
    for (int i = 0; i < THREADS; i++) (void)run_thread(set_all_keys, NULL);
    require(atomic_load(&destructor_runs) == (size_t)THREADS * KEYS * ROUNDS, "%zu runs",
            atomic_load(&destructor_runs));
}

static void *take_key_only(void *block)
{
    (void)pthread_setspecific(keys[0], block);
    return NULL;
}

/* Its destructor makes the thread's first call of malloc or free. */
static void end_with_a_first_call(void)
{
    (void)run_thread(take_key_only, malloc(500));
}

/* The C library keeps the message for the thread, and frees it after all destructors. */
static void *fail_to_load(void *unused)
{
    free(malloc(500));
    require(dlopen("/there/is/no/such/library", RTLD_NOW) == NULL, "dlopen found something");
    return unused;
}

static void end_with_a_last_call(void)
{
    (void)run_thread(fail_to_load, NULL);
}

CHECK_IN(60, "threads whose only calls come in a destructor, or after all of them, leak nothing")
{
    require(pthread_key_create(&keys[0], free) == 0, "pthread_key_create failed");
    require_no_growth(end_with_a_first_call, 4000, 65536);
    require_no_growth(end_with_a_last_call, 2000, 1u << 20);
}

/* ---- blocks and their threads --------------------------------------------------------------- */

static unsigned char *blocks[2][BLOCKS];

static void *free_many(void *argument)
{
    void **all = argument;
    for (size_t i = 0; i < BLOCKS; i++) free(all[i]);
    return NULL;
}

/* ---- the end of a process ------------------------------------------------------------------- */

static void *exit_at_once(void *unused)
{
    free(malloc(100));
#ifdef __GLIBC__
    FILE *file = fopen("/dev/null", "w");
    require(file != NULL && malloc_info(0, file) == 0, "malloc_info failed");
#endif
    exit(0);
    return unused;
}

PROGRAM("--exit")
{
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    require(pthread_attr_setstacksize(&attributes, LEAST_STACK) == 0, "the stack is refused");
    require(pthread_create(&thread, &attributes, exit_at_once, NULL) == 0, "pthread_create failed");
    (void)thread_end(thread);
    _exit(1);
}

CHECK("a thread with the least stack may call malloc_info, and end a program with statistics")
{
    require_program("--exit", 0, "HZ_STATS=/dev/null");
}

/* ---- what heaps hold ------------------------------------------------------------------------ */

enum { BESIDE = 500 };
static pthread_barrier_t both;

static void *allocate_beside_the_other(void *number)
{
    unsigned char **own = blocks[(uintptr_t)number - 1];
    (void)pthread_barrier_wait(&both);
    for (size_t i = 0; i < BESIDE; i++) own[i] = malloc(SIZE);
    (void)pthread_barrier_wait(&both);
    return NULL;
}

CHECK("threads share no cache line, and cut spans of their own once they need more")
{
    enum { LINE_SHIFT = 6, PAGE_SHIFT = 16, MORE = 2 * 4096 / SIZE };
    crowd two;
    require(pthread_barrier_init(&both, NULL, 2) == 0, "no barrier");
    crowd_start(&two, 2, allocate_beside_the_other);
    crowd_end(&two);
    for (size_t i = 0; i < BESIDE; i++) {
        for (size_t j = 0; j < BESIDE; j++) {
            const int shift = i < MORE || j < MORE ? LINE_SHIFT : PAGE_SHIFT;
            require((uintptr_t)blocks[0][i] >> shift != (uintptr_t)blocks[1][j] >> shift,
                    "blocks %zu and %zu of two threads lie within %d bytes", i, j, 1 << shift);
        }
    }
}

static void *free_two(void *unused)
{
    void *first = malloc(SIZE), *last = malloc(SIZE);
    (void)unused;
    free(first);
    free(last);
    return last;
}

static void *allocate_one(void *unused)
{
    (void)unused;
    return malloc(SIZE);
}

CHECK("a new thread goes on with the magazines of one that ended")
{
    const void *freed = run_thread(free_two, NULL), *taken = run_thread(allocate_one, NULL);
    require(taken == freed, "it got %p, and %p was freed last", taken, freed);
}

static void *fill_the_magazine(void *unused)
{
    enum { FULL = 250, LARGER = 1000 };
    void *own[FULL];
    for (size_t i = 0; i < FULL; i++) own[i] = memset(malloc(LARGER), 1, LARGER);
    for (size_t i = 0; i < FULL; i++) free(own[i]);
    return unused;
}

CHECK("a trim returns what ended threads hold")
{
    enum { THREADS = 8 };
    crowd all;
    (void)malloc_trim(0);
    const size_t before = resident_bytes();
    crowd_start(&all, THREADS, fill_the_magazine);
    crowd_end(&all);
    (void)malloc_trim(0);
    const size_t after = resident_bytes(), most = before + (128u << 10) * THREADS;
    require(after <= most, "resident memory went from %zu to %zu bytes", before, after);
    require(hz_counter("heaps_born") >= 2, "no thread had a heap");
}

static void *sleep_for_good(void *unused)
{
    (void)pthread_barrier_wait(&both);
    (void)pause();
    return unused;
}

static void *have_a_heap(void *unused)
{
    free(malloc(SIZE));
    return sleep_for_good(unused);
}

/* So many other threads have done that, and sleep. */
static void be_among(unsigned others, void *(*run)(void *))
{
    pthread_attr_t small;
    pthread_t thread;
    require(pthread_barrier_init(&both, NULL, others + 1) == 0, "no barrier");
    require(pthread_attr_init(&small) == 0, "no attributes");
    require(pthread_attr_setstacksize(&small, 64 << 10) == 0, "the stack is refused");
    for (unsigned i = 0; i < others; i++)
        require(pthread_create(&thread, &small, run, NULL) == 0, "no thread %u", i);
    (void)pthread_barrier_wait(&both);
}

enum { ROUNDS = 200 };

static void play(void)
{
    void *own[128];
    for (size_t round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < COUNT(own); i++) own[i] = malloc(500);
        for (size_t i = 0; i < COUNT(own); i++) free(own[i]);
    }
}

static void play_twice(void)
{
    play();
    const uint64_t before = hz_counter("refills");
    play();
    require(hz_counter("refills") - before < ROUNDS, "its magazines are small");
}

/* The magazines of all threads share a budget, and the child has none of the others. */
CHECK("a forked child keeps as much as a process of one thread")
{
    be_among(64, have_a_heap);
    require_of_child(play_twice);
}

/* This thread only allocates, and the others only free. */
static void pipe_blocks(void)
{
    for (size_t round = 0; round < 30; round++) {
        for (size_t i = 0; i < BLOCKS; i++) blocks[0][i] = malloc((size_t)16 << i % 8);
        (void)run_thread(free_many, blocks[0]);
    }
}

/* All of them always run short, and larger ones would run short as often. */
CHECK("magazines that pass blocks on leave each other alone")
{
    be_among(3, have_a_heap);
    pipe_blocks();
    const uint64_t before = hz_counter("magazines_shrunk");
    pipe_blocks();
    const uint64_t shrunk = hz_counter("magazines_shrunk") - before;
    require(shrunk == 0, "%llu magazines had to make room", (unsigned long long)shrunk);
}

/* ---- threads that sleep ---------------------------------------------------------------------- */

enum { ASLEEP = 2000, AT_WORK = 4, A_WHILE_US = 300000 };

static void *work(void *unused)
{
    play();
    (void)pthread_barrier_wait(&both);
    return unused;
}

/* How often some threads at work asked a depot for blocks, or gave it some. */
static uint64_t calls_of_work(void)
{
    crowd all;
    const uint64_t before = hz_counter("refills") + hz_counter("flushes");
    require(pthread_barrier_init(&both, NULL, AT_WORK) == 0, "no barrier");
    crowd_start(&all, AT_WORK, work);
    crowd_end(&all);
    (void)malloc_trim(0); /* the next ones find nothing of theirs */
    return hz_counter("refills") + hz_counter("flushes") - before;
}

/* After a while, two epochs of budget.c, the others count as asleep. */
CHECK_IN(120, "the magazines of threads at work do not mind how many others sleep")
{
    const uint64_t alone = calls_of_work();
    be_among(ASLEEP, have_a_heap);
    usleep(A_WHILE_US);
    const uint64_t beside = calls_of_work();
    require(beside <= 2 * alone, "%llu calls take a lock, and %llu beside threads that sleep",
            (unsigned long long)alone, (unsigned long long)beside);
}

static void *use_some_sizes(void *unused)
{
    void *own[12];
    for (size_t i = 0; i < COUNT(own); i++) own[i] = malloc(16 * (i + 1));
    for (size_t i = 0; i < COUNT(own); i++) free(own[i]);
    return sleep_for_good(unused);
}

static size_t bytes_of_sleepers(void *(*run)(void *))
{
    const size_t before = resident_bytes();
    be_among(ASLEEP, run);
    return (resident_bytes() - before) / ASLEEP;
}

/* In the best of three passes: the first one begins pages, and while many threads run at once each
 * takes a little more. */
static void require_cheap(void *(*run)(void *), size_t most, const char *what)
{
    const size_t stack = bytes_of_sleepers(sleep_for_good);
    size_t bytes = SIZE_MAX;
    for (size_t pass = 0; pass < 3 && bytes > most; pass++) bytes = bytes_of_sleepers(run) - stack;
    require(bytes <= most, "a thread that %s costs %zu bytes", what, bytes);
}

CHECK_IN(120, "a thread that sleeps costs 8 KiB beside its stack, and little more with 64 shards")
{
    enum { MOST = 8400, MOST_OF_MANY_SHARDS = 9800 }; /* fewer threads share a page */
    require_cheap(have_a_heap, MOST, "allocated once");
    require_cheap(use_some_sizes, hz_counter("shards") > 8 ? MOST_OF_MANY_SHARDS : MOST,
                  "used some sizes");
}

/* ---- many threads ---------------------------------------------------------------------------- */

/* Frees the block that the thread before it left, and leaves one; uses several classes and a large
 * block. */
static void *come_and_go(void *left)
{
    void *own[50];
    free(left);
    for (size_t i = 0; i < COUNT(own); i++) own[i] = memset(malloc(16 + i * i * 3), 1, 1);
    for (size_t i = 1; i < COUNT(own); i++) free(own[i]);
    return own[0];
}

static void *sleep_a_moment(void *unused)
{
    (void)usleep(50000);
    return unused;
}

/* The C library keeps some stacks: a thread that ends beyond them frees what others had. */
CHECK("a thread that never allocates has no heap, whatever is freed at its end")
{
    (void)run_thread(sleep_a_moment, NULL); /* the first one brings the background thread */
    const size_t threads = threads_now();
    const uint64_t before = hz_counter("heaps_born") + hz_counter("heaps_adopted");
    for (int i = 0; i < CROWD_MOST; i++) (void)pthread_detach(thread_start(sleep_a_moment, NULL));
    wait_for_threads(threads);
    const uint64_t after = hz_counter("heaps_born") + hz_counter("heaps_adopted");
    require(after == before, "%llu heaps", (unsigned long long)(after - before));
}

CHECK_IN(300, "threads in sequence do not add up")
{
    const size_t total = number_chosen("TEST_THREADS_TOTAL", 20000);
    size_t resident = 0, mapped = 0, mappings = 0;
    void *left = NULL;
    for (size_t i = 0; i < total; i++) {
        left = run_thread(come_and_go, left);
        if (i > total / 10 || i % 100 != 0) continue;
        const size_t now = resident_bytes();
        if (now > resident) resident = now; /* less, where a pause between two returned memory */
        mapped = mapped_bytes();
        mappings = mapping_count();
    }
    require(resident_bytes() <= resident + 65536, "%zu, then %zu bytes are resident", resident,
            resident_bytes());
    require(mapped_bytes() <= mapped, "%zu, then %zu bytes are mapped", mapped, mapped_bytes());
    require(mapping_count() <= mappings + 4, "%zu, then %zu mappings", mappings, mapping_count());
}
