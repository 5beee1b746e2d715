/*
 * The interface of malloc and its kin: sizes, alignments, contents, errors, and the blocks that the
 * C library makes, before main and after it. Preloaded, and linked to libhz.a (TEST_DROPPED_IN).
 * TEST_SEED and TEST_CALLS change the hostile requests.
 */
#include "check.h"

#include <errno.h>
#include <malloc.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#ifdef TEST_DROPPED_IN
#include <hz/hz.h>
#endif

static size_t off(const void *block, size_t alignment)
{
    return (uintptr_t)block & (alignment - 1);
}

/* Writes all that was asked for, at most a megabyte of it at both ends, and frees it. */
static void require_good(unsigned char *block, size_t alignment, size_t size, const char *by)
{
    const size_t part = size < 1 << 20 ? size : 1 << 20;
    require(block != NULL, "%s of %zu bytes at %zu gave NULL", by, size, alignment);
    require(size < (size_t)1 << 48, "%s granted %zu bytes", by, size);
    require(off(block, alignment) == 0, "%s of %zu bytes at %zu gave %p", by, size, alignment,
            (void *)block);
    require(malloc_usable_size(block) >= size, "%s of %zu bytes: usable %zu", by, size,
            malloc_usable_size(block));
    if (size <= (size_t)1 << 30) {
        memset(block, 0x77, part);
        memset(block + size - part, 0x77, part);
    }
    free(block);
}

/* ---- every way to ask for memory ------------------------------------------------------------ */

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *block, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

/* realloc of a live block: on failure the block must be whole, and is freed here. */
static void *realloc_grown(size_t size)
{
    unsigned char *block = malloc(100);
    if (block == NULL) return NULL;
    block[0] = 0x5a;
    block[99] = 0xa5;
    void *grown = realloc(block, size);
    if (grown == NULL && block[0] == 0x5a && block[99] == 0xa5) {
        const int reason = errno;
        free(block);
        errno = reason;
    }
    return grown;
}

/* posix_memalign gives its reason as its result, and leaves the pointer alone when it fails. */
static void *posix_memaligned(size_t alignment, size_t size)
{
    void *untouched = &untouched, *block = untouched;
    const int saved = errno, reason = posix_memalign(&block, alignment, size);
    require(reason == 0 || block == untouched, "posix_memalign touched the pointer");
    require(errno == (reason == ENOMEM ? ENOMEM : saved), "%d and errno %d", reason, errno);
    errno = reason;
    return reason == 0 ? block : NULL;
}

/* clang-format off */
#define WAYS(ROW)                                    \
    ROW(malloc, malloc(size))                        \
    ROW(calloc_one, calloc(1, size))                 \
    ROW(calloc_many, calloc(size, 1))                \
    ROW(realloc, realloc(NULL, size))                \
    ROW(realloc_of_a_block, realloc_grown(size))     \
    ROW(reallocarray, reallocarray(NULL, size, 1))   \
    ROW(memalign_64, memalign(64, size))             \
    ROW(memalign_65536, memalign(65536, size))       \
    ROW(aligned_alloc, aligned_alloc(64, size))      \
    ROW(posix_memalign, posix_memaligned(64, size))  \
    ROW(valloc, valloc(size))                        \
    ROW(pvalloc, pvalloc(size))                      \
    ROW(libc_malloc, __libc_malloc(size))            \
    ROW(libc_calloc, __libc_calloc(1, size))         \
    ROW(libc_realloc, __libc_realloc(NULL, size))    \
    ROW(libc_memalign, __libc_memalign(64, size))
/* clang-format on */
#define FUNCTION(name, call)                                                                       \
    static void *take_##name(size_t size)                                                          \
    {                                                                                              \
        return call;                                                                               \
    }
#define NAMED(name, call) {#name, take_##name},
WAYS(FUNCTION)

typedef struct way {
    const char *name;
    void *(*take)(size_t size);
} way;

static const way ways[] = {WAYS(NAMED)};

/* ---- whose they are ------------------------------------------------------------------------- */

