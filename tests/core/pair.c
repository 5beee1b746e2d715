/*
 * A loop of malloc+free pairs of one size, to be counted by an instrumenting tool.
 *
 *   pair call|none SIZE DEPTH ROUNDS
 *
 * Each round allocates DEPTH blocks and frees them, last first. `call` calls malloc and free;
 * `none` runs the same loop with functions that do nothing, so that a difference of two runs leaves
 * the allocator's own instructions. Whatever happens once (start-up, first refill, exit) falls out
 * of a difference of two ROUNDS.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 4096 };

static char nowhere[16];

static void *allocate_nothing(size_t size)
{
    (void)size;
    return nowhere;
}

static void release_nothing(void *block)
{
    (void)block;
}

/* Volatile, so that the calls stay calls through a pointer in both modes: no inlining, no PLT stub
 * in the count. */
static void *(*volatile allocate)(size_t);
static void (*volatile release)(void *);
static void *blocks[DEPTH_MAX];

static void run(size_t size, size_t depth, size_t rounds)
{
    void *(*const take)(size_t) = allocate;
    void (*const give)(void *) = release;
    for (size_t round = 0; round < rounds; round++) {
        for (size_t i = 0; i < depth; i++) blocks[i] = take(size);
        for (size_t i = depth; i-- > 0;) give(blocks[i]);
    }
}

int main(int argc, char **argv)
{
    if (argc != 5 || (strcmp(argv[1], "call") != 0 && strcmp(argv[1], "none") != 0)) {
        fprintf(stderr, "usage: pair call|none SIZE DEPTH ROUNDS\n");
        return 2;
    }
    const int call = strcmp(argv[1], "call") == 0;
    allocate = call ? malloc : allocate_nothing;
    release = call ? free : release_nothing;
    const size_t depth = strtoull(argv[3], NULL, 10);
    if (depth > DEPTH_MAX) return 2;
    run(strtoull(argv[2], NULL, 10), depth, strtoull(argv[4], NULL, 10));
    return 0;
}
