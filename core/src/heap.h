/*
 * The calling thread's heap. heap.c makes it at the thread's first slow call.
 */
#ifndef HZ_HEAP_H
#define HZ_HEAP_H

#include "compiler.h"
#include "types.h"

#pragma GCC visibility push(hidden)

/* The heap of a thread that has none: every magazine is both empty and full. */
extern hz_heap hz_heap_none;
extern _Thread_local hz_heap *hz_heap_mine __attribute__((tls_model("initial-exec")));
/* The `home_row` of hz_heap_mine, for allocations, and its `rows`, for frees. Where each free must
 * take the slow path, hz_rows_mine has no room for any block. */
extern _Thread_local hz_stack *hz_home_row_mine __attribute__((tls_model("initial-exec")));
extern _Thread_local hz_stack *hz_rows_mine __attribute__((tls_model("initial-exec")));
/* Where each free reads its block first: the offset in bytes from hz_rows_mine to the heap's own
 * rows. Otherwise 0. */
extern _Thread_local ptrdiff_t hz_rows_away __attribute__((tls_model("initial-exec")));

/* The thread's heap, made at need; &hz_heap_none when the thread can have none (it is ending, or no
 * memory). */
hz_heap *hz_heap_enter(void);

/* Another heap for a thread that has moved to another node. */
hz_heap *hz_heap_follow(void);
enum { HZ_ASTRAY = 2 }; /* how often it must have been seen there */

#pragma GCC visibility pop

/* The same, without a call where the thread has one already. */
HZ_FAST hz_heap *hz_heap_entered(void)
{
    return HZ_UNLIKELY(hz_heap_mine == &hz_heap_none) ? hz_heap_enter() : hz_heap_mine;
}

#endif
