/*
 * Blocks that come, change their size and go, each marked at both ends: in a thread of its own,
 * until the churn is over, or for some steps.
 */
#ifndef TEST_CHURN_H
#define TEST_CHURN_H

#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { CHURN_SLOTS = 200 };

typedef struct churn_slot {
    unsigned char *block; /* NULL: the slot is empty */
    size_t size;
} churn_slot;

typedef struct churn {
    uint64_t state; /* of the generator */
    churn_slot slots[CHURN_SLOTS];
} churn;

static atomic_bool churn_is_over;
static bool churn_may_fail; /* whether memory may be refused, with ENOMEM */

static inline void churn_mark(churn_slot *slot, unsigned char *block, size_t size)
{
    *slot = (churn_slot){block, size};
    block[0] = block[size - 1] = (unsigned char)size;
}

static inline void churn_require_marked(const churn_slot *slot)
{
    const unsigned char mark = (unsigned char)slot->size;
    require(slot->block[0] == mark && slot->block[slot->size - 1] == mark,
            "a block of %zu bytes changed", slot->size);
}

static inline void churn_free(churn_slot *slot)
{
    const int before = errno;
    if (slot->block == NULL) return;
    churn_require_marked(slot);
    free(slot->block);
    require(errno == before, "free of %zu bytes set errno to %d", slot->size, errno);
    slot->block = NULL;
}

/* A zeroed block is written to at once, so that a calloc that trusts a failed purge is seen. */
static inline unsigned char *churn_take(uint64_t draw, size_t size)
{
    if (draw % 8 > 1) return malloc(size);
    if (draw % 8 == 1) return memalign(4096, size);
    unsigned char *block = calloc(1, size);
    for (size_t i = 0; block != NULL && i < size; i += i < 4096 ? 1 : 509)
        require(block[i] == 0, "byte %zu of calloc(1, %zu) is %d", i, size, block[i]);
    return block != NULL ? memset(block, 0xd1, size) : NULL;
}

static inline void churn_step(churn *self)
{
    const uint64_t draw = random_next(&self->state);
    churn_slot *slot = &self->slots[draw % CHURN_SLOTS];
    const int seldom = churn_may_fail ? 59 : 54;
    const size_t most = draw >> seldom == 0 ? 1000000 : draw >> 62 == 1 ? 40000 : 1000;
    const size_t size = (draw >> 20) % most + 1;
    const bool resizes = slot->block != NULL && (draw >> 50) % 4 == 0;
    const unsigned char first = resizes ? slot->block[0] : 0;
    if (resizes)
        churn_require_marked(slot);
    else
        churn_free(slot);
    errno = 0;
    unsigned char *block = resizes ? realloc(slot->block, size) : churn_take(draw >> 40, size);
    require(block != NULL || (churn_may_fail && errno == ENOMEM), "%zu bytes: errno %d", size,
            errno);
    if (block == NULL) return;
    require(!resizes || block[0] == first, "realloc lost the contents");
    churn_mark(slot, block, size);
}

static inline void churn_steps(uint64_t seed, size_t steps)
{
    churn self = {.state = seed};
    for (size_t i = 0; i < steps; i++) churn_step(&self);
    for (size_t i = 0; i < CHURN_SLOTS; i++) churn_free(&self.slots[i]);
}

static inline void *churn_run(void *seed)
{
    for (uint64_t state = (uint64_t)(uintptr_t)seed;
         !atomic_load_explicit(&churn_is_over, memory_order_relaxed);)
        churn_steps(random_next(&state), 1000);
    return NULL;
}

static inline void churn_end(const crowd *all)
{
    atomic_store(&churn_is_over, true);
    crowd_end(all);
}

#endif
