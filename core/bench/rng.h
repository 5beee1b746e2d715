/*
 * The random numbers of hz-bench: inline, without division, the same on every machine.
 *
 * A draw advances a Weyl sequence and folds the 128-bit product of two views of it. One draw gives
 * 64 bits, which is enough for a slot (low half) and a size or a coin (high half).
 */
#ifndef HZ_BENCH_RNG_H
#define HZ_BENCH_RNG_H

#include <stddef.h>
#include <stdint.h>

/* Folds the 128-bit product of `a` and `b` into 64 bits. */
static inline uint64_t hz_fold(uint64_t a, uint64_t b)
{
    const unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* The next 64 random bits of `state`. */
static inline uint64_t hz_random(uint64_t *state)
{
    *state += UINT64_C(0x9e3779b97f4a7c15);
    return hz_fold(*state, *state ^ UINT64_C(0xd1b54a32d192ed03));
}

/* The start of stream `stream` of `seed`: distant streams for neighbouring seeds and threads. */
static inline uint64_t hz_random_start(uint64_t seed, uint64_t stream)
{
    uint64_t state =
        hz_fold(seed ^ UINT64_C(0xa24baed4963ee407), UINT64_C(0x9fb21c651e98df25)) + stream;
    (void)hz_random(&state);
    return hz_random(&state);
}

/* Maps 32 random bits onto 0..range-1 (range at most 2^32), by multiplication. */
static inline uint32_t hz_scale(uint32_t bits, uint64_t range)
{
    return (uint32_t)((bits * range) >> 32);
}

/* The low and the high half of a draw. */
static inline uint32_t hz_low(uint64_t draw)
{
    return (uint32_t)draw;
}
static inline uint32_t hz_high(uint64_t draw)
{
    return (uint32_t)(draw >> 32);
}

/* Puts 0..count-1 into `order`, shuffled. */
static inline void hz_shuffle(uint64_t *state, size_t *order, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const size_t j = hz_scale(hz_low(hz_random(state)), i + 1);
        order[i] = order[j];
        order[j] = i;
    }
}

#endif
