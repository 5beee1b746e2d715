/*
 * What a program must not do ends it (core/SECURITY.md), with a message that begins with "hz: ",
 * before any harm is done.
 *
 * Each act runs in a child, for several sizes. After it the child goes on allocating: it must die
 * before a block that is still in use is given out again. HZ_HARDENING and HZ_DOUBLE_FREE say which
 * acts are promised to end it. In every second child a handler of SIGABRT allocates and frees, as
 * it may. TEST_CASES_ROUNDS repeats every act; TEST_ACT chooses some by their words. Two threads
 * that free one block within the same few nanoseconds are no case: without an atomic operation in
 * every free that stays a race.
 */
#include "check.h"

#include <malloc.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Of C23: younger than the C library. */
__attribute__((weak)) void free_sized(void *block, size_t size);

enum { AFTERMATH = 4096, MIB = 1 << 20, LARGE = 262144, CALLS = 200000, HANDLED = 7 };

static const size_t sizes[] = {1, 8, 24, 100, 1000, 4096, 20000, 32768, LARGE, 4 * MIB};

static void *fresh(size_t size)
{
    return filled_block(malloc(size), size);
}

static void *free_here(void *block)
{
    free(block);
    return NULL;
}

static void free_elsewhere(void *block)
{
    (void)thread_end(thread_start(free_here, block));
}

/* ---- freed twice ---------------------------------------------------------------------------- */

