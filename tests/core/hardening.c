/*
 * What HZ_HARDENING promises (core/SECURITY.md): each of these acts ends the program, at once or at
 * the next call of the same thread.
 *
 * Every act runs in a child, for several sizes. HZ_HARDENING says which of them are promised; under
 * `off` the program has nothing to check, and says so.
 */
#include "check.h"

#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Of C23: younger than the C library. */
__attribute__((weak)) void free_sized(void *block, size_t size);

enum { MIB = 1 << 20, CALLS = 200000 };

static const size_t sizes[] = {1, 8, 24, 100, 1000, 4096, 20000, 262144, 3 << 20};

typedef struct act {
    const char *sentence;
    void (*run)(size_t size);
    bool is_full;      /* only `full` promises it */
    size_t from, upto; /* for sizes of these bounds */
} act;

static unsigned char *fresh(size_t size)
{
    unsigned char *block = malloc(size);
    require(block != NULL, "no memory for %zu bytes", size);
    memset(block, 1, size);
    return block;
}

/* ---- freed twice ---------------------------------------------------------------------------- */

static void free_twice(size_t size)
{
    void *block = fresh(size);
    free(block);
    free(block);
}

static void free_twice_after_many(size_t size)
{
    void *block = fresh(size);
    free(block);
    for (int i = 0; i < 1000; i++) free(malloc(size));
    free(block);
}

static void *free_here(void *block)
{
    free(block);
    return NULL;
}

static void free_in_another_thread_too(size_t size)
{
    void *block = fresh(size);
    free(block);
    (void)thread_end(thread_start(free_here, block));
}

static void free_what_was_handed_out_again(size_t size)
{
    void *stale = fresh(size);
    free(stale);
    void *owned = fresh(size);
    free(stale);
    free(owned);
}

static void free_nothing_twice(size_t size)
{
    (void)size;
    void *block = malloc(0);
    free(block);
    free(block);
}

/* ---- not to be touched ---------------------------------------------------------------------- */

static void read_of_no_bytes(size_t size)
{
    (void)size;
    volatile unsigned char *block = malloc(0);
    (void)*block;
}

static void write_to_no_bytes(size_t size)
{
    (void)size;
    volatile unsigned char *block = malloc(0);
    *block = 1;
}

static void write_to_freed_large(size_t size)
{
    unsigned char *block = fresh(size);
    volatile unsigned char *middle = block + size / 2;
    free(block);
    *middle = 1;
}

static void write_a_mebibyte_behind(size_t size)
{
    volatile unsigned char *block = fresh(size);
    block[size + MIB - 1] ^= 1;
}

static void write_a_mebibyte_before(size_t size)
{
    volatile unsigned char *block = fresh(size);
    block[-MIB] ^= 1;
}

/* ---- a size that is not the block's ---------------------------------------------------------- */

static void free_with_far_too_small_a_size(size_t size)
{
    free_sized(fresh(size), size / 4);
}

static void free_with_too_large_a_size(size_t size)
{
    void *block = fresh(size);
    free_sized(block, malloc_usable_size(block) + 1);
}

static void free_with_one_byte_less(size_t size)
{
    free_sized(fresh(size), size - 1);
}

/* ---- around a block ------------------------------------------------------------------------- */

static void write_one_byte_behind(size_t size)
{
    unsigned char *block = fresh(size);
    block[size] ^= 1;
    free(block);
}

static void write_40_bytes_behind(size_t size)
{
    unsigned char *block = fresh(size);
    block[size + 39] ^= 1;
    free(block);
}

/* The lowest byte of the trailer, where a change of the bytes asked for would look possible. */
static void change_the_bytes_asked_for(size_t size)
{
    unsigned char *block = fresh(size);
    block[size + 39] ^= 2;
    free(block);
}

static void write_one_byte_before(size_t size)
{
    unsigned char *block = fresh(size);
    block[-1] ^= 1;
    free(block);
}

static void write_40_bytes_before(size_t size)
{
    unsigned char *block = fresh(size);
    block[-40] ^= 1;
    free(block);
}

static void write_behind_and_allocate(size_t size)
{
    unsigned char *block = fresh(size);
    block[size] ^= 1;
    (void)malloc(size);
}

/* ---- after a free --------------------------------------------------------------------------- */

