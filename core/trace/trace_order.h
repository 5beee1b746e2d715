/*
 * The operations of all threads of a trace in one order that a replay could have: by time, and
 * never before what they wait for. Blocks get numbers instead of slots and cells.
 */
#ifndef HZ_TRACE_ORDER_H
#define HZ_TRACE_ORDER_H

#include "trace_read.h"

/* An operation that calls the allocator, a spawn, a join or a touch. */
typedef struct hz_ordered {
    uint32_t thread;
    hz_trace_operation operation;
    uint64_t time_ns; /* from the start of the trace */
    uint64_t block;   /* number of the block that it gives, moves or ends, from 1; 0: the trace
                         does not tell */
} hz_ordered;

typedef struct hz_order hz_order;

hz_order *hz_order_make(const hz_trace *trace);

/* The next operation; false when there is none, or when every thread waits. */
bool hz_order_next(hz_order *order, hz_ordered *next);

/* Whether some thread still has an operation: it waits for what does not come. */
bool hz_order_is_stuck(const hz_order *order);

void hz_order_drop(hz_order *order);

#endif
