/*
 * What the heaps of threads hold: spans of their own to cut, what an ended thread leaves to the
 * next one, and how much of it they may keep.
 */
#include "check.h"

#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCKS = 200, SIZE = 48, PAGE_SHIFT = 16, THREADS = 8, LARGER = 1000 };

/* ---- spans ---------------------------------------------------------------------------------- */

static pthread_barrier_t both_allocate;

static void *allocate_beside_the_other(void *argument)
{
    char **blocks = argument;
    (void)pthread_barrier_wait(&both_allocate);
    for (size_t i = 0; i < BLOCKS; i++) blocks[i] = malloc(SIZE);
    (void)pthread_barrier_wait(&both_allocate);
    return NULL;
}

CHECK("threads cut spans of their own")
{
    static char *blocks[2][BLOCKS];
    pthread_t threads[2];
    require(pthread_barrier_init(&both_allocate, NULL, 2) == 0, "no barrier");
    for (int i = 0; i < 2; i++) {
        threads[i] = thread_start(allocate_beside_the_other, blocks[i]);
    }
    for (int i = 0; i < 2; i++) (void)thread_end(threads[i]);
    for (size_t i = 0; i < BLOCKS; i++) {
        for (size_t j = 0; j < BLOCKS; j++) {
            require((uintptr_t)blocks[0][i] >> PAGE_SHIFT != (uintptr_t)blocks[1][j] >> PAGE_SHIFT,
                    "blocks %zu and %zu of two threads lie in one page", i, j);
        }
    }
}

/* ---- heaps of threads that ended ------------------------------------------------------------ */

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
    const void *freed = thread_end(thread_start(free_two, NULL));
    const void *taken = thread_end(thread_start(allocate_one, NULL));
    require(taken == freed, "it got %p, and %p was freed last", taken, freed);
}

static void *fill_the_magazine(void *unused)
{
    static const size_t count = 250;
    void *blocks[250];
    (void)unused;
    for (size_t i = 0; i < count; i++) {
        blocks[i] = malloc(LARGER);
        memset(blocks[i], 1, LARGER);
    }
    for (size_t i = 0; i < count; i++) free(blocks[i]);
    return NULL;
}

CHECK("a trim returns what ended threads hold")
{
    pthread_t threads[THREADS];
    (void)malloc_trim(0);
    const size_t before = resident_bytes();
    for (int i = 0; i < THREADS; i++) {
        threads[i] = thread_start(fill_the_magazine, NULL);
    }
    for (int i = 0; i < THREADS; i++) (void)thread_end(threads[i]);
    (void)malloc_trim(0);
    const size_t after = resident_bytes(), most = before + (128u << 10) * THREADS;
    require(after <= most, "resident memory went from %zu to %zu bytes", before, after);
    require(hz_counter("heaps_born") >= 2, "no thread had a heap");
}

/* ---- what a thread may keep ----------------------------------------------------------------- */

static pthread_barrier_t all_have_a_heap;

static void *have_a_heap(void *unused)
{
    free(malloc(SIZE));
    (void)pthread_barrier_wait(&all_have_a_heap);
    (void)pause();
    return unused;
}

/* So many other threads have a heap, and with it a part of what all may keep. */
static void be_among(unsigned others)
{
    require(pthread_barrier_init(&all_have_a_heap, NULL, others + 1) == 0, "no barrier");
    for (unsigned i = 0; i < others; i++) (void)thread_start(have_a_heap, NULL);
    (void)pthread_barrier_wait(&all_have_a_heap);
}

static void play(size_t rounds)
{
    enum { COUNT_OF_PLAY = 128, SIZE_OF_PLAY = 500 };
    void *blocks[COUNT_OF_PLAY];
    for (size_t round = 0; round < rounds; round++) {
        for (size_t i = 0; i < COUNT_OF_PLAY; i++) blocks[i] = malloc(SIZE_OF_PLAY);
        for (size_t i = 0; i < COUNT_OF_PLAY; i++) free(blocks[i]);
    }
}

/* The magazines of all threads share a budget, and the child has none of the others. */
CHECK("a forked child keeps as much as a process of one thread")
{
    enum { CROWD = 64, ROUNDS = 200 };
    be_among(CROWD);
    const pid_t child = fork();
    if (child == 0) {
        play(ROUNDS);
        const uint64_t before = hz_counter("refills");
        play(ROUNDS);
        _exit(hz_counter("refills") - before < ROUNDS ? 0 : 1);
    }
    require_child_ends(child);
}

enum { PIPED_SIZES = 8, PIPED_BLOCKS = 256, SMALLEST_PIPED = 16 };

static void *free_all(void *argument)
{
    void **blocks = argument;
    for (size_t i = 0; i < PIPED_BLOCKS * PIPED_SIZES; i++) free(blocks[i]);
    return NULL;
}

/* This thread only allocates, and the others only free. */
static void pipe_blocks(size_t rounds)
{
    static void *blocks[PIPED_BLOCKS * PIPED_SIZES];
    for (size_t round = 0; round < rounds; round++) {
        for (size_t i = 0; i < COUNT(blocks); i++)
            blocks[i] = malloc(SMALLEST_PIPED << i % PIPED_SIZES);
        (void)thread_end(thread_start(free_all, blocks));
    }
}

/* All of them always run short, and larger ones would run short as often. */
CHECK("magazines that pass blocks on leave each other alone")
{
    enum { CROWD = 3, ROUNDS = 30 };
    be_among(CROWD);
    pipe_blocks(ROUNDS);
    const uint64_t before = hz_counter("magazines_shrunk");
    pipe_blocks(ROUNDS);
    const uint64_t shrunk = hz_counter("magazines_shrunk") - before;
    require(shrunk == 0, "%llu magazines had to make room", (unsigned long long)shrunk);
}
