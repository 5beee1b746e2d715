/*
 * The size classes: 16-byte steps up to 128 bytes, then four classes to each doubling.
 *
 * At most a fifth of a block is lost to rounding, and few classes mean few magazines: the footprint
 * of the hot half of a heap decides more on mixed sizes than an instruction does. From 1 KiB on a
 * class is one cache line larger than the round number: blocks of round sizes all start in the same
 * few sets of a cache and evict each other. Requests for an alignment above a line, which such
 * blocks do not have, are served by classes of their own that are plain powers of two.
 */
#include "internal.h"

/* clang-format off */
const uint32_t hz_class_bytes[HZ_CLASSES + 1] = {
    0, 16, 32, 48, 64, 80, 96, 112, 128,
    160, 192, 224, 256, 320, 384, 448, 512, 640,
    768, 896, 1088, 1344, 1600, 1856, 2112, 2624, 3136,
    3648, 4160, 5184, 6208, 7232, 8256, 10304, 12352, 14400,
    16448, 20544, 24640, 28736, 32832, 41024, 49216, 57408, 65600,
    81984, 98368, 114752, 131136, 163904, 196672, 229440, 262208, 128,
    256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536,
};

/* By (size + 15) / 16. A request for nothing gets the smallest block. */
#define STACK(class_) ((class_) * sizeof(hz_stack))
const uint16_t hz_small_stacks[HZ_SMALL_MAX_BYTES / HZ_GRANULE_BYTES + 1] = {
    [0 ... 1] = STACK(1),
    [2] = STACK(2),
    [3] = STACK(3),
    [4] = STACK(4),
    [5] = STACK(5),
    [6] = STACK(6),
    [7] = STACK(7),
    [8] = STACK(8),
    [9 ... 10] = STACK(9),
    [11 ... 12] = STACK(10),
    [13 ... 14] = STACK(11),
    [15 ... 16] = STACK(12),
    [17 ... 20] = STACK(13),
    [21 ... 24] = STACK(14),
    [25 ... 28] = STACK(15),
    [29 ... 32] = STACK(16),
    [33 ... 40] = STACK(17),
    [41 ... 48] = STACK(18),
    [49 ... 56] = STACK(19),
    [57 ... 64] = STACK(20),
};
/* clang-format on */

/* A large block is the only one of its run, whatever its size. */
hz_page hz_page_for(uint32_t first, uint32_t class_, uint32_t shard)
{
    const bool is_large = class_ == HZ_CLASS_LARGE;
    const uint64_t granules = is_large ? 1 : hz_class_bytes[class_] >> HZ_GRANULE_SHIFT;
    return (hz_page){
        .first = first,
        .step = (uint32_t)((UINT64_C(1) << 32) / granules + 1),
        .stack = (uint16_t)STACK(class_),
        .class_ = (uint8_t)class_,
        .shard = (uint8_t)shard,
    };
}