static size_t live(void)
{
#ifdef TEST_DROPPED_IN
    return hz_usage_now().live_bytes;
#else
    return hz_counter("live_bytes");
#endif
}

static void require_ours(void *block, size_t before, const char *what)
{
    require(block != NULL, "%s gave NULL", what);
    require(live() == before + malloc_usable_size(block), "%s is not hz's", what);
    free(block);
    require(live() == before, "free after %s is not hz's", what);
}

CHECK("every way to ask for memory, also the C library's, is hz's")
{
    char *text = NULL;
    if (getenv("HZ_HARDENING") != NULL) return; /* usable bytes are those asked for */
    free(malloc(1));
    const size_t before = live();
    for (size_t i = 0; i < COUNT(ways); i++)
        for (size_t size = 10; size < 3000000; size *= 7)
            require_ours(ways[i].take(size), before, ways[i].name);
    require_ours(strdup("some text that is copied"), before, "strdup");
    require_ours(strndup("two and more", 3), before, "strndup");
    require_ours(wcsdup(L"three"), before, "wcsdup");
    require(asprintf(&text, "%0900d", 1) == 900, "asprintf failed");
    require_ours(text, before, "asprintf");
#ifdef __GLIBC__
    require(mallinfo2().uordblks == live(), "mallinfo2 is not hz's");
    require(mallopt(M_MMAP_THRESHOLD, 1 << 20) == 1 && mallopt(-1000, 1) == 0, "nor is mallopt");
#endif
}

/* ---- sizes ---------------------------------------------------------------------------------- */

CHECK("zero bytes give a unique block, and realloc(block, 0) frees")
{
    for (size_t i = 0; i < COUNT(ways); i++) {
        if (ways[i].take == take_realloc_of_a_block) continue;
        void *first = ways[i].take(0), *second = ways[i].take(0);
        require(first != NULL && second != NULL && first != second, "%s", ways[i].name);
        free(first);
        free(second);
    }
    size_t settled = 0;
    for (int i = 0; i < 300000; i++) {
        require(realloc(malloc(1000), 0) == NULL, "realloc(block, 0) gave a block");
        if (i == 1000) settled = resident_bytes();
    }
    require(resident_bytes() < settled + (2u << 20), "%zu bytes, then %zu", settled,
            resident_bytes());
}

/* ---- alignments ----------------------------------------------------------------------------- */

CHECK("blocks are aligned as was asked, whatever their size, and can be reallocated")
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (size_t alignment = 1; alignment <= (8u << 20); alignment *= 2) {
        for (size_t size = 1; size < 300000; size = size * 3 + 1) {
            require_good(memalign(alignment, size), alignment, size, "memalign");
            require_good(aligned_alloc(alignment, size), alignment, size, "aligned_alloc");
        }
        unsigned char *block = memset(memalign(alignment, 1000), 0x42, 1000);
        block = realloc(block, 100000);
        for (size_t i = 0; i < 1000; i++)
            require(block[i] == 0x42, "alignment %zu: byte %zu was lost", alignment, i);
        block = realloc(block, 10);
        require(block != NULL && block[9] == 0x42, "alignment %zu: lost when shrunk", alignment);
        free(block);
    }
    for (size_t size = 1; size < 200000; size = size * 3 + 1) {
        require_good(valloc(size), page, size, "valloc");
        require_good(pvalloc(size), page, (size + page - 1) / page * page, "pvalloc");
    }
}

CHECK("wrong alignments are refused with EINVAL, or rounded up by memalign")
{
    static const size_t wrong[] = {0, 3, 24, 48, 100, 4097, SIZE_MAX, ((size_t)1 << 63) + 8};
    void *block = NULL;
    for (size_t i = 0; i < COUNT(wrong); i++) {
        errno = 77;
        require(posix_memaligned(wrong[i], 64) == NULL && errno == EINVAL, "%zu", wrong[i]);
        errno = 0;
        block = aligned_alloc(wrong[i], 48);
        require(block == NULL && errno == EINVAL, "alignment %zu gave %p", wrong[i], block);
        if (wrong[i] > 5000) continue;
        size_t power = 1;
        while (power < wrong[i]) power *= 2;
        require_good(memalign(wrong[i], 100), power, 100, "memalign");
    }
    for (size_t small = 1; small < sizeof(void *); small++)
        require(posix_memalign(&block, small, 64) == EINVAL, "alignment %zu", small);
    errno = 77;
    require(posix_memaligned(64, 1 << 20) != NULL, "no memory");
    require(posix_memaligned(64, SIZE_MAX - 100) == NULL && errno == ENOMEM, "errno %d", errno);
}

