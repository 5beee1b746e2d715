/*
 * Threads that allocate, move and free each other's blocks as fast as they can, and know which call
 * ended which block: `stress THREADS CALLS SEED`. Each thread prints a digest of that; pairs.c
 * computes the same from a trace.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "digest.h"

enum { BOXES = 64, OWN = 32, SIZE_MIN = 16, SIZE_SPAN = 2000 };

typedef struct worker {
    pthread_t handle;
    uint32_t number;
    uint32_t given; /* blocks that it was given */
    uint64_t calls; /* that it makes */
    uint64_t random;
    uint64_t digest;
    void *own[OWN]; /* blocks that it keeps a while */
} worker;

static _Atomic(void *) boxes[BOXES];
static worker workers[THREADS_MAX];

static uint32_t draw(worker *w, uint32_t range)
{
    w->random = mix(w->random, 1);
    return (uint32_t)((w->random >> 32) * range >> 32);
}

/* At the start of each block stands the call that gave it. */
static void *sign(worker *w, void *block, uint64_t kind, size_t size)
{
    if (block == NULL) abort();
    *(identity *)block = (identity){w->number, w->given++};
    w->digest = mix(mix(w->digest, kind), size);
    return block;
}

static void *allocate(worker *w)
{
    const size_t size = SIZE_MIN + draw(w, SIZE_SPAN);
    switch (draw(w, 8)) {
    case 0:
        return sign(w, calloc(1, size), DIGEST_GIVE, size);
    case 1:
        return sign(w, aligned_alloc(64, size / 64 * 64 + 64), DIGEST_GIVE, size / 64 * 64 + 64);
    default:
        return sign(w, malloc(size), DIGEST_GIVE, size);
    }
}

static void digest_block(worker *w, uint64_t kind, const void *block)
{
    const identity of = *(const identity *)block;
    w->digest = mix(mix(mix(w->digest, kind), of.thread), of.call);
}

static void *use(worker *w, void *block)
{
    if (block == NULL) return allocate(w);
    if (draw(w, 4) == 0) {
        const size_t size = SIZE_MIN + draw(w, SIZE_SPAN);
        digest_block(w, DIGEST_MOVE, block);
        return sign(w, realloc(block, size), DIGEST_GIVE, size);
    }
    digest_block(w, DIGEST_END, block);
    free(block);
    return NULL;
}

static void *run(void *argument)
{
    worker *w = argument;
    void *volatile mark = malloc(MARK_BYTES + w->number);
    free(mark);
    for (uint64_t i = 0; i < w->calls; i++) {
        void **own = &w->own[draw(w, OWN)];
        if (draw(w, 2) == 0) *own = atomic_exchange(&boxes[draw(w, BOXES)], *own);
        *own = use(w, *own);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc != 4) return 2;
    const uint32_t threads = (uint32_t)atoi(argv[1]);
    if (threads < 1 || threads > THREADS_MAX) return 2;
    for (uint32_t i = 0; i < threads; i++) {
        workers[i].number = i;
        workers[i].calls = strtoull(argv[2], NULL, 10) / threads;
        workers[i].random = mix(strtoull(argv[3], NULL, 10), i + 1);
        if (pthread_create(&workers[i].handle, NULL, run, &workers[i]) != 0) return 1;
    }
    for (uint32_t i = 0; i < threads; i++) pthread_join(workers[i].handle, NULL);
    for (uint32_t i = 0; i < threads; i++)
        printf("%u %u %016llx\n", i, workers[i].given, (unsigned long long)workers[i].digest);
    return 0;
}
