/*
 * The class of a size: from a table up to HZ_SMALL_MAX_BYTES, by arithmetic above it. size_class.c
 * has the table and says why the classes are what they are.
 */
#ifndef HZ_SIZE_CLASS_H
#define HZ_SIZE_CLASS_H

#include "rows.h"

#pragma GCC visibility push(hidden)

extern const uint32_t hz_class_bytes[HZ_CLASSES + 1];
/* By the granules of a size: the byte offset of the stack of its class in a row. */
extern uint16_t hz_small_stacks[HZ_SMALL_MAX_BYTES / HZ_GRANULE_BYTES + 1];

/* The step of a page whose blocks are of `class_` and `shard`, see block.h. */
uint64_t hz_class_step(uint32_t class_, uint32_t shard);

#pragma GCC visibility pop

/*
 * The class of a size in (HZ_SMALL_MAX_BYTES, HZ_CLASS_MAX_BYTES]. There are four classes to each
 * doubling from 32 KiB = 2^15 on. Each is a cache line above the round number, so the line is
 * subtracted first. Then log2 tells the doubling, and the highest three bits, which are 4 to 7,
 * tell which of the four.
 *
 *     size      32833 to 41024   41025 to 49216   ...   57409 to 65600   65601 to 81984   ...
 *     class     41               42                     44               45
 */
HZ_FAST uint32_t hz_class_of_medium(size_t size)
{
    size_t below = size - HZ_CACHE_LINE_BYTES - 1;
    uint32_t log2 = 63u ^ (uint32_t)__builtin_clzl(below);
    return HZ_SMALL_CLASSES + 1 + 4 * (log2 - 15) + (uint32_t)(below >> (log2 - 2)) - 4;
}
_Static_assert((int)HZ_SMALL_MAX_BYTES == (1 << 15) + (int)HZ_CACHE_LINE_BYTES &&
                   (int)HZ_CLASS_MAX_BYTES == (1 << 18) + (int)HZ_CACHE_LINE_BYTES &&
                   (int)HZ_MEDIUM_CLASSES == 4 * (18 - 15),
               "the medium classes begin at 32 KiB and end at 256 KiB");

/* Byte offset of the stack for a size up to HZ_SMALL_MAX_BYTES. */
HZ_FAST uint32_t hz_small_stack(size_t size)
{
    return hz_small_stacks[(size + HZ_GRANULE_BYTES - 1) >> HZ_GRANULE_SHIFT];
}

/* The class of any size up to HZ_CLASS_MAX_BYTES. */
HZ_FAST uint32_t hz_class_of(size_t size)
{
    if (size > HZ_SMALL_MAX_BYTES) return hz_class_of_medium(size);
    return hz_small_stack(size) / sizeof(hz_stack);
}

#endif
