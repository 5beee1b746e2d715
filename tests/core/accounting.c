/*
 * What mallinfo2, malloc_info, malloc_stats and hz_stats_json say of live and free memory is true
 * to the byte while the other threads are at rest.
 */
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

enum { THREADS = 4, BLOCKS = 3000, LARGEST = 600 * 1024, ROUNDS = 6 };

static void *blocks[THREADS][BLOCKS];
static pthread_barrier_t turn;

static size_t live(void)
{
    return mallinfo2().uordblks;
}

/* Of sizes of all kinds: some short of each class, some large. */
static void *block_make(uint64_t *state)
{
    const uint64_t drawn = random_next(state);
    const size_t most = drawn % 64 == 0 ? LARGEST : drawn % 8 == 0 ? 40000 : 2000;
    const size_t size = (drawn >> 8) % most;
    return drawn % 16 == 1 ? aligned_alloc(256, size & ~(size_t)255) : malloc(size);
}

static size_t usable_of(void *const *some)
{
    size_t bytes = 0;
    for (size_t i = 0; i < BLOCKS; i++) bytes += malloc_usable_size(some[i]);
    return bytes;
}

static size_t usable_of_all(void)
{
    size_t bytes = 0;
    for (size_t t = 0; t < THREADS; t++) bytes += usable_of(blocks[t]);
    return bytes;
}

/* ---- one thread ----------------------------------------------------------------------------- */

CHECK("uordblks is the usable bytes of the blocks of a thread")
{
    uint64_t state = 1;
    free(malloc(1));
    const size_t before = live();
    for (size_t i = 0; i < BLOCKS; i++) {
        blocks[0][i] = block_make(&state);
        const size_t expected = before + usable_of(blocks[0]);
        if (i % 97 == 0)
            require(live() == expected, "%zu live at block %zu, not %zu", live(), i, expected);
    }
    for (size_t i = 0; i < BLOCKS; i++) {
        free(blocks[0][i]);
        blocks[0][i] = NULL;
        const size_t expected = before + usable_of(blocks[0]);
        if (i % 97 == 0)
            require(live() == expected, "%zu live at free %zu, not %zu", live(), i, expected);
    }
    require(live() == before, "%zu live, %zu before", live(), before);
}

CHECK("uordblks follows a block that is resized")
{
    free(malloc(1));
    const size_t before = live();
    char *block = NULL;
    for (size_t size = 1; size < (size_t)64 << 20; size = size * 3 / 2 + 1) {
        block = realloc(block, size);
        require(live() == before + malloc_usable_size(block), "%zu bytes", size);
    }
    for (size_t size = (size_t)32 << 20; size > 0; size /= 3) {
        block = realloc(block, size);
        require(live() == before + malloc_usable_size(block), "%zu bytes", size);
    }
    free(block);
    require(live() == before, "%zu live, %zu before", live(), before);
}

/* ---- many ----------------------------------------------------------------------------------- */

static void *worker(void *number)
{
    const size_t own = (size_t)number;
    uint64_t state = own + 7;
    for (int round = 0; round < ROUNDS; round++) {
        pthread_barrier_wait(&turn); /* the others' blocks are freed, own ones made */
        void **mine = blocks[own], **others = blocks[(own + (size_t)round) % THREADS];
        for (size_t i = 0; i < BLOCKS; i++) {
            if (i % 3 == 0) continue;
            free(others[i]);
            others[i] = NULL;
        }
        pthread_barrier_wait(&turn);
        for (size_t i = 0; i < BLOCKS; i++)
            if (mine[i] == NULL) mine[i] = block_make(&state);
        pthread_barrier_wait(&turn); /* at rest */
        pthread_barrier_wait(&turn); /* the count is done */
    }
    for (size_t i = 0; i < BLOCKS; i++) free(blocks[own][i]);
    memset(blocks[own], 0, sizeof blocks[own]);
    pthread_barrier_wait(&turn);
    pthread_barrier_wait(&turn);
    return NULL;
}

static void threads_start(pthread_t *threads)
{
    free(malloc(1));
    pthread_barrier_init(&turn, NULL, THREADS + 1);
    for (size_t t = 0; t < THREADS; t++) threads[t] = thread_start(worker, (void *)t);
}

CHECK_IN(60, "uordblks is the usable bytes of the blocks of all threads")
{
    pthread_t threads[THREADS];
    threads_start(threads);
    const size_t before = live();
    for (int round = 0; round < ROUNDS; round++) {
        for (int turns = 0; turns < 3; turns++) pthread_barrier_wait(&turn);
        const size_t expected = before + usable_of_all();
        require(live() == expected, "%zu live, not %zu", live(), expected);
        pthread_barrier_wait(&turn);
    }
    pthread_barrier_wait(&turn);
    require(live() == before, "%zu live, %zu before", live(), before);
    pthread_barrier_wait(&turn);
    for (size_t t = 0; t < THREADS; t++) (void)thread_end(threads[t]);
    require(live() <= before, "%zu live, %zu before", live(), before);
}

/* ---- trim ----------------------------------------------------------------------------------- */

