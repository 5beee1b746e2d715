/*
 * Pushing a block to a magazine of the thread's own shard.
 */
#ifndef HZ_MAGAZINE_H
#define HZ_MAGAZINE_H

#include "atomic.h"
#include "compiler.h"
#include "types.h"

#pragma GCC visibility push(hidden)

/* Makes room in the magazine of `class_`, by growth or by a flush, and pushes `block`. */
void hz_magazine_make_room(hz_heap *heap, uint32_t class_, void *block);

#pragma GCC visibility pop

HZ_FAST void hz_magazine_push(hz_heap *heap, uint32_t class_, void *block)
{
    hz_stack *stack = &heap->home_row[class_];
    if (HZ_UNLIKELY(*stack->top == NULL)) {
        hz_magazine_make_room(heap, class_, block);
        return;
    }
    *stack->top = block;
    hz_plain_put(&stack->top, stack->top + 1); /* after the slot */
}

#endif
