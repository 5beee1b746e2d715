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
#include <errno.h>
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

static size_t number(const char *text, size_t low, size_t high)
{
    char *end = NULL;
    errno = 0;
    const unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || value < low || value > high) {
        fprintf(stderr, "pair: got '%s', a number from %zu to %zu is needed\n", text, low, high);
        exit(2);
    }
    return (size_t)value;
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
    run(number(argv[2], 0, 1u << 30), number(argv[3], 1, DEPTH_MAX), number(argv[4], 0, 1u << 30));
    return 0;
}
