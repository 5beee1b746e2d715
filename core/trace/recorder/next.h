/*
 * The allocator under the recorder: the functions that the program would call without it.
 */
#ifndef HZ_RECORDER_NEXT_H
#define HZ_RECORDER_NEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

/* The next definition of each name, in the order of the loader's search. */
typedef struct hz_next_functions {
    void *(*malloc)(size_t size);
    void *(*calloc)(size_t count, size_t size);
    void *(*realloc)(void *block, size_t size);
    void (*free)(void *block);
    int (*posix_memalign)(void **block, size_t align, size_t size);
    void *(*aligned_alloc)(size_t align, size_t size);
    void *(*memalign)(size_t align, size_t size);
    void *(*valloc)(size_t size);
    void *(*pvalloc)(size_t size);
} hz_next_functions;

/* Each finds all of them when it is first called. */
extern hz_next_functions hz_next;

/* The next definition of `name`; NULL when there is none. */
void *hz_next_find(const char *name);

/* Blocks for the loader, which may allocate while it looks for the functions above. */
enum { HZ_EARLY_BYTES = 32 * 1024 };
extern unsigned char hz_early[HZ_EARLY_BYTES];

/* Whether a block is one of those: it is never given back. */
static inline bool hz_is_early(const void *block)
{
    return (uintptr_t)block - (uintptr_t)hz_early < HZ_EARLY_BYTES;
}

#pragma GCC visibility pop

#endif