static void write_after_free(size_t size)
{
    unsigned char *block = fresh(size);
    free(block);
    block[size - 1] = 1;
    for (int i = 0; i < CALLS; i++) free(malloc(size));
}

/* Where the seal will be. */
static void write_second_word_after_free(size_t size)
{
    unsigned char *block = fresh(size);
    free(block);
    block[8] = 1;
    for (int i = 0; i < CALLS; i++) free(malloc(size));
}

static void find_something_after_free(size_t size)
{
    unsigned char *block = fresh(size);
    free(block);
    for (size_t i = 0; i < size; i++)
        if (((volatile unsigned char *)block)[i] != 0) return;
    abort(); /* as promised */
}

static void find_something_in_a_fresh_block(size_t size)
{
    static unsigned char *blocks[500];
    for (size_t i = 0; i < COUNT(blocks); i++) blocks[i] = fresh(size);
    for (size_t i = 0; i < COUNT(blocks); i++) free(blocks[i]);
    for (size_t round = 0; round < COUNT(blocks); round++) {
        const unsigned char *block = malloc(size);
        for (size_t i = 0; i < size; i++)
            if (block[i] != 0) return;
    }
    abort(); /* as promised */
}

/* One time in 256 that is chance. */
static void get_the_same_block_again(size_t size)
{
    int same = 0;
    for (int i = 0; i < 1000; i++) {
        void *block = malloc(size);
        free(block);
        void *next = malloc(size);
        same += block == next;
        free(next);
    }
    if (same < 100) abort(); /* as promised */
}

static const act acts[] = {
    {"a second free", free_twice, false, 0, SIZE_MAX},
    {"a second free after a thousand others", free_twice_after_many, false, 0, SIZE_MAX},
    {"a second free by another thread", free_in_another_thread_too, false, 0, SIZE_MAX},
    {"a stale free and that of the next owner", free_what_was_handed_out_again, false, 0, SIZE_MAX},
    {"a second free of malloc(0)", free_nothing_twice, false, 1, 1},
    {"a read of malloc(0)", read_of_no_bytes, false, 1, 1},
    {"a write to malloc(0)", write_to_no_bytes, false, 1, 1},
    {"a free with a size that is far too small", free_with_far_too_small_a_size, false, 100,
     200000},
    {"a free with a size that is too large", free_with_too_large_a_size, false, 0, SIZE_MAX},
    {"a free with one byte less", free_with_one_byte_less, true, 0, SIZE_MAX},
    {"a write to a large block after its free", write_to_freed_large, true, 262144, SIZE_MAX},
    {"a write 1 MiB behind a block", write_a_mebibyte_behind, true, 0, 262144},
    {"a write 1 MiB before a block", write_a_mebibyte_before, true, 0, 262144},
    {"a write to the byte behind a block", write_one_byte_behind, true, 0, SIZE_MAX},
    {"a write 40 bytes behind a block", write_40_bytes_behind, true, 0, SIZE_MAX},
    {"a write to what tells a block's size", change_the_bytes_asked_for, true, 1, 1},
    {"a write to the byte before a block", write_one_byte_before, true, 0, SIZE_MAX},
    {"a write 40 bytes before a block", write_40_bytes_before, true, 0, SIZE_MAX},
    {"a write behind a block, and another call", write_behind_and_allocate, true, 0, SIZE_MAX},
    {"a write after a free, and reuse", write_after_free, true, 0, 20000},
    {"a write to the second word after a free, and reuse", write_second_word_after_free, true, 16,
     20000},
    {"a look at a freed block, which finds zeros", find_something_after_free, true, 0, SIZE_MAX},
    {"a look at a fresh block, which finds zeros", find_something_in_a_fresh_block, true, 0, 20000},
    {"a try to get the same block again, in vain", get_the_same_block_again, true, 0, SIZE_MAX},
};

typedef struct attempt {
    const act *tried;
    size_t size;
} attempt;

static void attempt_it(void *subject)
{
    const attempt *now = subject;
    now->tried->run(now->size);
}

static void require_end(const act *tried, size_t size)
{
    ending end;
    attempt now = {tried, size};
    run_apart(attempt_it, &now, 30, &end);
    require(end.signal == SIGABRT || end.signal == SIGSEGV,
            "%s, %zu bytes: signal %d, status %d; it said '%s'", tried->sentence, size, end.signal,
            end.status, end.said);
}