static void twice(size_t size)
{
    void *block = fresh(size);
    free(block);
    free(block);
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

/* The second copy is found by a trim. */
static void twice_and_a_trim(size_t size)
{
    enum { MANY = 3000 };
    static void *blocks[MANY];
    for (size_t i = 0; i < MANY; i++) blocks[i] = malloc(size);
    for (size_t i = 0; i < MANY; i++) free(blocks[i]);
    free(blocks[20]);
    (void)malloc_trim(0);
}

static void realloc_after_free(size_t size)
{
    void *block = fresh(size);
    free(block);
    block = realloc(block, size * 2);
    free(block);
}

/* ---- no block ------------------------------------------------------------------------------- */

static size_t detail; /* of the act */

static void into_a_block(size_t size)
{
    free((char *)fresh(size + detail) + detail);
}

static void half_way_into_a_block(size_t size)
{
    detail = (size / 2 + 31) / 16 * 16;
    into_a_block(size);
}

static void behind_a_block(size_t size)
{
    free((char *)fresh(size) + size + detail);
}

static void never_given_out(size_t size)
{
    char *block = fresh(size);
    free(block + malloc_usable_size(block) * detail);
}

static void beside_blocks(size_t size)
{
    free(fresh(size));
    free((void *)detail);
}

static void a_global(size_t size)
{
    static char global[4096];
    detail = (size_t)(global + 64);
    beside_blocks(size);
}

static void a_variable_on_the_stack(size_t size)
{
    _Alignas(16) char local[256] = {0};
    detail = (size_t)(local + 32);
    beside_blocks(size);
}

static void a_function(size_t size)
{
    void (*function)(size_t) = a_function;
    memcpy(&detail, &function, sizeof detail);
    beside_blocks(size);
}

static void memory_that_was_mapped(size_t size)
{
    detail = (size_t)mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    beside_blocks(size);
}

static void realloc_in_the_middle(size_t size)
{
    unsigned char *block = fresh(size + 64);
    block = realloc(block + 32, size + 100 + detail);
}

/* A mark in the top byte, which AArch64 ignores when it reads and writes. Other processors do not:
 * then a write there ends the program, as any wrong write does. */
static void *marked(size_t size)
{
    return (void *)((uintptr_t)fresh(size) | (size * 37 % 255 + 1) << 56);
}

static void with_a_mark(size_t size)
{
    free(marked(size));
}

static void realloc_with_a_mark(size_t size)
{
    free(realloc(marked(size), 5000));
}

/* ---- under hardening ------------------------------------------------------------------------ */

static void no_bytes_twice(size_t size)
{
    twice(size - 1);
}

static void read_of_no_bytes(size_t size)
{
    const volatile unsigned char *block = malloc(size - 1);
    (void)*block;
}

static void write_to_no_bytes(size_t size)
{
    *(volatile unsigned char *)malloc(size - 1) = 1;
}

static void free_with_a_quarter_of_the_size(size_t size)
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

static void write_to_a_freed_large_block(size_t size)
{
    volatile unsigned char *block = fresh(size);
    (void)mlock((const void *)(uintptr_t)block, detail);
    free((void *)(uintptr_t)block);
    block[size / 2] = 1;
}

/* `detail` bytes behind the first one, or, with the size, behind the last one. */
static void write_behind(size_t size)
{
    volatile unsigned char *block = fresh(size);
    block[size + detail] ^= 1;
    free((void *)(uintptr_t)block);
}

/* The lowest byte of the trailer, where a change of the bytes asked for would look possible. */
static void change_the_bytes_asked_for(size_t size)
{
    unsigned char *block = fresh(size);
    block[size + 39] ^= 2;
    free(block);
}

static void write_before(size_t size)
{
    volatile unsigned char *block = fresh(size);
    *(block - detail) ^= 1;
    free((void *)(uintptr_t)block);
}

static void write_behind_and_allocate(size_t size)
{
    unsigned char *block = fresh(size);
    block[size] ^= 1;
    (void)malloc(size);
}

static void write_after_free(size_t size)
{
    unsigned char *block = fresh(size);
    free(block);
    block[detail < size ? detail : size - 1] = 1;
    for (int i = 0; i < CALLS; i++) free(malloc(size));
}

/* ---- the acts ------------------------------------------------------------------------------- */

/* Which mode is promised to end the program. */
typedef enum promise { ALWAYS, LIGHT, FULL } promise;

static const struct act {
    const char *what;
    void (*commit)(size_t size);
    promise by;
    size_t detail, from, upto; /* the last two: for sizes of these bounds; 0: all */
} acts[] = {
    {"a double free", twice, ALWAYS, 0, 0, 0},
    {"a double free with a write between", twice_with_a_write_between, ALWAYS, 0, 0, 0},
    {"a double free that a trim finds", twice_and_a_trim, ALWAYS, 0, 16, LARGE},
    {"a realloc after free", realloc_after_free, ALWAYS, 0, 0, 0},
    {"one byte into a block", into_a_block, ALWAYS, 1, 0, 0},
    {"eight bytes into a block", into_a_block, ALWAYS, 8, 0, 0},
    {"sixteen bytes into a block", into_a_block, ALWAYS, 16, 0, 0},
    {"half way into a block", half_way_into_a_block, ALWAYS, 0, 0, 0},
    {"one page into a block", into_a_block, ALWAYS, 4096, 0, 0},
    {"a page behind a block", behind_a_block, ALWAYS, 4096 + 8, 0, 0},
    {"a gigabyte behind a block", behind_a_block, ALWAYS, (size_t)1 << 30, 0, 0},
    {"a slot that was never given out", never_given_out, ALWAYS, 300, 0, 0},
    {"a global", a_global, ALWAYS, 0, 0, 0},
    {"a variable on the stack", a_variable_on_the_stack, ALWAYS, 0, 0, 0},
    {"a function", a_function, ALWAYS, 0, 0, 0},
    {"memory that the program mapped", memory_that_was_mapped, ALWAYS, 0, 0, 0},
    {"the address 1", beside_blocks, ALWAYS, 1, 0, 0},
    {"the address 16", beside_blocks, ALWAYS, 16, 0, 0},
    {"an address that no process has", beside_blocks, ALWAYS, (size_t)1 << 63 | 64, 0, 0},
    {"the last address", beside_blocks, ALWAYS, UINTPTR_MAX - 15, 0, 0},
    {"a mark in its top byte", with_a_mark, ALWAYS, 0, 0, 0},
    {"a realloc with a mark in its top byte", realloc_with_a_mark, ALWAYS, 0, 0, 0},
    {"a realloc of the middle of a block", realloc_in_the_middle, ALWAYS, 0, 0, 0},
    {"the same to an impossible size", realloc_in_the_middle, ALWAYS, SIZE_MAX / 2, 0, 0},
    {"a second free of malloc(0)", no_bytes_twice, LIGHT, 0, 1, 1},
    {"a read of malloc(0)", read_of_no_bytes, LIGHT, 0, 1, 1},
    {"a write to malloc(0)", write_to_no_bytes, LIGHT, 0, 1, 1},
    {"a free with far too small a size", free_with_a_quarter_of_the_size, LIGHT, 0, 100, 200000},
    {"a free with too large a size", free_with_too_large_a_size, LIGHT, 0, 0, 0},
    {"a free with one byte less", free_with_one_byte_less, FULL, 0, 0, 0},
    {"a write to a freed large block", write_to_a_freed_large_block, FULL, 0, LARGE, 0},
    {"a write to a freed locked block", write_to_a_freed_large_block, FULL, LARGE, LARGE, 0},
    {"a write 1 MiB behind a block", write_behind, FULL, MIB - 1, 0, LARGE},
    {"a write 1 MiB before a block", write_before, FULL, MIB, 0, LARGE},
    {"a write to the byte behind a block", write_behind, FULL, 0, 0, 0},
    {"a write 40 bytes behind a block", write_behind, FULL, 39, 0, 0},
    {"a write to what tells a block's size", change_the_bytes_asked_for, FULL, 0, 1, 1},
    {"a write to the byte before a block", write_before, FULL, 1, 0, 0},
    {"a write 40 bytes before a block", write_before, FULL, 40, 0, 0},
    {"a write behind a block, and another call", write_behind_and_allocate, FULL, 0, 0, 0},
    {"a write after a free, and reuse", write_after_free, FULL, SIZE_MAX, 0, 20000},
    {"a write to the second word after a free", write_after_free, FULL, 8, 16, 20000},
};

/* What a program would do next. A thing given out twice is the harm that the death must forestall.
 */
static void go_on(size_t size)
{
    static void *blocks[AFTERMATH];
    const size_t count = size > 65536 ? 64 : AFTERMATH;
    for (size_t i = 0; i < count; i++) {
        blocks[i] = malloc(size);
        for (size_t j = 0; size <= 65536 && j < i && i < 600; j++)
            require(blocks[i] != blocks[j], "GIVEN TWICE");
    }
    for (size_t i = 0; i < count; i++) free(blocks[i]);
}

static void allocate_and_end(int number)
{
    void *blocks[100] = {NULL};
    (void)number;
    for (size_t i = 0; i < 3000; i++) {
        void **at = &blocks[i % 100];
        free(*at);
        *at = malloc(i % 7 == 0 ? i * 50 : i % 3000);
        if (*at == NULL) _exit(1);
    }
    _exit(HANDLED);
}

typedef struct attempt {
    const struct act *act;
    size_t size;
    bool is_handled; /* whether a handler of SIGABRT allocates, and ends the program */
} attempt;

/* A thread is started beforehand, so that what threads cost does not take the place of a freed
 * block. */
static void attempt_it(void *subject)
{
    const attempt *this = subject;
    if (this->is_handled) (void)signal(SIGABRT, allocate_and_end);
    free_elsewhere(malloc(16));
    detail = this->act->detail;
    this->act->commit(this->size);
    go_on(this->size);
}

/* Whether an address with a mark is another address, or a page may not be touched. */
static bool may_fault(const struct act *act)
{
#ifdef __aarch64__
    const bool is_marked = false;
#else
    const bool is_marked = act->commit == with_a_mark || act->commit == realloc_with_a_mark;
#endif
    return is_marked || act->by >= LIGHT ||
           (is_full() && act->commit == twice_with_a_write_between);
}

static void require_end(const struct act *act, size_t size, bool is_handled)
{
    ending end;
    attempt this = {act, size, is_handled};
    run_apart(attempt_it, &this, 30, &end);
    const bool is_told = strstr(end.said, "hz: ") != NULL;
    const bool is_ended = is_handled ? end.status == HANDLED : end.signal == SIGABRT;
    require((is_told && is_ended) || (may_fault(act) && end.signal == SIGSEGV),
            "%s, %zu bytes, handled: %d: signal %d, status %d; it said '%.200s'", act->what, size,
            is_handled, end.signal, end.status, end.said);
}

static void require_ends(const struct act *act)
{
    if ((act->by == LIGHT && !is_hardened()) || (act->by == FULL && !is_full())) return;
    for (uint64_t round = 0; round < number_chosen("TEST_CASES_ROUNDS", 1); round++)
        for (size_t i = 0; i < COUNT(sizes); i++)
            if (sizes[i] >= act->from && (act->upto == 0 || sizes[i] <= act->upto))
                require_end(act, sizes[i], (i + round) % 2 == 1);
}

CHECK_IN(300, "every act that is promised to end the program does")
{
    const char *only = getenv("TEST_ACT");
    for (size_t i = 0; i < COUNT(acts); i++)
        if (only == NULL || strstr(acts[i].what, only) != NULL) require_ends(&acts[i]);
}
