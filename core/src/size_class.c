/*
 * The size classes: 16-byte steps up to 128 bytes, then four classes to each doubling.
 *
 * Rounding loses at most a fifth of a block from 65 bytes on, and at most 15 bytes below. Few
 * classes mean few magazines: with mixed sizes, the number of cache lines that a heap touches
 * matters more than an instruction. From 1 KiB on a class is one cache line larger than the round
 * number: blocks of round sizes all start in the same few sets of a cache and evict each other.
 * Such blocks are aligned to a line at most. Requests for more have classes of their own, which are
 * powers of two.
 *
 * The class of a size up to 32 KiB comes from a table, of which a program touches few cache lines;
 * above that from arithmetic. The branch between the two is predicted badly if a program's sizes
 * lie on both sides: a limit of 1 KiB cost a fifth of the speed of sizes from 16 to 2048 bytes.
 */
#include "internal.h"

/* clang-format off */
/* Class, bytes of the class below, bytes. */
#define SMALL_CLASSES(X) \
    X(1, 0, 16) X(2, 16, 32) X(3, 32, 48) X(4, 48, 64) \
    X(5, 64, 80) X(6, 80, 96) X(7, 96, 112) X(8, 112, 128) \
    X(9, 128, 160) X(10, 160, 192) X(11, 192, 224) X(12, 224, 256) \
    X(13, 256, 320) X(14, 320, 384) X(15, 384, 448) X(16, 448, 512) \
    X(17, 512, 640) X(18, 640, 768) X(19, 768, 896) X(20, 896, 1088) \
    X(21, 1088, 1344) X(22, 1344, 1600) X(23, 1600, 1856) X(24, 1856, 2112) \
    X(25, 2112, 2624) X(26, 2624, 3136) X(27, 3136, 3648) X(28, 3648, 4160) \
    X(29, 4160, 5184) X(30, 5184, 6208) X(31, 6208, 7232) X(32, 7232, 8256) \
    X(33, 8256, 10304) X(34, 10304, 12352) X(35, 12352, 14400) X(36, 14400, 16448) \
    X(37, 16448, 20544) X(38, 20544, 24640) X(39, 24640, 28736) X(40, 28736, 32832)

const uint32_t hz_class_bytes[HZ_CLASSES + 1] = {
#define BYTES(class_, below, bytes) [class_] = (bytes),
    SMALL_CLASSES(BYTES)
    [HZ_SMALL_CLASSES + 1] =
    41024, 49216, 57408, 65600, 81984, 98368, 114752, 131136, 163904, 196672, 229440, 262208,
    [HZ_SIZED_CLASSES + 1] = 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536,
};

/* By (size + 15) / 16. Size 0 has no class until hz_fast_path_open gives it one. */
uint16_t hz_small_stacks[HZ_SMALL_MAX_BYTES / HZ_GRANULE_BYTES + 1] = {
#define RANGE(class_, below, bytes) [(below) / 16 + 1 ... (bytes) / 16] = HZ_STACK_OFFSET(class_),
    SMALL_CLASSES(RANGE)
};
/* clang-format on */

/* That no two ranges share a size is for the compiler to say (-Woverride-init). */
#define WIDTH(class_, below, bytes) +((bytes) - (below))
#define ONE(class_, below, bytes) +1
_Static_assert(0 SMALL_CLASSES(WIDTH) == HZ_SMALL_MAX_BYTES, "each small size has a class");
_Static_assert(0 SMALL_CLASSES(ONE) == HZ_SMALL_CLASSES, "types.h counts the rows");

/*
 * See block.h. A large block starts at the first byte of its page: every other address of the page
 * is higher, so ABOVE or BETWEEN, whatever size the step is made of. Blocks above
 * HZ_SMALL_MAX_BYTES are too long for BETWEEN: their steps name the stack of no class, which is
 * always full.
 */
uint64_t hz_class_step(uint32_t class_, uint32_t shard)
{
    const uint64_t bytes = class_ == HZ_CLASS_LARGE ? HZ_GRANULE_BYTES : hz_class_bytes[class_];
    const bool has_fast_free = class_ != HZ_CLASS_LARGE && bytes <= HZ_SMALL_MAX_BYTES;
    const uint64_t stack = has_fast_free ? HZ_ROW_OFFSET(shard) + HZ_STACK_OFFSET(class_) : 0;
    const uint64_t least = UINT64_MAX / bytes + HZ_SLOPE;
    return -(least + (uint16_t)(-stack - least)); /* its lowest 16 bits are the stack's */
}
