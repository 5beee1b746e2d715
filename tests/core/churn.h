/*
 * Blocks that come, change their size and go, each marked at both ends: in a thread of its own,
 * until the churn is over, or for some steps.
 */
#ifndef TEST_CHURN_H
#define TEST_CHURN_H

#include <stdatomic.h>

#include "check.h"
#include "shadow.h"

enum { CHURN_SLOTS = 200 };

typedef struct churn {
    uint64_t state; /* of the generator */
    shadow slots[CHURN_SLOTS];
} churn;

static bool shadow_is_sparse = true; /* so that most of the time is spent in malloc and free */
static atomic_bool churn_is_over;

static inline void churn_step(churn *self)
{
    const uint64_t draw = random_next(&self->state);
    shadow *slot = &self->slots[draw % CHURN_SLOTS];
    const int seldom = shadow_may_fail ? 59 : 54;
    const size_t most = draw >> seldom == 0 ? 1000000 : draw >> 62 == 1 ? 40000 : 1000;
    const size_t size = (draw >> 20) % most + 1;
    if (slot->block != NULL && (draw >> 50) % 4 == 0) return shadow_resize(slot, size);
    if (slot->block != NULL) shadow_release(slot);
    shadow_take(slot, random_next(&self->state), size);
}

static inline void churn_steps(uint64_t seed, size_t steps)
{
    churn self = {.state = seed};
    for (size_t i = 0; i < steps; i++) churn_step(&self);
    for (size_t i = 0; i < CHURN_SLOTS; i++)
        if (self.slots[i].block != NULL) shadow_release(&self.slots[i]);
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
