/*
 * What a block looks like under hardening=full.
 *
 *     [ what was asked for | fence: the key's bytes, at least HZ_FENCE_BYTES | trailer ]
 *
 * The fence begins at the first byte that the program must not write and ends with the trailer, the
 * block's last word. The trailer is the key of the class, mixed with the block's address and its
 * state: free, or how many bytes were asked for. A free block is all zero but for its seal (seal.h)
 * and its trailer. Included by harden.c and guard.c only.
 */
#ifndef HZ_HARDEN_H
#define HZ_HARDEN_H

#include "internal.h"

enum {
    HZ_FENCE_BYTES = 32, /* least bytes between what was asked for and the trailer */
    HZ_TRAILER_BYTES = 8,
    HZ_EDGE_BYTES = HZ_FENCE_BYTES + HZ_TRAILER_BYTES,
};

/* What the bytes of a fence are: odd, and the same for all blocks of a class. */
HZ_FAST unsigned char hz_fence_byte(uint32_t class_)
{
    return (unsigned char)(hz_map.keys[class_] >> 8 | 1);
}

/* Whether all bytes have the value: the first one does, and each other equals the one before. */
HZ_FAST bool hz_is_all(const unsigned char *bytes, size_t count, unsigned char value)
{
    return count == 0 || (bytes[0] == value && memcmp(bytes, bytes + 1, count - 1) == 0);
}

#endif
