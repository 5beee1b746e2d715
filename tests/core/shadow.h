/*
 * The shadow of a block: what a test knows of a block that it has, for fuzz_shadow.c and the fuzz
 * targets of tests/fuzz. A header, as each of them chooses which malloc it tests (linked.h).
 */
#ifndef TEST_SHADOW_H
#define TEST_SHADOW_H

#include <malloc.h>
#include <stdlib.h>

#include "check.h"

typedef struct shadow {
    unsigned char *block; /* NULL: the slot is empty */
    size_t size;          /* bytes asked for */
    uint64_t key;         /* seeds the pattern */
} shadow;

static inline unsigned char shadow_pattern(uint64_t key, size_t at)
{
    return (unsigned char)((key * UINT64_C(0x9e3779b97f4a7c15) >> 32) + at * 7);
}

/* Large blocks are written at both ends and once a cache line between. */
static inline size_t shadow_stride(size_t at, size_t size)
{
    return at < 512 || at + 512 >= size ? 1 : 64;
}

static inline void shadow_fill(const shadow *entry)
{
    for (size_t at = 0; at < entry->size; at += shadow_stride(at, entry->size))
        entry->block[at] = shadow_pattern(entry->key, at);
}

/* Verifies the first `size` bytes as they were filled for a block of `entry->size`. */
static inline void shadow_verify(const shadow *entry, size_t size, const char *when)
{
    for (size_t at = 0; at < size; at += shadow_stride(at, entry->size)) {
        const unsigned char wanted = shadow_pattern(entry->key, at);
        require(entry->block[at] == wanted,
                "%s: byte %zu of the block %p of %zu bytes is %d, not %d (key %llu)", when, at,
                (void *)entry->block, entry->size, entry->block[at], wanted,
                (unsigned long long)entry->key);
    }
}

static inline void *shadow_take_aligned(uint64_t draw, size_t *alignment, size_t size)
{
    *alignment = (size_t)16 << (draw >> 8) % 11;
    switch (draw % 3) {
    case 0:
        return memalign(*alignment, size);
    case 1:
        return aligned_alloc(*alignment, size);
    default: {
        void *block = NULL;
        require(posix_memalign(&block, *alignment, size) == 0, "posix_memalign of %zu bytes failed",
                size);
        return block;
    }
    }
}

static inline unsigned char *shadow_take_zeroed(size_t size)
{
    unsigned char *block = calloc(1, size);
    for (size_t at = 0; block != NULL && at < size; at += shadow_stride(at, size))
        require(block[at] == 0, "byte %zu of calloc(1, %zu) is %d", at, size, block[at]);
    return block;
}

static inline int shadow_by_address(const void *a, const void *b)
{
    const unsigned char *first = ((const shadow *)a)->block;
    const unsigned char *second = ((const shadow *)b)->block;
    return (first > second) - (first < second);
}

/* Sorts them, and verifies that each is as it was filled and none overlaps another one. */
static inline void shadows_require_apart(shadow *all, size_t count)
{
    qsort(all, count, sizeof all[0], shadow_by_address);
    for (size_t i = 0; i < count; i++) {
        shadow_verify(&all[i], all[i].size, "beside the others");
        require(i == 0 || all[i - 1].block + all[i - 1].size <= all[i].block,
                "%p of %zu bytes overlaps %p", (void *)all[i - 1].block, all[i - 1].size,
                (void *)all[i].block);
        require(i == 0 || all[i - 1].block != all[i].block, "%p is two blocks",
                (void *)all[i].block);
    }
}

#endif
