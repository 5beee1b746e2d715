/*
 * The rehearsal: a trace is followed once without an allocator, before it is replayed.
 *
 * It shows that every operation is possible: slots and cells are full or empty when they have to
 * be, sizes agree, and no thread waits for ever. Waits follow each thread's own order and each cell
 * has one thread that fills it and one that empties it, so if one order of the threads comes to the
 * end, every order does. It also finds what a replay needs and the file does not say.
 */
#ifndef HZ_TRACE_REHEARSE_H
#define HZ_TRACE_REHEARSE_H

#include "trace_read.h"

enum { HZ_TRACE_CELLS_A_GROUP = 8 };

#define HZ_TRACE_NO_THREAD UINT32_MAX

/* The two threads of a group of cells. */
typedef struct hz_trace_pair {
    uint32_t giver; /* fills them, or HZ_TRACE_NO_THREAD */
    uint32_t taker; /* empties them, or HZ_TRACE_NO_THREAD */
} hz_trace_pair;

/* What is known of a thread behind the file's words. */
typedef struct hz_trace_part {
    void **slots;              /* slot_count; all NULL after the rehearsal */
    const uint64_t *old_sizes; /* what each of its reallocs finds, in order */
    uint64_t realloc_count;    /* how many */
    uint64_t left_count;       /* blocks that stay in its slots at the end */
    uint64_t left_bytes;       /* the bytes in them */
    uint32_t joiner;           /* the thread that waits for its end, or HZ_TRACE_NO_THREAD */
} hz_trace_part;

/* A trace with what a replay needs. */
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