static void trim(void)
{
    void *large[50];
    free(malloc(1));
    const size_t before = live();
    for (size_t i = 0; i < COUNT(large); i++) large[i] = memset(malloc(1 << 20), 1, 1 << 20);
    require(live() == before + COUNT(large) * ((size_t)1 << 20), "%zu live", live());
    for (size_t i = 0; i < COUNT(large); i++) free(large[i]);
    require(live() == before, "%zu live", live());
    const struct mallinfo2 full = mallinfo2();
    malloc_trim(0);
    const struct mallinfo2 empty = mallinfo2();
    require(empty.uordblks == before, "%zu live after the trim", empty.uordblks);
    require(empty.fordblks + full.keepcost <= full.fordblks, "%zu, then %zu free", full.fordblks,
            empty.fordblks);
}

CHECK("mallinfo and mallinfo2 agree, and what is used and free adds up")
{
    uint64_t state = 5;
    for (size_t i = 0; i < BLOCKS; i++) blocks[0][i] = block_make(&state);
    for (size_t i = 0; i < BLOCKS; i += 2) free(blocks[0][i]);
    const struct mallinfo2 info = mallinfo2();
    require(info.arena == info.uordblks + info.fordblks, "%zu is not %zu and %zu", info.arena,
            info.uordblks, info.fordblks);
    require(info.fsmblks <= info.fordblks && info.keepcost <= info.fordblks, "more than all");
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    const struct mallinfo narrow = mallinfo();
    require((size_t)narrow.arena == info.arena && (size_t)narrow.uordblks == info.uordblks &&
                (size_t)narrow.fordblks == info.fordblks,
            "mallinfo and mallinfo2 differ");
}

/* ---- texts ---------------------------------------------------------------------------------- */

static size_t number_after(const char *text, const char *key)
{
    const char *at = strstr(text, key);
    require(at != NULL, "no %s in %.400s", key, text);
    return strtoull(at + strlen(key), NULL, 10);
}

/* What `say` writes to stderr. */
static void stderr_of(void (*say)(void), char *text, size_t size)
{
    int ends[2];
    require(pipe(ends) == 0, "pipe");
    const int saved = dup(STDERR_FILENO);
    dup2(ends[1], STDERR_FILENO);
    say();
    dup2(saved, STDERR_FILENO);
    close(ends[1]);
    const ssize_t length = read(ends[0], text, size - 1);
    text[length > 0 ? length : 0] = '\0';
}

CHECK("malloc_stats tells live bytes in glibc's form")
{
    char text[2048];
    void *block = malloc(123456);
    const struct mallinfo2 info = mallinfo2();
    stderr_of(malloc_stats, text, sizeof text);
    require(number_after(text, "in use bytes     =") == info.uordblks, "%s", text);
    require(number_after(text, "system bytes     =") == info.arena, "%s", text);
    require(strncmp(text, "Arena 0:\n", 9) == 0, "%s", text);
    require(strstr(text, "\nTotal (incl. mmap):\n") != NULL, "%s", text);
    free(block);
}

static void *cancelled_in_stats(void *reached)
{
    pthread_cancel(pthread_self());
    malloc_stats(); /* writes to stderr, which is one */
    *(int *)reached = 1;
    pthread_testcancel();
    return NULL;
}

CHECK("malloc_stats is no cancellation point")
{
    int reached = 0;
    void *result;
    const pthread_t thread = thread_start(cancelled_in_stats, &reached);
    pthread_join(thread, &result);
    require(reached && result == PTHREAD_CANCELED, "cancelled in malloc_stats");
}

CHECK("malloc_info refuses options")
{
    require(malloc_info(1, stderr) == EINVAL, "malloc_info took an option");
}

CHECK("hz_stats_json tells the live blocks of each class")
{
    enum { COUNT_128 = 1000 };
    const size_t before = hz_counter("live_bytes"), blocks_before = hz_counter("live_blocks");
    for (size_t i = 0; i < COUNT_128; i++) blocks[0][i] = malloc(128);
    require(hz_counter("live_bytes") == before + COUNT_128 * 128, "live_bytes");
    require(hz_counter("live_blocks") == blocks_before + COUNT_128, "live_blocks");
    require(hz_counter("bytes\":128,\"live") >= COUNT_128, "live blocks of 128 bytes");
    require(hz_counter("live_bytes") == live(), "live_bytes is not uordblks");
}

/* Nor does what lies in a block, or has lain there, change it. */
CHECK("malloc_usable_size is right for a block that was never written")
{
    for (size_t size = 1; size < LARGEST; size += size / 7 + 1) {
        unsigned char *first = malloc(size);
        const size_t usable = malloc_usable_size(first);
        require(usable >= size, "%zu of %zu bytes", usable, size);
        memset(first, (int)size, usable);
        require(malloc_usable_size(first) == usable, "%zu bytes, then another number", usable);
        free(first);
        unsigned char *second = malloc(size);
        require(malloc_usable_size(second) == usable, "%zu bytes, then another number", usable);
        free(second);
    }
}

static void *tell_all(void *file)
{
    require(malloc_info(0, file) == 0, "malloc_info failed");
    return NULL;
}

CHECK("malloc_info needs no more stack than the smallest has")
{
    enum { LEAST_STACK = 16 << 10 };
    pthread_t thread;
    pthread_attr_t attributes;
    FILE *file = fopen("/dev/null", "w");
    pthread_attr_init(&attributes);
    require(pthread_attr_setstacksize(&attributes, LEAST_STACK) == 0, "the stack is refused");
    require(pthread_create(&thread, &attributes, tell_all, file) == 0, "pthread_create failed");
    (void)thread_end(thread);
    (void)fclose(file);
}

CHECK("uordblks does not rise on a trim, and what was free is gone")
{
    trim();
}
