/*
 * A walk through a trace: all operations of all threads in one order that a replay could have,
 * without an allocator. Every operation is shown to be possible; what is not is refused.
 *
 * Waits follow each thread's own order and each cell has one thread that fills it and one that
 * empties it, so if one order of the threads comes to the end, every order does.
 */
#ifndef HZ_TRACE_WALK_H
#define HZ_TRACE_WALK_H

#include "trace_read.h"

enum { HZ_TRACE_CELLS_A_GROUP = 8 };

#define HZ_TRACE_NO_THREAD UINT32_MAX

/* ---- in the order of time -------------------------------------------------------------------- */

/* An operation that calls the allocator, a spawn or a join. */
typedef struct hz_ordered {
    uint32_t thread;
    hz_trace_operation operation;
    uint64_t time_ns; /* from the start of the trace */
    uint64_t block;   /* number of the block that it gives, moves or ends, from 1; else 0 */
} hz_ordered;

typedef struct hz_walk hz_walk;

hz_walk *hz_walk_make(const hz_trace *trace);

/* The next operation; false when all threads have ended. */
bool hz_walk_next(hz_walk *walk, hz_ordered *next);

/* ---- the rehearsal, before a trace is replayed ----------------------------------------------- */

/* The two threads of a group of cells. */
typedef struct hz_trace_pair {
    uint32_t giver; /* fills them, or HZ_TRACE_NO_THREAD */
    uint32_t taker; /* empties them, or HZ_TRACE_NO_THREAD */
} hz_trace_pair;

/* What is known of a thread behind the file's words. */
typedef struct hz_trace_part {
    void **slots;           /* slot_count; all NULL after the rehearsal */
    uint64_t *old_sizes;    /* what each of its reallocs finds, in order */
    uint64_t realloc_count; /* how many */
    uint64_t left_count;    /* blocks that stay in its slots at the end */
    uint64_t left_bytes;    /* the bytes in them */
    uint32_t joiner;        /* the thread that waits for its end, or HZ_TRACE_NO_THREAD */
} hz_trace_part;

/* A trace with what a replay needs and the file does not say. */
typedef struct hz_rehearsed {
    hz_trace trace;           /* the file */
    hz_trace_part *parts;     /* one for each thread */
    hz_trace_pair *pairs;     /* one for each group of cells */
    _Atomic uintptr_t *cells; /* cell_count; all 0 after the rehearsal */
    uint64_t left_in_cells;   /* blocks that stay in cells at the end */
    uint64_t left_bytes;      /* the bytes in them */
    uint64_t own_bytes;       /* memory that the file and all this take, all of it resident */
} hz_rehearsed;

/* Opens a file and rehearses it; refuses with one sentence what cannot be replayed. */
hz_rehearsed hz_rehearse(const char *path);

#endif
