/*
 * hz-record's side of the pool: see log_format.h.
 */
#ifndef HZ_TRACE_POOL_H
#define HZ_TRACE_POOL_H

#include "log_format.h"

/* Makes an empty pool in memory that ends with its last user; the path is where others open it. */
hz_pool *hz_pool_make(char path[HZ_BELL_PATH_BYTES], uint64_t touch_bytes);

/* Calls `visit` with each leaf that is not free. */
void hz_pool_each(hz_pool *pool, void (*visit)(void *context, size_t index, hz_leaf *leaf),
                  void *context);

/* Gives a leaf back to the threads. */
void hz_pool_free(hz_pool *pool, size_t index);

/* Sleeps until some leaves are full, but not for long; `seen` is `full` before they were looked at.
 */
void hz_pool_wait(hz_pool *pool, unsigned seen);

/* Says that nothing more is to be logged, and why. The first reason stays. */
void hz_pool_end(hz_pool *pool, unsigned why);

#endif
