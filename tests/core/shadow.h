/*
 * The shadow of a block: what a test knows of a block that it has. A header, as each program
 * chooses which malloc it tests (linked.h).
 *
 * What a block holds changes nothing: some hold what hz itself would write to them. For that a
 * program reads what hz has written to freed blocks (shadow_learn), and works out from it what hz
 * would write to any other block of the class.
 */
#ifndef TEST_SHADOW_H
#define TEST_SHADOW_H

#include <errno.h>
#include <malloc.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

typedef struct shadow {
    unsigned char *block; /* NULL: the slot is empty */
    size_t size;          /* bytes that are filled */
    uint64_t key;         /* seeds the pattern */
    uint64_t word;        /* in place of the pattern's second word; 0: none */
} shadow;

static bool shadow_is_sparse; /* whether only the first and the last byte of a block are filled */
static bool shadow_may_fail;  /* whether memory may be refused, with ENOMEM */

enum { SHADOW_LEARNT_BYTES = 131072 }; /* of longer blocks nothing is left when they are free */
static uint64_t shadow_seals[SHADOW_LEARNT_BYTES / 16 + 1]; /* by usable size, less the address */
static uint64_t shadow_handed_out;                          /* what hz writes over it */

/* Before there are other threads. */
static inline void shadow_learn(void)
{
    for (size_t size = 16; size <= SHADOW_LEARNT_BYTES; size += 16 + size / 1024 * 16) {
        volatile uint64_t *block = malloc(size);
        const uintptr_t address = (uintptr_t)block;
        const size_t usable = malloc_usable_size((void *)address);
        block[0] = block[1] = 0;
        free((void *)address);
        if (usable <= SHADOW_LEARNT_BYTES) shadow_seals[usable / 16] = block[1] ^ address;
        block = malloc(size);
        shadow_handed_out = (uintptr_t)block == address ? block[1] : shadow_handed_out;
        free((void *)(uintptr_t)block);
    }
}

static inline uint64_t shadow_word(const shadow *entry)
{
    const size_t usable = malloc_usable_size(entry->block);
    if (entry->size < 16 || usable > SHADOW_LEARNT_BYTES || entry->key % 8 > 1) return 0;
    if (entry->key % 8 == 1) return shadow_handed_out;
    return shadow_seals[usable / 16] ^ (uintptr_t)entry->block;
}

static inline unsigned char shadow_byte(const shadow *entry, size_t at)
{
    if (entry->word != 0 && at / 8 == 1) return (unsigned char)(entry->word >> at % 8 * 8);
    return (unsigned char)((entry->key * UINT64_C(0x9e3779b97f4a7c15) >> 32) + at * 7);
}

/* Large blocks are written at both ends and once a cache line between. */
static inline size_t shadow_stride(size_t at, size_t size)
{
    if (shadow_is_sparse && at + 1 < size) return size - 1 - at;
    return at < 512 || at + 512 >= size ? 1 : 64;
}

static inline void shadow_fill(shadow *entry)
{
    entry->word = shadow_word(entry);
    for (size_t at = 0; at < entry->size; at += shadow_stride(at, entry->size))
        entry->block[at] = shadow_byte(entry, at);
}

/* Verifies the first `size` bytes as they were filled for a block of `entry->size`. */
static inline void shadow_verify(const shadow *entry, size_t size, const char *when)
{
    for (size_t at = 0; at < size; at += shadow_stride(at, entry->size)) {
        const unsigned char wanted = shadow_byte(entry, at);
        require(entry->block[at] == wanted,
                "%s: byte %zu of the block %p of %zu bytes is %d, not %d (key %llu)", when, at,
                (void *)entry->block, entry->size, entry->block[at], wanted,
                (unsigned long long)entry->key);
    }
}

/* ---- what becomes of a block ---------------------------------------------------------------- */

/* The block, if it must be one. */
static inline void *shadow_granted(void *block, size_t size)
{
    const bool is_well = block != NULL || (shadow_may_fail && errno == ENOMEM);
    require(is_well, "no memory for %zu bytes: errno %d", size, errno);
    return block;
}

static inline void *shadow_take_aligned(uint64_t draw, size_t *alignment, size_t size)
{
    void *block = NULL;
    *alignment = (size_t)16 << (draw >> 8) % 11;
    if (draw % 3 == 0) return memalign(*alignment, size);
    if (draw % 3 == 1) return aligned_alloc(*alignment, size);
    const int why = posix_memalign(&block, *alignment, size);
    require(why == (block != NULL ? 0 : ENOMEM), "posix_memalign of %zu bytes: %d", size, why);
    return block;
}

/* Writes to all of it, so that a calloc that trusts a failed purge is seen. */
static inline unsigned char *shadow_take_zeroed(size_t size)
{
    unsigned char *block = calloc(1, size);
    for (size_t at = 0; block != NULL && at < size; at += at < 4096 || at + 512 >= size ? 1 : 64)
        require(block[at] == 0, "byte %zu of calloc(1, %zu) is %d", at, size, block[at]);
    return block != NULL ? memset(block, 0xd1, size) : NULL;
}

/* By one of seven entry points, and fills all of it that is usable, or what was asked for. */
static inline void shadow_take(shadow *entry, uint64_t draw, size_t size)
{
    size_t alignment = 16;
    errno = 0;
    void *block = draw % 8 == 0   ? shadow_take_zeroed(size)
                  : draw % 8 == 1 ? shadow_take_aligned(draw >> 8, &alignment, size)
                  : draw % 8 == 2 ? realloc(NULL, size)
                                  : malloc(size);
    if (shadow_granted(block, size) == NULL) return;
    require(((uintptr_t)block & (alignment - 1)) == 0, "%zu bytes at %zu gave %p", size, alignment,
            block);
    const size_t usable = malloc_usable_size(block);
    require(usable >= size, "usable %zu of %zu", usable, size);
    *entry = (shadow){block, (draw >> 40) % 4 == 0 ? usable : size, draw >> 16, 0};
    shadow_fill(entry);
    require(malloc_usable_size(block) == usable, "%zu usable bytes, then another number", usable);
}

static inline void shadow_resize(shadow *entry, size_t size)
{
    shadow_verify(entry, entry->size, "before realloc");
    errno = 0;
    unsigned char *block = shadow_granted(realloc(entry->block, size), size);
    if (block == NULL) return;
    entry->block = block;
    shadow_verify(entry, size < entry->size ? size : entry->size, "after realloc");
    entry->size = size;
    shadow_fill(entry);
}

static inline void shadow_release(shadow *entry)
{
    const int before = errno;
    shadow_verify(entry, entry->size, "before free");
    free(entry->block);
    require(errno == before, "free of %zu bytes set errno to %d", entry->size, errno);
    entry->block = NULL;
}

/* ---- all together --------------------------------------------------------------------------- */

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
