/*
 * What steps do with blocks: take, touch, regrow, give, and draw a size.
 *
 * A plain run pays for one predictable branch, one addition and the touch. A run that times its
 * calls leaves the fast path at the branch.
 */
#ifndef HZ_BENCH_BLOCKS_H
#define HZ_BENCH_BLOCKS_H

#include "bench.h"

/* One byte is written to each HZ_TOUCH_STEP bytes of a new block, so that all of it becomes
 * resident: no kernel has smaller pages (they have 4, 16 or 64 KiB). It is the same number on every
 * machine, so that a workload does the same work on each. */
enum { HZ_TOUCH_STEP = 4096, HZ_TOUCH_BYTE = 0x5a };

/* Writes the first 64 bytes of a block, or all of a smaller one: two writes that may overlap. */
static inline void hz_touch_head(unsigned char *block, size_t size)
{
    if (HZ_LIKELY(size >= 64)) {
        memset(block, HZ_TOUCH_BYTE, 64);
    } else if (size >= 32) {
        memset(block, HZ_TOUCH_BYTE, 32);
        memset(block + size - 32, HZ_TOUCH_BYTE, 32);
    } else if (size >= 16) {
        memset(block, HZ_TOUCH_BYTE, 16);
        memset(block + size - 16, HZ_TOUCH_BYTE, 16);
    } else if (size >= 8) {
        memset(block, HZ_TOUCH_BYTE, 8);
        memset(block + size - 8, HZ_TOUCH_BYTE, 8);
    } else {
        for (size_t i = 0; i < size; i++) block[i] = HZ_TOUCH_BYTE;
    }
}

/* Writes into a new block: its head, and one byte in each HZ_TOUCH_STEP. */
static inline void hz_touch_block(unsigned char *block, size_t size)
{
    hz_touch_head(block, size);
    for (size_t at = HZ_TOUCH_STEP; at < size; at += HZ_TOUCH_STEP) block[at] = HZ_TOUCH_BYTE;
}

/* A new block of `size` bytes, accounted for but not touched yet. */
static inline void *hz_take_untouched(hz_player *p, size_t size)
{
    void *block = HZ_LIKELY(p->instruments == NULL) ? malloc(size)
                                                    : hz_take_timed(p->instruments, NULL, size);
    if (HZ_UNLIKELY(block == NULL)) hz_fail_memory(size);
    p->live_bytes += (int64_t)size;
    return block;
}

/* A new block of `size` bytes, touched and accounted for. */
static inline void *hz_take(hz_player *p, size_t size)
{
    void *block = hz_take_untouched(p, size);
    hz_touch_block(block, size);
    return block;
}

/* The same as a struct. */
static inline hz_block hz_take_block(hz_player *p, uint32_t size)
{
    return (hz_block){hz_take(p, size), size};
}

/* Frees a block. */
static inline void hz_give(hz_player *p, hz_block block)
{
    p->live_bytes -= (int64_t)block.size;
    if (HZ_LIKELY(p->instruments == NULL))
        free(block.at);
    else
        hz_free_timed(p->instruments, block.at);
}

/* Gives a block another size, by realloc; what is new is not touched. */
static inline hz_block hz_regrow(hz_player *p, hz_block block, uint32_t size)
{
    void *at = HZ_LIKELY(p->instruments == NULL) ? realloc(block.at, size)
                                                 : hz_take_timed(p->instruments, block.at, size);
    if (HZ_UNLIKELY(at == NULL)) hz_fail_memory(size);
    p->live_bytes += (int64_t)size - (int64_t)block.size;
    return (hz_block){at, size};
}

/* Frees what is in `count` slots, at the end of a run. */
static inline void hz_give_rest(hz_player *p, hz_block *slots, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (slots[i].at != NULL) hz_give(p, slots[i]);
}

/* --- sizes ----------------------------------------------------------------------------------- */

/* The size that 32 random bits choose. */
static inline uint32_t hz_sizes_draw(hz_sizes sizes, uint32_t bits)
{
    return sizes.least + hz_scale(bits, sizes.count);
}

/* The step of a workload in which each operation is a call of `play`. */
#define HZ_PLAY_EACH(play)                                                                         \
    static size_t step(hz_player *p, size_t most)                                                  \
    {                                                                                              \
        for (size_t i = 0; i < most; i++) play(p, p->state);                                       \
        return most;                                                                               \
    }

#endif
