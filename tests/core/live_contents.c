/*
 * What a live block holds never changes what hz does, and what hz hands out tells nothing.
 *
 * The program reads what hz writes to a freed block, and works out from it what hz would write to
 * any other block of the class. This, and the word itself, is stored in live blocks, which go all
 * ways that a block can go: asked for their size, resized, freed into a magazine with room, into a
 * full one, by another thread, by one that ends. Every check runs with `HZ_DOUBLE_FREE=at_call`
 * and with several shards, too (test_core.py).
 */
#include "check.h"

#include <malloc.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { MANY = 3000, MANY_BYTES = 24 << 20, WORDS = 64 };

static const size_t sizes[] = {16,   24,   48,   64,    100,   200,   500,    1000,   2000,
                               4096, 6000, 9000, 16384, 32768, 65536, 131072, 200000, 262144};

/* ---- a word that hz wrote ------------------------------------------------------------------- */

typedef enum disguise { THE_WORD, MADE_FOR_THE_BLOCK, RANDOM, DISGUISES } disguise;

/* What stands in the second word of a block of `size` bytes after it was freed; 0 when its memory
 * is no longer there to read, as a large block's. */
static uint64_t word_of_free_block(size_t size, uintptr_t *address)
{
    volatile uint64_t *block = malloc(size);
    *address = (uintptr_t)block;
    block[0] = block[1] = 0;
    free((void *)*address);
    return size > 131072 ? 0 : block[1];
}

/* A block that has the word at the second place and at some more. */
static void *disguised(disguise as, size_t size)
{
    static uint64_t state = 20261123;
    uintptr_t donor;
    uint64_t *block = malloc(size);
    require(block != NULL, "no memory for %zu bytes", size);
    uint64_t word = word_of_free_block(size, &donor);
    if (as == MADE_FOR_THE_BLOCK) word ^= donor ^ (uintptr_t)block;
    if (as == RANDOM) word = random_next(&state);
    for (size_t i = 0; i < size / 8 && i < WORDS; i++) block[i] = word;
    return block;
}

/* ---- ways of a block ------------------------------------------------------------------------ */

static void ask(disguise as, size_t size)
{
    void *plain = calloc(1, size), *block = disguised(as, size);
    require(malloc_usable_size(block) == malloc_usable_size(plain),
            "%zu bytes: usable %zu, and %zu of a block of zeros", size, malloc_usable_size(block),
            malloc_usable_size(plain));
    free(plain);
    free(block);
}

static void resize(disguise as, size_t size)
{
    const size_t wanted[] = {size * 4, size + size / 8, size / 4, size - size / 8};
    for (size_t i = 0; i < COUNT(wanted); i++) {
        uint64_t *block = disguised(as, size);
        const uint64_t second = block[1];
        block = realloc(block, wanted[i]);
        require(block != NULL, "no %zu bytes", wanted[i]);
        require(wanted[i] < 16 || block[1] == second, "%zu to %zu bytes: contents changed", size,
                wanted[i]);
        free(block);
    }
    require(realloc(disguised(as, size), 0) == NULL, "realloc to 0 gave a block");
}

/* ---- many at once --------------------------------------------------------------------------- */

static void *blocks[MANY];
static size_t many; /* of them, of one size */

static void get_many(disguise as, size_t size)
{
    many = size * MANY > MANY_BYTES ? MANY_BYTES / size : MANY;
    for (size_t i = 0; i < many; i++) blocks[i] = disguised(as, size);
}

static void *free_many(void *unused)
{
    for (size_t i = 0; i < many; i++) free(blocks[i]);
    return unused;
}

static int by_address(const void *a, const void *b)
{
    const uintptr_t x = *(const uintptr_t *)a, y = *(const uintptr_t *)b;
    return x < y ? -1 : x > y;
}

/* All come back, and none twice. */
static void get_them_again(size_t size)
{
    for (size_t i = 0; i < many; i++) blocks[i] = malloc(size);
    qsort(blocks, many, sizeof *blocks, by_address);
    for (size_t i = 1; i < many; i++)
        require(blocks[i] != blocks[i - 1], "%zu bytes: a block has two owners", size);
    (void)free_many(NULL);
}

static void free_many_here(disguise as, size_t size)
{
    get_many(as, size);
    (void)free_many(NULL);
    get_them_again(size);
}

static void free_many_elsewhere(disguise as, size_t size)
{
    get_many(as, size);
    (void)thread_end(thread_start(free_many, NULL));
    get_them_again(size);
}

static void free_and_trim(disguise as, size_t size)
{
    get_many(as, size);
    for (size_t i = 0; i < many; i += 2) free(blocks[i]);
    (void)malloc_trim(0);
    for (size_t i = 1; i < many; i += 2) free(blocks[i]);
    (void)malloc_trim(0);
    get_them_again(size);
}

CHECK_IN(120, "nothing that becomes of a block depends on what it holds")
{
    void (*const acts[])(disguise, size_t) = {ask, resize, free_many_here, free_many_elsewhere,
                                              free_and_trim};
    for (size_t i = 0; i < COUNT(acts) * DISGUISES * COUNT(sizes); i++)
        acts[i / (DISGUISES * COUNT(sizes))]((disguise)(i / COUNT(sizes) % DISGUISES),
                                             sizes[i % COUNT(sizes)]);
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
    for (size_t i = 0; i < 3 * COUNT(sizes); i++) {
        const size_t size = sizes[i % COUNT(sizes)];
        for (size_t j = 0; j < 100; j++) {
            blocks[j] = malloc(size);
            require_tells_nothing(blocks[j], size);
            memset(blocks[j], 0, size);
        }
        for (size_t j = 0; j < 100; j++) free(blocks[j]);
    }
}
