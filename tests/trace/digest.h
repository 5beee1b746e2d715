/*
 * What stress.c and pairs.c have in common.
 */
#ifndef TEST_TRACE_DIGEST_H
#define TEST_TRACE_DIGEST_H

#include <stdint.h>

/* The first block of thread n has MARK_BYTES and n more bytes. */
enum { THREADS_MAX = 64, MARK_BYTES = 1 << 20, DIGEST_GIVE = 1, DIGEST_MOVE = 2, DIGEST_END = 3 };

/* The call that gave a block last. */
typedef struct identity {
    uint32_t thread;
    uint32_t call;
} identity;

static inline uint64_t mix(uint64_t state, uint64_t value)
{
    state = (state ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    return state ^ state >> 29;
}

#endif
