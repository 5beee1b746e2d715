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
#include <pthread.h>
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
    void *given = malloc(size);
    volatile uint64_t *block = given;
    require(given != NULL, "no memory for %zu bytes", size);
    block[0] = block[1] = 0;
    *address = (uintptr_t)given;
    free(given);
    return size > 131072 ? 0 : block[1];
}

static uint64_t word_for(disguise as, size_t size, const void *block)
{
    static uint64_t state = 20261123;
    uintptr_t donor;
    const uint64_t word = word_of_free_block(size, &donor);
    if (as == RANDOM) return random_next(&state);
    return as == THE_WORD ? word : word ^ donor ^ (uintptr_t)block;
}

/* Stores the word at the second place and at some more. */
static void *disguised(disguise as, size_t size)
{
    uint64_t *block = malloc(size);
    require(block != NULL, "no memory for %zu bytes", size);
    const uint64_t word = word_for(as, size, block);
    for (size_t i = 0; i < size / 8 && i < WORDS; i++) block[i] = word;
    return block;
}

static void for_all(void (*act)(disguise as, size_t size))
{
    for (int as = 0; as < DISGUISES; as++)
        for (size_t i = 0; i < COUNT(sizes); i++) act((disguise)as, sizes[i]);
}

/* ---- ways of a block ------------------------------------------------------------------------ */

static void ask(disguise as, size_t size)
{
    void *plain = calloc(1, size);
    void *block = disguised(as, size);
    require(malloc_usable_size(block) == malloc_usable_size(plain),
            "%zu bytes: usable %zu, and %zu of a block of zeros", size, malloc_usable_size(block),
            malloc_usable_size(plain));
    free(plain);
    free(block);
}

static void resize_to(disguise as, size_t size, size_t wanted)
{
    uint64_t *block = disguised(as, size);
    const uint64_t second = block[1];
    block = realloc(block, wanted);
    require(block != NULL, "no %zu bytes", wanted);
    require(wanted < 16 || block[1] == second, "%zu to %zu bytes: contents changed", size, wanted);
    free(block);
}

static void resize(disguise as, size_t size)
{
    resize_to(as, size, size * 4);
    resize_to(as, size, size + size / 8);
    resize_to(as, size, size / 4);
    resize_to(as, size, size - size / 8);
    require(realloc(disguised(as, size), 0) == NULL, "realloc to 0 gave a block");
}

/* ---- many at once --------------------------------------------------------------------------- */

static void *blocks[MANY];

static size_t many(size_t size)
{
    return size * MANY > MANY_BYTES ? MANY_BYTES / size : MANY;
}

static void get_many(disguise as, size_t size)
{
    for (size_t i = 0; i < many(size); i++) blocks[i] = disguised(as, size);
}

static void *free_many(void *size)
{
    for (size_t i = 0; i < many((size_t)(uintptr_t)size); i++) free(blocks[i]);
    return NULL;
}

static int by_address(const void *a, const void *b)
{
    const uintptr_t x = *(const uintptr_t *)a, y = *(const uintptr_t *)b;
    return x < y ? -1 : x > y;
}

/* All come back, and none twice. */
static void get_them_again(size_t size)
{
    for (size_t i = 0; i < many(size); i++) {
        blocks[i] = malloc(size);
        require(blocks[i] != NULL, "no memory for %zu bytes", size);
    }
    qsort(blocks, many(size), sizeof *blocks, by_address);
    for (size_t i = 1; i < many(size); i++)
        require(blocks[i] != blocks[i - 1], "%zu bytes: a block has two owners", size);
    (void)free_many((void *)(uintptr_t)size);
}

static void free_many_here(disguise as, size_t size)
{
    get_many(as, size);
    (void)free_many((void *)(uintptr_t)size);
    get_them_again(size);
}

static void free_many_elsewhere(disguise as, size_t size)
{
    get_many(as, size);
    (void)thread_end(thread_start(free_many, (void *)(uintptr_t)size));
    get_them_again(size);
}

static void free_and_trim(disguise as, size_t size)
{
    get_many(as, size);
    for (size_t i = 0; i < many(size); i += 2) free(blocks[i]);
    (void)malloc_trim(0);
    for (size_t i = 1; i < many(size); i += 2) free(blocks[i]);
    (void)malloc_trim(0);
    get_them_again(size);
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
static void require_tells_nothing(uint64_t *block, size_t size, uint64_t *constant)
{
    for (size_t i = 0; i < size / 8; i++) {
        if (block[i] == 0) continue;
        if (*constant == 0) *constant = block[i];
        require(block[i] == *constant, "%zu bytes: word %zu is %#llx, and %#llx elsewhere", size, i,
                (unsigned long long)block[i], (unsigned long long)*constant);
        require(!is_address(block[i], block), "%zu bytes: word %zu is the address %#llx", size, i,
                (unsigned long long)block[i]);
    }
}

/* Also blocks that were freed, all zero, and are handed out again. */
CHECK_IN(60, "no block that is handed out tells an address")
{
    uint64_t constant = 0;
    for (size_t turn = 0; turn < 3; turn++) {
        for (size_t i = 0; i < COUNT(sizes); i++) {
            for (size_t j = 0; j < 100; j++) {
                blocks[j] = malloc(sizes[i]);
                require_tells_nothing(blocks[j], sizes[i], &constant);
                memset(blocks[j], 0, sizes[i]);
            }
            for (size_t j = 0; j < 100; j++) free(blocks[j]);
        }
    }
}

/* ---- the checks ----------------------------------------------------------------------------- */

CHECK("the usable size of a block does not depend on what it holds")
{
    for_all(ask);
}
CHECK("a realloc does not depend on what the block holds")
{
    for_all(resize);
}
CHECK_IN(60, "a free does not depend on what the block holds")
{
    for_all(free_many_here);
}
CHECK_IN(60, "a free by another thread does not depend on what the block holds")
{
    for_all(free_many_elsewhere);
}
CHECK_IN(60, "a trim does not depend on what blocks hold")
{
    for_all(free_and_trim);
}
