/*
 * What is right, or harms none, must not end the program: under no HZ_HARDENING. And what hz says
 * of it ends nothing, whatever the thread and its stderr are.
 */
#include "check.h"

#include <malloc.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Of C23: younger than the C library. */
__attribute__((weak)) void free_sized(void *block, size_t size);
__attribute__((weak)) void free_aligned_sized(void *block, size_t alignment, size_t size);

enum { MIB = 1 << 20 };

static const size_t sizes[] = {1, 8, 24, 100, 1000, 4096, 20000};

static void *fresh(size_t size)
{
    return filled_block(malloc(size), size);
}

CHECK("a full free, and a fresh block, leave zeroes, in random order")
{
    int same = 0;
    if (!is_full()) return;
    for (size_t i = 0; i < COUNT(sizes) && sizes[i] <= 20000; i++) {
        static unsigned char *blocks[500];
        for (size_t j = 0; j < COUNT(blocks); j++) blocks[j] = fresh(sizes[i]);
        for (size_t j = 0; j < COUNT(blocks); j++) free(blocks[j]);
        for (size_t at = 0; at < sizes[i]; at++)
            require(((volatile unsigned char *)blocks[499])[at] == 0, "byte %zu stays", at);
        for (size_t j = 0; j < COUNT(blocks); j++) {
            blocks[j] = malloc(sizes[i]);
            for (size_t at = 0; at < sizes[i]; at++) require(blocks[j][at] == 0, "byte %zu", at);
        }
        for (int round = 0; round < 1000; round++) {
            void *block = malloc(sizes[i]);
            free(block);
            void *next = malloc(sizes[i]);
            same += block == next; /* one time in 256 */
            free(next);
        }
    }
    require(same < 300, "%d times the same block", same);
}

CHECK("the usable size of a fenced block is what was asked for")
{
    for (size_t size = 1; is_full() && size < 5 * MIB; size += size / 7 + 1) {
        void *block = malloc(size), *aligned = memalign(4096, size);
        require(malloc_usable_size(block) == size, "%zu bytes", size);
        require(malloc_usable_size(aligned) == size, "%zu aligned bytes", size);
        free_sized(block, size);
        free(aligned);
    }
}

CHECK("free_sized and free_aligned_sized take blocks back")
{
    if (free_sized == NULL) return;
    free_sized(NULL, 0);
    free_aligned_sized(NULL, 64, 0);
    for (size_t size = 0; size < 300000; size = size * 2 + 1) {
        for (int i = 0; i < 300; i++) {
            free_sized(malloc(size), size);
            free_aligned_sized(aligned_alloc(256, size), 256, size);
        }
    }
    require(resident_bytes() < (64u << 20), "%zu bytes are resident: they leak", resident_bytes());
}

/* Blocks that wait in the quarantine keep their addresses, but not those of all that were freed.
 * Beside them lie the one in use and what the arena has claimed ahead, and, now and then, what the
 * arena left free before a page that it passes over, as the next block did not fit. */
CHECK("large blocks that wait in the quarantine are bounded")
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

/* ---- what is handed out --------------------------------------------------------------------- */

/* Whether a word lies near this process's blocks, its stack or its code. */
static bool is_address(uint64_t word, const void *block)
{
    const uint64_t near = (uint64_t)1 << 36;
    const uint64_t known[] = {(uint64_t)(uintptr_t)block, (uint64_t)(uintptr_t)&word,
                              (uint64_t)(uintptr_t)sizes};
    for (size_t i = 0; i < COUNT(known); i++)
        if (word - known[i] + near < 2 * near) return true;
    return false;
}

/* One constant at most; everything else as it came from the system. */
static void require_tells_nothing(const uint64_t *block, size_t size)
{
    static uint64_t constant;
    for (size_t i = 0; i < size / 8; i++) {
        if (block[i] == 0) continue;
        if (constant == 0) constant = block[i];
        require(block[i] == constant, "%zu bytes: word %zu is %#llx, and %#llx elsewhere", size, i,
                (unsigned long long)block[i], (unsigned long long)constant);
        require(!is_address(block[i], block), "%zu bytes: word %zu is the address %#llx", size, i,
                (unsigned long long)block[i]);
    }
}

/* Also blocks that were freed, all zero, and are handed out again. */
CHECK_IN(60, "no block that is handed out tells an address")
{
    void *blocks[100];
    for (size_t i = 0; i < 60; i++) {
        const size_t size = i < 3 ? 200000 : 16u << i % 12;
        for (size_t j = 0; j < 100; j++) {
            blocks[j] = malloc(size);
            require_tells_nothing(blocks[j], size);
            memset(blocks[j], 0, size);
        }
        for (size_t j = 0; j < 100; j++) free(blocks[j]);
    }
}

/* ---- what hz says --------------------------------------------------------------------------- */

static void write_after_free(size_t size)
{
    unsigned char *block = fresh(size);
    free(block);
    memset(block, 0x5a, 24);
    for (int i = 0; i < 4096; i++) require(malloc(size) != block, "it was handed out");
}

static void write_after_frees(void *unused)
{
    (void)unused;
    for (size_t size = 24; size < 262144; size *= 3) write_after_free(size);
}

static void write_after_free_unheard(void *unused)
{
    int ends[2];
    sigset_t pending;
    (void)unused;
    require(pipe(ends) == 0 && dup2(ends[1], STDERR_FILENO) >= 0, "no pipe");
    (void)close(ends[0]);
    write_after_free(100);
    require(write(STDERR_FILENO, "", 0) == 0 && sigpending(&pending) == 0, "no stderr");
    if (sigismember(&pending, SIGPIPE)) _exit(1);
}

static void *free_some(void *unused)
{
    for (size_t size = MIB / 16; size < MIB / 8; size += MIB / 1024) free(fresh(size));
    return unused;
}

CHECK("what ended threads had in quarantine goes back to the system at a trim")
{
    crowd all;
    const size_t before = resident_bytes();
    crowd_start(&all, 16, free_some);
    crowd_end(&all);
    (void)malloc_trim(0);
    require(resident_bytes() <= before + 16 * MIB, "%zu bytes stay", resident_bytes() - before);
}

/* hz's message needs a write, where the C library would end the thread. */
static void *write_after_free_though_cancelled(void *unused)
{
    (void)pthread_cancel(pthread_self());
    write_after_free(100);
    (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &(int){0});
    return unused;
}

static void *free_no_block_though_cancelled(void *unused)
{
    (void)pthread_cancel(pthread_self());
    free((void *)0x123450);
    return unused;
}

static void run_in_thread(void *body)
{
    void *result = thread_end(thread_start(*(void *(**)(void *))body, NULL));
    require(result != PTHREAD_CANCELED, "hz let the thread end");
}

static void require_said(void (*act)(void *), void *subject)
{
    ending result;
    run_apart(act, subject, 20, &result);
    require(result.signal == 0 && result.status == 0 &&
                strstr(result.said, "written to after it had been freed") != NULL,
            "signal %d, status %d; it said '%.200s'", result.signal, result.status, result.said);
}

CHECK_IN(60, "a write to a block after its only free is said, and ends nothing")
{
    ending result;
    void *(*body)(void *) = free_no_block_though_cancelled;
    run_apart(run_in_thread, &body, 20, &result);
    require(result.signal == SIGABRT, "signal %d: '%.200s'", result.signal, result.said);
    if (is_hardened()) return; /* there the message is the last one */
    require_said(write_after_frees, NULL);
    body = write_after_free_though_cancelled;
    require_said(run_in_thread, &body);
    require_well(write_after_free_unheard, NULL, 20);
}
