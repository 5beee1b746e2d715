/*
 * Where a stack lies: a thread's rows are one table of hz_stack, a row for each shard, and in a row
 * a stack for each class. The fast paths know a stack by its byte offset in that table or in a row.
 */
#ifndef HZ_ROWS_H
#define HZ_ROWS_H

#include "compiler.h"
#include "types.h"

/* Byte offsets: of a class's stack in its row, and of a shard's row in the rows. */
#define HZ_STACK_OFFSET(class_) ((class_) * sizeof(hz_stack))
#define HZ_ROW_OFFSET(shard) ((shard)*HZ_STACK_OFFSET((size_t)HZ_CLASS_NUMBERS))

/* The sum of the two fits the lowest 16 bits of a page's step (hz_step_stack). */
_Static_assert(HZ_ROW_OFFSET(HZ_SHARDS_MAX) == UINT16_MAX + 1, "a step names every row");

/*
 * The stack at a byte offset from a row. The empty asm statement makes the compiler compute its
 * address once, instead of adding an index in every access. Newer Intel cores forward a store to
 * the next load without delay only if neither has an index. Otherwise each malloc and free waits
 * seven cycles for the `top` that the one before stored.
 */
HZ_FAST hz_stack *hz_stack_at(hz_stack *row, size_t bytes)
{
    hz_stack *stack = (hz_stack *)(void *)((unsigned char *)row + bytes);
    __asm__("" : "+r"(stack));
    return stack;
}

#endif
