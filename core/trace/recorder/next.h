/*
 * The allocator under the recorder: the functions that the program would call without it.
 */
#ifndef HZ_RECORDER_NEXT_H
#define HZ_RECORDER_NEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

/* NEXT(type, name, parameters, arguments, what it returns until all are found). */
#define HZ_NEXT_ALL(NEXT)                                                                          \
    NEXT(void *, malloc, (size_t size), (size), early_block(size))                                 \
    NEXT(void *, calloc, (size_t count, size_t size), (count, size), early_zeros(count, size))     \
    NEXT(void *, realloc, (void *block, size_t size), (block, size), early_copy(block, size))      \
    NEXT(void, free, (void *block), (block), (void)0)                                              \
    NEXT(int, posix_memalign, (void **block, size_t align, size_t size), (block, align, size),     \
         ENOMEM)                                                                                   \
    NEXT(void *, aligned_alloc, (size_t align, size_t size), (align, size), NULL)                  \
    NEXT(void *, memalign, (size_t align, size_t size), (align, size), NULL)                       \
    NEXT(void *, valloc, (size_t size), (size), NULL)                                              \
    NEXT(void *, pvalloc, (size_t size), (size), NULL)

/* The next definition of each name, in the order of the loader's search. */
typedef struct hz_next_functions {
#define HZ_NEXT_FIELD(type, name, parameters, arguments, otherwise) type(*name) parameters;
    HZ_NEXT_ALL(HZ_NEXT_FIELD)
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
