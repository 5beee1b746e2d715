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

/* The class of (size + 15) / 16. A request for nothing gets the smallest block. */
const uint8_t hz_small_classes[HZ_SMALL_MAX_BYTES / HZ_GRANULE_BYTES + 1] = {
    1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 10, 10, 11, 11, 12, 12,
    13, 13, 13, 13, 14, 14, 14, 14, 15, 15, 15, 15, 16, 16, 16, 16, 17,
    17, 17, 17, 17, 17, 17, 17, 18, 18, 18, 18, 18, 18, 18, 18, 19, 19,
    19, 19, 19, 19, 19, 19, 20, 20, 20, 20, 20, 20, 20, 20,
};