/* ---- hostile requests ----------------------------------------------------------------------- */

/* A number near an edge: a power of two, the ends of the types, a divisor of SIZE_MAX; or small. */
static size_t edge(uint64_t *state)
{
    const uint64_t draw = random_next(state);
    const size_t near = (size_t)(draw >> 32) % 65, bit = (size_t)1 << (draw >> 8) % 64;
    const size_t choices[] = {bit + near - 32,        (size_t)PTRDIFF_MAX + near - 32,
                              SIZE_MAX - near,        SIZE_MAX / (near + 1) + (draw >> 20) % 3,
                              (size_t)0 - bit + near, (draw >> 16) % 5000};
    return choices[draw % COUNT(choices)];
}

static void ask_for_a_product(size_t count, size_t size, bool zeroed)
{
    size_t bytes = 0;
    const bool overflows = __builtin_mul_overflow(count, size, &bytes);
    unsigned char *kept = zeroed || bytes == 0 ? NULL : memset(malloc(64), 0x3c, 64);
    void *block = zeroed ? calloc(count, size) : reallocarray(kept, count, size);
    require(block != NULL || errno == ENOMEM, "%zu x %zu bytes: errno %d", count, size, errno);
    require(block == NULL || !overflows, "%zu x %zu bytes were granted", count, size);
    if (block != NULL) return require_good(block, 16, bytes, zeroed ? "calloc" : "reallocarray");
    for (size_t i = 0; kept != NULL && i < 64; i++) require(kept[i] == 0x3c, "byte %zu", i);
    free(kept);
}

/* Mostly at a power of two; then the sum of both is often near the end of the addresses, or of
 * PTRDIFF_MAX. */
static void ask_aligned(uint64_t *state, unsigned how)
{
    const uint64_t draw = random_next(state);
    const size_t alignment = draw % 8 == 0 ? edge(state) : (size_t)1 << (draw >> 8) % 64;
    const size_t end = draw % 3 == 1 ? (size_t)PTRDIFF_MAX + 1 : 0;
    const size_t size = draw % 3 == 0 ? edge(state) : end - alignment + (draw >> 16) % 65 - 32;
    const bool may_be =
        __builtin_popcountl(alignment) == 1 && (how < 2 || alignment >= sizeof(void *));
    void *block = how == 0   ? memalign(alignment, size)
                  : how == 1 ? aligned_alloc(alignment, size)
                             : posix_memaligned(alignment, size);
    if (block == NULL) {
        const bool is_invalid = !may_be || alignment > (size_t)PTRDIFF_MAX / 2;
        require(errno == ENOMEM || (errno == EINVAL && is_invalid), "%zu bytes at %zu: errno %d",
                size, alignment, errno);
        return;
    }
    require(may_be || how == 0, "way %u took the alignment %zu", how, alignment);
    require_good(block, may_be ? alignment : 16, size, "an aligned way");
}

static void ask_a_way(const way *by, size_t size)
{
    if (size == 0 && by->take == take_realloc_of_a_block) return;
    void *block = by->take(size);
    if (block != NULL)
        require_good(block, 16, size, by->name);
    else
        require(errno == ENOMEM && size > 1u << 20, "%s of %zu: errno %d", by->name, size, errno);
}

