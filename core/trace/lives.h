/*
 * Which blocks live: from an address to the step that gave the block there.
 */
#ifndef HZ_TRACE_LIVES_H
#define HZ_TRACE_LIVES_H

#include <stddef.h>
#include <stdint.h>

#define HZ_NO_STEP UINT64_MAX

/* A table of addresses. */
typedef struct hz_lives {
    struct hz_life {
        uint64_t address; /* 0: this slot is empty */
        uint64_t step;    /* that gave the block */
    } * slots;
    size_t mask;     /* number of slots, a power of two, less one */
    size_t count;    /* blocks that live */
    uint64_t factor; /* odd; spreads the addresses */
} hz_lives;

void hz_lives_make(hz_lives *lives);
void hz_lives_drop(hz_lives *lives);

/* The step that gave the block at an address; HZ_NO_STEP when none lives there. */
uint64_t hz_lives_find(const hz_lives *lives, uint64_t address);

/* The same, and the block lives no more. */
uint64_t hz_lives_take(hz_lives *lives, uint64_t address);

/* Notes a block; none lives at its address. */
void hz_lives_put(hz_lives *lives, uint64_t address, uint64_t step);

#endif
