/*
 * What mallinfo2, malloc_info, malloc_stats and hz_stats_json say of live and free memory is true
 * to the byte while the other threads are at rest. And `accounting --xml` prints the bytes that it
 * has and what malloc_info says, on any allocator (test_core.py).
 */
#include <errno.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

enum { THREADS = 4, BLOCKS = 3000, LARGEST = 600 * 1024, ROUNDS = 6 };

static void *blocks[THREADS][BLOCKS];
static pthread_barrier_t turn;

static void require_live(size_t expected, const char *when)
{
    const size_t live = mallinfo2().uordblks;
    require(live == expected, "%zu live, not %zu, %s", live, expected, when);
}

static size_t live_first(void)
{
    free(malloc(1));
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

static size_t usable_of_all(void)
{
    size_t bytes = 0;
    for (size_t i = 0; i < THREADS * BLOCKS; i++)
        bytes += malloc_usable_size(blocks[i / BLOCKS][i % BLOCKS]);
    return bytes;
}

CHECK("uordblks is the usable bytes of a block that is resized")
{
    char *block = NULL;
    const size_t before = live_first();
    for (size_t i = 0; i < 400; i++) {
        block = realloc(block, i * i * i % 4093 * 16384 / (i % 7 == 0 ? 1000 : 1) + 1);
        require_live(before + malloc_usable_size(block), "of a block that is resized");
    }
}

static void *worker(void *number)
{
    const size_t own = (size_t)number - 1;
    uint64_t state = own + 7;
    for (size_t round = 0; round < ROUNDS; round++) {
        void **mine = blocks[own], **others = blocks[(own + round) % THREADS];
        pthread_barrier_wait(&turn); /* the others' blocks are freed, own ones made */
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
    return NULL;
}

CHECK_IN(60, "uordblks is the usable bytes of the blocks of all threads")
{
    crowd all;
    pthread_barrier_init(&turn, NULL, THREADS + 1);
    crowd_start(&all, THREADS, worker);
    const size_t before = live_first();
    for (int round = 0; round < ROUNDS; round++) {
        for (int turns = 0; turns < 3; turns++) pthread_barrier_wait(&turn);
        require_live(before + usable_of_all(), "beside threads at rest");
        pthread_barrier_wait(&turn);
    }
    crowd_end(&all);
    require(mallinfo2().uordblks <= before, "%zu live, %zu before", mallinfo2().uordblks, before);
}

CHECK("mallinfo and mallinfo2 agree, and what is used and free adds up, also after a trim")
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
    for (size_t i = 0; i < 50; i++) blocks[1][i] = memset(malloc(1 << 20), 1, 1 << 20);
    require_live(info.uordblks + ((size_t)50 << 20), "with 50 MiB more");
    for (size_t i = 0; i < 50; i++) free(blocks[1][i]);
    const struct mallinfo2 full = mallinfo2();
    malloc_trim(0);
    require_live(info.uordblks, "after the trim");
    require(mallinfo2().fordblks + full.keepcost <= full.fordblks, "%zu, then %zu free",
            full.fordblks, mallinfo2().fordblks);
}

/* ---- texts ---------------------------------------------------------------------------------- */

static size_t number_after(const char *text, const char *key)
{
    const char *at = strstr(text, key);
    require(at != NULL, "no %s in %.400s", key, text);
    return strtoull(at + strlen(key), NULL, 10);
}

static void say_statistics(void *unused)
{
    (void)unused;
    malloc_stats();
}

CHECK("malloc_stats tells live bytes in glibc's form, and malloc_info refuses options")
{
    ending said;
    const struct mallinfo2 info = mallinfo2();
    run_apart(say_statistics, NULL, 10, &said);
    require(number_after(said.said, "in use bytes     =") == info.uordblks, "%s", said.said);
    require(number_after(said.said, "system bytes     =") == info.arena, "%s", said.said);
    require(strncmp(said.said, "Arena 0:\n", 9) == 0, "%s", said.said);
    require(strstr(said.said, "\nTotal (incl. mmap):\n") != NULL, "%s", said.said);
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
    require_live(hz_counter("live_bytes"), "as live_bytes");
}

PROGRAM("--xml")
{
    static char buffer[1 << 16];
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    for (size_t i = 0; i < 2000; i++) blocks[0][i] = malloc(i * 37 % 3000);
    for (size_t i = 0; i < 2000; i += 3) free(blocks[0][i]);
    (void)memset(malloc(1 << 20), 1, 1 << 20);
    const struct mallinfo2 info = mallinfo2();
    printf("%zu\n", info.uordblks + info.hblkhd);
    malloc_info(0, stdout);
}
