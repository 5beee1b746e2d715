/*
 * The size classes: 16-byte steps up to 128 bytes, then four classes to each doubling up to
 * HZ_CLASS_MAX_BYTES.
 *
 * At most a fifth of a block is lost to rounding, and few classes mean few magazines: the footprint
 * of the hot half of a heap decides more on mixed sizes than an instruction does.
 */
#include "internal.h"

const uint32_t hz_class_bytes[HZ_CLASSES + 1] = {
    0,     16,    32,    48,     64,     80,     96,     112,    128,    160,   192,
    224,   256,   320,   384,    448,    512,    640,    768,    896,    1024,  1280,
    1536,  1792,  2048,  2560,   3072,   3584,   4096,   5120,   6144,   7168,  8192,
    10240, 12288, 14336, 16384,  20480,  24576,  28672,  32768,  40960,  49152, 57344,
    65536, 81920, 98304, 114688, 131072, 163840, 196608, 229376, 262144,
};

/* The class of (size + 15) / 16. A request for nothing gets the smallest block. */
const uint8_t hz_small_classes[HZ_SMALL_MAX_BYTES / HZ_GRANULE_BYTES + 1] = {
    1,  1,  2,  3,  4,  5,  6,  7,  8,  9,  9,  10, 10, 11, 11, 12, 12, 13, 13, 13, 13, 14,
    14, 14, 14, 15, 15, 15, 15, 16, 16, 16, 16, 17, 17, 17, 17, 17, 17, 17, 17, 18, 18, 18,
    18, 18, 18, 18, 18, 19, 19, 19, 19, 19, 19, 19, 19, 20, 20, 20, 20, 20, 20, 20, 20,
};
