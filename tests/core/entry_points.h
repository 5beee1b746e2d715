/*
 * Every way to ask for memory, as one table: the checks of sizes and of system faults walk it.
 *
 * Each entry takes a size and gives a block that release() takes back, or NULL with errno set as
 * the C library would.
 */
#ifndef TEST_ENTRY_POINTS_H
#define TEST_ENTRY_POINTS_H

#include <errno.h>
#include <malloc.h>
#include <stdlib.h>

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *block, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

typedef struct entry_point {
    const char *name;
    void *(*take)(size_t size);
} entry_point;

#define TAKE(name, call)                                                                           \
    static void *take_##name(size_t size)                                                          \
    {                                                                                              \
        return call;                                                                               \
    }
TAKE(malloc, malloc(size))
TAKE(calloc_one, calloc(1, size))
TAKE(calloc_many, calloc(size, 1))
TAKE(realloc, realloc(NULL, size))
TAKE(reallocarray, reallocarray(NULL, size, 1))
TAKE(memalign, memalign(64, size))
TAKE(memalign_page, memalign(65536, size))
TAKE(aligned_alloc, aligned_alloc(64, size))
TAKE(valloc, valloc(size))
TAKE(pvalloc, pvalloc(size))
TAKE(libc_malloc, __libc_malloc(size))
TAKE(libc_calloc, __libc_calloc(1, size))
TAKE(libc_realloc, __libc_realloc(NULL, size))
TAKE(libc_memalign, __libc_memalign(64, size))

/* realloc of a live block: on failure the block must be whole, and is freed here. */
static void *take_realloc_grow(size_t size)
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
static void *take_posix_memalign(size_t size)
{
    void *untouched = &untouched;
    void *block = untouched;
    const int reason = posix_memalign(&block, 64, size);
    if (reason != 0 && block != untouched)
        return block; /* the caller will say that it should be NULL */
    errno = reason;
    return reason == 0 ? block : NULL;
}

static const entry_point entry_points[] = {
    {"malloc", take_malloc},
    {"calloc(1, n)", take_calloc_one},
    {"calloc(n, 1)", take_calloc_many},
    {"realloc(NULL, n)", take_realloc},
    {"realloc(block, n)", take_realloc_grow},
    {"reallocarray", take_reallocarray},
    {"memalign(64, n)", take_memalign},
    {"memalign(65536, n)", take_memalign_page},
    {"aligned_alloc", take_aligned_alloc},
    {"posix_memalign", take_posix_memalign},
    {"valloc", take_valloc},
    {"pvalloc", take_pvalloc},
    {"__libc_malloc", take_libc_malloc},
    {"__libc_calloc", take_libc_calloc},
    {"__libc_realloc", take_libc_realloc},
    {"__libc_memalign", take_libc_memalign},
};

#endif