static bool is_step(const char *word)
{
    const char *step = getenv("HZ_HARDENING");
    return step != NULL && strcmp(step, word) == 0;
}

CHECK_IN(240, "every act that is promised to end the program does")
{
    if (!is_step("light") && !is_step("full")) return;
    for (const act *tried = acts; tried < acts + COUNT(acts); tried++) {
        if (tried->is_full && !is_step("full")) continue;
        for (size_t i = 0; i < COUNT(sizes); i++)
            if (sizes[i] >= tried->from && sizes[i] <= tried->upto) require_end(tried, sizes[i]);
    }
}

CHECK_IN(30, "the usable size of a fenced block is what was asked for")
{
    if (!is_step("full")) return;
    for (size_t size = 1; size < 5 * MIB; size += size / 7 + 1) {
        void *block = malloc(size), *aligned = memalign(4096, size);
        require(malloc_usable_size(block) == size, "%zu bytes", size);
        require(malloc_usable_size(aligned) == size, "%zu aligned bytes", size);
        free_sized(block, size);
        free(aligned);
    }
}

/* Blocks that wait in the quarantine keep their addresses, but not those of all that were freed.
 * Beside them lie the one in use and what the arena has claimed ahead, and, now and then, what the
 * arena left free before a page that it passes over, as the next block did not fit. */
CHECK_IN(30, "large blocks that wait in the quarantine are bounded")
{
    enum { BLOCKS = 40, BYTES = 60 * MIB, WAITING = 256 * MIB, BESIDE = 128 * MIB + BYTES };
    const uint64_t before = hz_counter("committed_bytes");
    for (int i = 0; i < BLOCKS; i++) {
        void *block = malloc(BYTES);
        require(block != NULL, "block %d", i);
        free(block);
    }
    const uint64_t more = hz_counter("committed_bytes") - before;
    require(more <= (uint64_t)WAITING + BESIDE, "%llu bytes more", (unsigned long long)more);
}

/* ---- what is right, and must not end the program --------------------------------------------- */

enum { ROUNDS = 150, CALLS_EACH = 4000, WHOLE_SPAN = 4 };

static void *_Atomic handed[WHOLE_SPAN];
static atomic_int rounds_done;

/* Frees what the other thread got last, and all else of its span; then the span goes. */
static void *free_what_is_handed_over(void *unused)
{
    while (atomic_load(&rounds_done) < ROUNDS) {
        if (atomic_load(&handed[WHOLE_SPAN - 1]) == NULL) continue;
        for (int i = 0; i < WHOLE_SPAN; i++) free(atomic_exchange(&handed[i], NULL));
        (void)malloc_trim(0);
        free(malloc(200000));
        (void)atomic_fetch_add(&rounds_done, 1);
    }
    return unused;
}

/* A thread's calls look at the block that it got last, though another thread may free it. */
CHECK_IN(60, "the block that a thread got last may go at any time")
{
    static void *blocks[CALLS_EACH];
    const pthread_t thread = thread_start(free_what_is_handed_over, NULL);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < CALLS_EACH; i++) blocks[i] = malloc(50);
        for (int i = 0; i < WHOLE_SPAN; i++) atomic_store(&handed[i], malloc(100000));
        for (int i = 0; i < CALLS_EACH; i++) free(blocks[i]);
        while (atomic_load(&rounds_done) <= round) (void)sched_yield();
    }
    (void)thread_end(thread);
}

/* Gets and frees large blocks, so that other threads get them. */
static void *pass_large_blocks_on(void *unused)
{
    enum { PASSES = 1500 };
    for (int i = 0; i < PASSES; i++) {
        free(fresh(200000 + (size_t)i % 4 * 50000));
        if (i % 16 == 0) (void)sched_yield();
    }
    return unused;
}

/* A call looks at the block that its thread got last, though another thread has it by now. */
CHECK_IN(60, "the block that a thread got last may become another thread's")
{
    pthread_t threads[12];
    for (size_t i = 0; i < COUNT(threads); i++)
        threads[i] = thread_start(pass_large_blocks_on, NULL);
    for (size_t i = 0; i < COUNT(threads); i++) (void)thread_end(threads[i]);
}