CHECK_IN(120, "hostile requests are answered rightly")
{
    enum { RECORD_BYTES = 100 }; /* of a block of up to a tebibyte, anywhere */
    uint64_t state = seed_chosen(4);
    const uint64_t calls = number_chosen("TEST_CALLS", 30000);
    for (uint64_t i = 0; i < calls; i++) {
        const uint64_t draw = random_next(&state);
        errno = 0;
        if (draw % 5 == 0)
            ask_for_a_product(edge(&state), edge(&state), draw >> 8 & 1);
        else if (draw % 5 == 1)
            ask_a_way(&ways[(draw >> 8) % COUNT(ways)], edge(&state));
        else
            ask_aligned(&state, (unsigned)(draw % 5) - 2);
    }
    (void)malloc_trim(0); /* what was freed a moment ago may still be resident */
    /* Every block is free. hz's records of the pages that they began and ended at stay. */
    const size_t resident = resident_bytes(), most = ((size_t)16 << 20) + calls * RECORD_BYTES;
    require(resident < most, "%zu bytes are resident at the end, %zu may be", resident, most);
}

/* ---- contents ------------------------------------------------------------------------------- */

CHECK("NULL and the middle of a block have no bytes")
{
    unsigned char *block = malloc(100);
    require(malloc_usable_size(NULL) == 0 && malloc_usable_size(block + 16) == 0, "they have");
    free(block);
}

CHECK("free, and an allocation that succeeds, keep errno")
{
    errno = 1234;
    free(NULL);
    for (int round = 0; round < 3; round++) {
        for (size_t size = 1; size < (200u << 20); size = size * 2 + 1) {
            char *block = malloc(size);
            *(volatile char *)block = 1;
            require(errno == 1234, "malloc of %zu bytes set errno to %d", size, errno);
            free(block);
            free(calloc(1, size < (1u << 20) ? size : 1));
            require(errno == 1234, "free of %zu bytes set errno to %d", size, errno);
        }
    }
}

/* ---- before main and after it --------------------------------------------------------------- */

static char *early, *late;
static bool exiting;

__attribute__((constructor(101))) static void allocate_early(void)
{
    early = malloc(5000);
    if (early != NULL) memset(early, 0x29, 5000);
}

/* A resolver runs while the loader still relocates: malloc may not be called there, but must exist
 * soon after. */
static int answer_plain(void)
{
    return 42;
}
static int (*resolve_answer(void))(void)
{
    return answer_plain;
}
#ifdef __GLIBC__
int answer(void) __attribute__((ifunc("resolve_answer")));
#else /* musl has none */
static int answer(void)
{
    return resolve_answer()();
}
#endif

CHECK("a constructor that runs first can allocate")
{
    require(early != NULL && early[0] == 0x29 && early[4999] == 0x29, "its block is lost");
    require(answer() == 42, "the indirect function is lost");
    early = realloc(early, 50000);
    require(early[4999] == 0x29, "realloc lost the constructor's block");
    free(early);
}

static void free_late(void)
{
    free(late);
    free(malloc(100));
    late = calloc(1, 70000);
}

__attribute__((destructor(101))) static void allocate_in_the_last_destructor(void)
{
    if (!exiting) return;
    free(late);
    free(memset(malloc(300), 1, 300));
    (void)!write(STDERR_FILENO, "last", 4);
}

static void exit_with_late_frees(void *unused)
{
    (void)unused;
    exiting = true;
    late = malloc(1000);
    (void)atexit(free_late);
    exit(0);
}

CHECK("exit handlers and the last destructor can allocate and free")
{
    ending result;
    run_apart(exit_with_late_frees, NULL, 10, &result);
    require(result.signal == 0 && result.status == 0 && strcmp(result.said, "last") == 0,
            "signal %d, status %d, said '%s'", result.signal, result.status, result.said);
}

static void *churn(void *unused)
{
    for (size_t i = 0; i < 50000; i++) free(memset(malloc(i % 5000 + 1), 1, 1));
    return unused;
}

static void churn_a_little(void)
{
    for (size_t i = 0; i < 2000; i++) free(malloc(i));
}

CHECK("threads and forks work")
{
    crowd all;
    crowd_start(&all, 4, churn);
    for (int i = 0; i < 20; i++) require_of_child(churn_a_little);
    crowd_end(&all);
}
