/*
 * The pop that malloc and operator new begin with.
 *
 * A small block costs a look-up of its class, a pop from the thread's magazine, and the removal of
 * its seal. A block without a seal is not handed out. One branch checks that, for three cases:
 *
 * 1. The magazine is empty, or the thread has no heap yet. Then the pop finds a block that never
 * has a seal, and the slow path gets blocks.
 *
 * 2. A block was freed twice, and its second copy is popped while the first is in use. The program
 * is ended if the owner has not written to the second word since; if it has, hz cannot tell this
 * from case 3. The second free does not check for that, as it would have to wait for a read of the
 * block.
 *
 * 3. The block's second word was written to while it was free. The program may have freed it once
 * and written to it later, which other allocators let pass: the block stays out of use, and the
 * program runs on.
 */
#ifndef HZ_POP_H
#define HZ_POP_H

#include "block.h"
#include "heap.h"
#include "seal.h"
#include "size_class.h"

/* The block on top of a stack, now the caller's; NULL when the slow path must get one. */
HZ_FAST void *hz_stack_pop(hz_stack *stack)
{
    void **top = stack->top;
    void *block = top[-1];
    if (HZ_UNLIKELY(!hz_is_sealed(block, stack->key))) return NULL;
    stack->top = top - 1;
    __builtin_prefetch(top[-2], 1); /* the next one: another CPU may have its line */
    hz_unseal(block);
    return block;
}

/* A block of at least `size` bytes; NULL also when that is not small. */
HZ_FAST void *hz_pop_small(size_t size)
{
    if (HZ_UNLIKELY(size > hz_map.small_max_bytes)) return NULL;
    return hz_stack_pop(hz_stack_at(hz_home_row_mine, hz_small_stack(size)));
}

#endif
