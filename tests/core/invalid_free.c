/*
 * A block that is freed twice, and a pointer that is no block, end the program with a message
 * before any harm is done.
 *
 * Each case runs in a child. After the wrong call the child goes on allocating: it must die
 * (SIGABRT, and a message that begins with "hz: ", or TEST_DEATH) before a block that is still in
 * use is given out again. If no request takes the block again, the program may also go on; not so
 * with HZ_DOUBLE_FREE=at_call. TEST_CASES_ROUNDS repeats every case. Two threads that free one
 * block within the same few nanoseconds are not a case: without an atomic operation in every free
 * that stays a race.
 */
#include "check.h"

#include <malloc.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <signal.h>
#include <unistd.h>

enum { AFTERMATH = 4096 };

#ifdef __aarch64__
enum { TAG_IS_READ = 0 };
#else
enum { TAG_IS_READ = 1 }; /* whether an address with such a mark is another address */
#endif

static void go_on(size_t size);

static const size_t sizes[] = {8, 24, 100, 1000, 4096, 32768, 262144, 4u << 20};

static void *fresh(size_t size)
{
    unsigned char *block = malloc(size);
    require(block != NULL, "no memory for %zu bytes", size);
    block[0] = 1;
    return block;
}

static void *free_in_thread(void *block)
{
    free(block);
    return NULL;
}

static void free_elsewhere(void *block)
{
    (void)thread_end(thread_start(free_in_thread, block));
}

static void *allocate_in_thread(void *size)
{
    return fresh((size_t)(uintptr_t)size);
}

static void *fresh_elsewhere(size_t size)
{
    return thread_end(thread_start(allocate_in_thread, (void *)(uintptr_t)size));
}

/* ---- twice ---------------------------------------------------------------------------------- */

static void twice(size_t size)
{
    void *block = fresh(size);
    free(block);
    free(block);
}

/* The pages of a large block may serve others by then, and its start lie before their first block:
 * such a free goes by, and harms none (core/SECURITY.md). */
static void twice_after_churn_of_other_sizes(size_t size)
{
    if (size > 262144) return twice(size);
    void *block = fresh(size);
    free(block);
    for (size_t i = 0; i < 20000; i++) free(malloc(size == 64 ? 80 : 64));
    free(block);
}

static void realloc_after_free(size_t size)
{
    void *block = fresh(size);
    free(block);
    block = realloc(block, size * 2);
    free(block);
}

static void twice_an_aligned_block(size_t size)
{
    void *block = memalign(256, size);
    free(block);
    free(block);
}

/* ---- twice, in two threads ------------------------------------------------------------------ */

static void elsewhere_then_here(size_t size)
{
    void *block = fresh(size);
    free_elsewhere(block);
    free(block);
}

static void a_dead_threads_block_twice(size_t size)
{
    void *block = fresh_elsewhere(size);
    free(block);
    free(block);
}

typedef struct meeting {
    pthread_barrier_t barrier;
    void *block;
} meeting;

/* Frees, then stays alive, so that the block waits in this thread's magazine or ring. */
static void *free_and_stay(void *argument)
{
    meeting *shared = argument;
    free(shared->block);
    (void)pthread_barrier_wait(&shared->barrier);
    for (;;) (void)pause();
    return NULL;
}

static void while_parked_with_a_living_thread(size_t size)
{
    static meeting shared; /* its thread lives on */
    shared.block = fresh(size);
    (void)pthread_barrier_init(&shared.barrier, NULL, 2);
    (void)thread_start(free_and_stay, &shared);
    (void)pthread_barrier_wait(&shared.barrier);
    free(shared.block);
}

/* ---- no block ------------------------------------------------------------------------------- */

static char global[4096];

static void *in_block(size_t size, size_t offset)
{
    return (char *)fresh(size + offset) + offset;
}

static void *behind_block(size_t size, size_t offset)
{
    return (char *)fresh(size) + size + offset;
}

static void *half_way_in(size_t size, size_t nothing)
{
    (void)nothing;
    return in_block(size, (size / 2 + 31) / 16 * 16);
}

static void *never_given_out(size_t size, size_t steps)
{
    char *block = fresh(size);
    return block + malloc_usable_size(block) * steps;
}

static void *beside_blocks(size_t size, size_t address)
{
    free(fresh(size));
    return (void *)address;
}

