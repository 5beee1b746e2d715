/*
 * Blocks that come and go, each marked at both ends: in a thread of its own, until the churn is
 * over.
 */
#ifndef TEST_CHURN_H
#define TEST_CHURN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "check.h"

enum { CHURN_SLOTS = 200 };

typedef struct churn {
    uint64_t state; /* of the generator */
    struct {
        unsigned char *block; /* NULL: the slot is empty */
        size_t size;
    } slots[CHURN_SLOTS];
} churn;

static atomic_bool churn_is_over;

static inline void churn_free(churn *self, size_t at)
{
    const unsigned char *block = self->slots[at].block, mark = (unsigned char)self->slots[at].size;
    if (block == NULL) return;
    require(block[0] == mark && block[self->slots[at].size - 1] == mark, "a block changed");
    free(self->slots[at].block);
    self->slots[at].block = NULL;
}

static inline void churn_step(churn *self)
{
    const uint64_t draw = random_next(&self->state);
    const size_t at = draw % CHURN_SLOTS;
    const size_t most = draw >> 54 == 0 ? 400000 : draw >> 62 == 1 ? 40000 : 1000;
    const size_t size = (draw >> 20) % most + 1;
    churn_free(self, at);
    unsigned char *block = draw >> 59 == 3 ? realloc(malloc(10), size) : malloc(size);
    require(block != NULL, "no memory for %zu bytes", size);
    block[0] = block[size - 1] = (unsigned char)size;
    self->slots[at].block = block;
    self->slots[at].size = size;
}

static inline void churn_steps(uint64_t seed, size_t steps)
{
    churn self = {.state = seed};
    for (size_t i = 0; i < steps; i++) churn_step(&self);
    for (size_t i = 0; i < CHURN_SLOTS; i++) churn_free(&self, i);
}

static inline void *churn_run(void *seed)
{
    churn self = {.state = (uint64_t)(uintptr_t)seed};
    while (!atomic_load_explicit(&churn_is_over, memory_order_relaxed)) churn_step(&self);
    for (size_t i = 0; i < CHURN_SLOTS; i++) churn_free(&self, i);
    return NULL;
}

static inline void churn_end(const crowd *all)
{
    atomic_store(&churn_is_over, true);
    crowd_end(all);
}

#endif
