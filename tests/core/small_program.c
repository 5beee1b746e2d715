/*
 * What a program that allocates little pays: blocks that it seldom asks for leave no memory behind
 * that serves nothing else.
 */
#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { KIB = 1024, KERNEL_PAGE = 4 * KIB };

CHECK("the first long block of its class that is freed waits without its memory")
{
    unsigned char *block = malloc(250 * KIB);
    memset(block, 1, 250 * KIB);
    const size_t before = resident_bytes();
    free(block);
    require(resident_bytes() + 220 * KIB < before, "%zu bytes resident, then %zu", before,
            resident_bytes());
    require(malloc(250 * KIB) == block, "it is not the next block of its class");
}

CHECK("a zeroed long block is zero in all its usable bytes")
{
    for (size_t size = 33 * KIB; size < 300 * KIB; size += 21 * KIB) {
        unsigned char *used = malloc(size);
        memset(used, 255, malloc_usable_size(used));
        free(used);
        unsigned char *block = calloc(1, size);
        const size_t bytes = malloc_usable_size(block);
        for (size_t i = 0; i < bytes; i++)
            require(block[i] == 0, "byte %zu of %zu, usable %zu", i, size, bytes);
        free(block);
    }
}

/* Blocks that the first one's refill cut beside it lie on the same pages of the kernel. */
CHECK("the first block of a class touches no more pages than it lies on")
{
    for (size_t size = 1000; size < 30000; size += size / 3) {
        const uint64_t before = hz_counter("blocks_carved");
        void *block = malloc(size);
        const size_t bytes = malloc_usable_size(block);
        const uint64_t most = (2 * bytes + KERNEL_PAGE - 1) / bytes;
        require(hz_counter("blocks_carved") - before <= most, "%zu blocks of %zu bytes were cut",
                (size_t)(hz_counter("blocks_carved") - before), bytes);
        free(block);
    }
}

CHECK("a magazine keeps its blocks when it moves to a longer array")
{
    enum { MOST = 200 };
    static void *blocks[MOST];
    for (size_t count = 1; count <= MOST; count += count / 2 + 1) {
        for (size_t i = 0; i < count; i++) {
            blocks[i] = malloc(48);
            memset(blocks[i], (int)i, 48);
        }
        for (size_t i = 0; i < count; i++) {
            const unsigned char *block = blocks[i];
            require(block[0] == (unsigned char)i && block[47] == (unsigned char)i,
                    "block %zu of %zu has two owners", i, count);
        }
        for (size_t i = 0; i < count; i++) free(blocks[i]);
    }
}
