/*
 * The seal of a free block: the second word of the block, made of a secret and of the block itself.
 *
 * It is the second word, as a write to a block after its free mostly changes the first (a list's
 * link, a pointer to virtual functions). The seal depends on the block's address and on the key of
 * its class, so it is no seal in any other block, nor at the same address in another class. Keys
 * are random numbers of the process (start.c); their high bits make every seal differ from
 * addresses and from small numbers.
 *
 * What a seal proves: an allocation hands out a block of its own magazine only with its seal in
 * place. Nothing else trusts one: a program may read a freed block and store what it saw into a
 * live one. A free or a realloc that finds a seal searches the places where free blocks wait
 * (die.c), and the result of the search decides.
 */
#ifndef HZ_SEAL_H
#define HZ_SEAL_H

#include "compiler.h"
#include "types.h"

_Static_assert(HZ_GRANULE_BYTES >= 2 * sizeof(uint64_t), "each block has a second word");

/* The bits of a key that are always set, so that no key is an address. */
#define HZ_KEY_BITS ((uint64_t)1 << 62)
_Static_assert(HZ_ADDRESS_MAX <= HZ_KEY_BITS, "no seal is zero or an address");

/* What an allocation writes over the seal: one constant for all blocks, which reveals nothing. A
 * block popped with it was freed twice, and its owner has not written to that word since. */
#define HZ_HANDED_OUT ((uint64_t)-0x5a3c1d2fLL)

HZ_FAST bool hz_is_sealed(const void *block, uint64_t key)
{
    return ((const uint64_t *)block)[1] == (key ^ (uintptr_t)block);
}

HZ_FAST void hz_seal(void *block, uint64_t key)
{
    ((uint64_t *)block)[1] = key ^ (uintptr_t)block;
}

HZ_FAST void hz_unseal(void *block)
{
    ((uint64_t *)block)[1] = HZ_HANDED_OUT;
}

HZ_FAST bool hz_is_unsealed(const void *block)
{
    return ((const uint64_t *)block)[1] == HZ_HANDED_OUT;
}

#endif
