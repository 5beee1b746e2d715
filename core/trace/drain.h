/*
 * hz-record's side: the pool that programs fill, and the log that it is emptied into. See
 * log_format.h.
 */
#ifndef HZ_TRACE_DRAIN_H
#define HZ_TRACE_DRAIN_H

#include "log_format.h"

enum { HZ_IMAGES_MAX = 65536 }; /* whose command lines are looked at */

typedef struct hz_drain {
    hz_pool *pool;                      /* what is emptied */
    char pool_path[HZ_BELL_PATH_BYTES]; /* where others open it */
    int fd;                             /* the log */
    uint64_t bytes;                     /* of its whole frames, and the header */
    int failure;                        /* errno of the write that failed, or 0 */
    uint32_t written[HZ_LEAF_COUNT];    /* bytes of each leaf that are in the log */
    uint64_t looked_ns;                 /* when leaves of ended threads were last looked for */
    uint64_t flushed_ns;                /* when leaves that fill slowly were last written */
    char *const *words;                 /* command line of the program that was started, or NULL */
    int32_t words_pid;                  /* the process that it was started as */
    bool is_known[HZ_IMAGES_MAX];       /* whether the log has the command line of an image */
} hz_drain;

/* Makes an empty pool in memory that ends with its last user. */
void hz_drain_make_pool(hz_drain *drain);

/* Makes the log; refuses with a sentence when that is not possible. */
void hz_drain_open_log(hz_drain *drain, const char *path, bool is_woken);

/* Before the first step. */
void hz_drain_start(hz_drain *drain);

/* Writes what is full, and from time to time what is not; sleeps when there was nothing. */
void hz_drain_step(hz_drain *drain);

/* Writes all that is left and the last frame. */
void hz_drain_end(hz_drain *drain);

#endif