static void *mapped(size_t size, size_t bytes)
{
    free(fresh(size));
    return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static const struct {
    const char *what;
    void *(*make)(size_t size, size_t detail);
    size_t detail;
} no_blocks[] = {
    {"one byte into a block", in_block, 1},
    {"eight bytes into a block", in_block, 8},
    {"sixteen bytes into a block", in_block, 16},
    {"half way into a block", half_way_in, 0},
    {"one page into a block", in_block, 4096},
    {"a page behind a block", behind_block, 4096 + 8},
    {"a gigabyte behind a block", behind_block, (size_t)1 << 30},
    {"a slot that was never given out", never_given_out, 300},
    {"a global", beside_blocks, 0},
    {"a variable on the stack", beside_blocks, 0},
    {"a function", beside_blocks, 0},
    {"memory that the program mapped", mapped, 1 << 20},
    {"the address 1", beside_blocks, 1},
    {"the address 16", beside_blocks, 16},
    {"an address that no process has", beside_blocks, (size_t)1 << 63 | 64},
    {"the last address", beside_blocks, UINTPTR_MAX - 15},
};

static size_t chosen; /* row of no_blocks */

static void free_what_is_no_block(size_t size)
{
    _Alignas(16) char local[256];
    void (*function)(size_t) = free_what_is_no_block;
    size_t detail = no_blocks[chosen].detail;
    const char *what = no_blocks[chosen].what;
    local[0] = (char)size;
    if (strcmp(what, "a global") == 0) detail = (size_t)(global + 64);
    if (strcmp(what, "a variable on the stack") == 0) detail = (size_t)(local + 32);
    if (strcmp(what, "a function") == 0) memcpy(&detail, &function, sizeof detail);
    free(no_blocks[chosen].make(size, detail));
}

/* A mark in the top byte, which AArch64 ignores when it reads and writes. */
static void *tagged(size_t size, unsigned tag)
{
    return (void *)((uintptr_t)fresh(size) | (uintptr_t)tag << 56);
}

static void realloc_in_the_middle(size_t size)
{
    unsigned char *block = fresh(size + 64);
    block = realloc(block + 32, size + 100);
}

/* ---- every address -------------------------------------------------------------------------- */

/* hz knows every start of a block: for any other address the usable size is 0, and a free would be
 * refused. */
static void require_only_its_start(unsigned char *block, size_t size)
{
    const size_t usable = malloc_usable_size(block);
    require(usable >= size, "%zu bytes: usable %zu", size, usable);
    for (size_t at = 1; at < usable; at += at < 5000 ? 1 : 15) {
        require(malloc_usable_size(block + at) == 0,
                "byte %zu of a block of %zu bytes passes for a block", at, usable);
    }
}

static void require_only_starts(size_t size)
{
    static unsigned char *blocks[200];
    for (size_t i = 0; i < COUNT(blocks); i++) blocks[i] = malloc(size);
    for (size_t i = 0; i < COUNT(blocks); i += 3) {
        free(blocks[i]);
        blocks[i] = NULL;
    }
    for (size_t i = 0; i < COUNT(blocks); i++) {
        if (blocks[i] != NULL) {
            require_only_its_start(blocks[i], size);
            free(blocks[i]);
        }
    }
}

CHECK_IN(60, "only the starts of blocks pass for blocks")
{
    for (size_t size = 1; size < 600000; size += size / 5 + 1) require_only_starts(size);
}

/* ---- what a write hides --------------------------------------------------------------------- */

static void write_after_free(void *nothing)
{
    (void)nothing;
    for (size_t i = 0; i < COUNT(sizes) && sizes[i] < 262144; i++) {
        unsigned char *block = fresh(sizes[i] + 16);
        free(block);
        memset(block, 0x5a, 24);
        go_on(sizes[i] + 16);
    }
}

CHECK_IN(60, "a write to a block after its only free is said and does no harm")
{
    ending result;
    run_apart(write_after_free, NULL, 20, &result);
    require(result.signal == 0 && result.status == 0, "signal %d, status %d; it said '%.200s'",
            result.signal, result.status, result.said);
    require(strstr(result.said, "written to after it had been freed") != NULL, "it said '%.200s'",
            result.said);
}

typedef struct marked {
    void *block;
    bool is_resized;
} marked;

static void give_marked(void *subject)
{
    const marked *this = subject;
    free(this->is_resized ? realloc(this->block, 5000) : this->block);
    go_on(64);
}

/* Other processors do not ignore the byte: then a write there ends the program, as any wrong write
 * does. */
CHECK_IN(60, "a pointer with a mark in its top byte is refused")
{
    for (unsigned tag = 1; tag < 256; tag = tag * 3 + 1) {
        for (size_t i = 0; i < 2 * COUNT(sizes); i++) {
            ending result;
            marked this = {tagged(sizes[i / 2], tag), i % 2 == 1};
            run_apart(give_marked, &this, 20, &result);
            if (result.signal == SIGSEGV && TAG_IS_READ) continue;
            require(result.signal == SIGABRT && strstr(result.said, "hz: ") != NULL,
                    "tag %x, %zu bytes: signal %d, status %d; it said '%.200s'", tag, sizes[i / 2],
                    result.signal, result.status, result.said);
        }
    }
}

/* After a write to a block that was freed, its next free cannot be told from a first one. */
static void twice_with_a_write_between(size_t size)
{
    unsigned char *block = fresh(size);
    const size_t bytes = malloc_usable_size(block);
    free(block);
    memset(block, 0x5a, bytes < 24 ? bytes : 24);
    free(block);
}

/* ---- the cases ------------------------------------------------------------------------------ */

typedef struct crime {
    void (*commit)(size_t size);
    size_t size;
} crime;

/* What a program would do next. A thing given out twice is the harm that the death must forestall.
 */
static void go_on(size_t size)
{
    static void *blocks[AFTERMATH];
    const size_t count = size > 65536 ? 64 : AFTERMATH;
    for (size_t i = 0; i < count; i++) {
        blocks[i] = malloc(size);
        for (size_t j = 0; size <= 65536 && j < i && i < 600; j++) {
            if (blocks[i] == blocks[j]) {
                (void)!write(STDERR_FILENO, "GIVEN TWICE", 11);
                _exit(3);
            }
        }
    }
    for (size_t i = 0; i < count; i++) free(blocks[i]);
}

/* A thread is started beforehand, so that what threads cost does not take the place of a freed
 * block. */
static void commit(void *subject)
{
    const crime *this = subject;
    free_elsewhere(malloc(16));
    this->commit(this->size);
    go_on(this->size);
}

static void require_death(void (*act)(size_t), size_t size, bool may_live)
{
    const char *words = getenv("TEST_DEATH");
    crime this = {act, size};
    ending result;
    words = words != NULL ? words : "hz: ";
    run_apart(commit, &this, 20, &result);
    if (may_live && result.signal == 0 && result.status == 0) return;
    require(result.signal == SIGABRT,
            "%zu bytes: signal %d, status %d, not an abort; it said '%.200s'", size, result.signal,
            result.status, result.said);
    require(strstr(result.said, words) != NULL, "%zu bytes: it said '%.200s'", size, result.said);
}

static void require_deaths_unless(void (*act)(size_t), bool may_live)
{
    const uint64_t rounds = number_chosen("TEST_CASES_ROUNDS", 1);
    for (uint64_t round = 0; round < rounds; round++)
        for (size_t i = 0; i < COUNT(sizes); i++) require_death(act, sizes[i], may_live);
}

static void require_deaths(void (*act)(size_t))
{
    require_deaths_unless(act, false);
}

static void require_no_harm(void (*act)(size_t))
{
    const char *double_free = getenv("HZ_DOUBLE_FREE");
    require_deaths_unless(act, double_free == NULL || strcmp(double_free, "at_call") != 0);
}

CHECK_IN(120, "a free of what is no block, such as a global, ends the program")
{
    for (chosen = 0; chosen < COUNT(no_blocks); chosen++) {
        printf("# %s\n", no_blocks[chosen].what);
        require_deaths(free_what_is_no_block);
    }
}

static const struct {
    const char *what;
    void (*act)(size_t size);
    void (*judge)(void (*act)(size_t size));
} acts[] = {
    {"a double free", twice, require_deaths},
    {"a double free after churn of other sizes", twice_after_churn_of_other_sizes, require_deaths},
    {"a double free with a write between", twice_with_a_write_between, require_deaths},
    {"a realloc after free", realloc_after_free, require_deaths},
    {"a double free of a dead thread's block", a_dead_threads_block_twice, require_deaths},
    {"a realloc of the middle of a block", realloc_in_the_middle, require_deaths},
    {"a double free of an aligned block", twice_an_aligned_block, require_no_harm},
    {"a free elsewhere, then here", elsewhere_then_here, require_no_harm},
    {"a free of a block that is parked with a living thread", while_parked_with_a_living_thread,
     require_no_harm},
};

CHECK_IN(240, "a second free, such as one of a dead thread's block, ends the program or harms none")
{
    for (size_t i = 0; i < COUNT(acts); i++) {
        printf("# %s\n", acts[i].what);
        acts[i].judge(acts[i].act);
    }
}
