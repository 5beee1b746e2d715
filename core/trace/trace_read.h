/*
 * Reading a trace: whole, or what stands before the first damage.
 */
#ifndef HZ_TRACE_READ_H
#define HZ_TRACE_READ_H

#include "trace_format.h"

enum { HZ_REASON_BYTES = 256 };

/* A trace in memory. */
typedef struct hz_trace {
    const unsigned char *bytes;   /* the file; what is read points into it */
    size_t size;                  /* in bytes */
    hz_trace_header header;       /* a copy; of a damaged trace, what its chunks tell */
    hz_trace_thread *threads;     /* of the directory, or what the chunks tell */
    hz_trace_place *places;       /* sorted by thread, then by number */
    const char *notes;            /* header.notes_bytes of JSON */
    char damage[HZ_REASON_BYTES]; /* what is wrong with the file; empty: nothing */
} hz_trace;

/* A thread's place in its operations. */
typedef struct hz_trace_cursor {
    const hz_trace *trace;
    uint32_t place;       /* the next chunk's */
    uint32_t end;         /* behind the last one's */
    const uint64_t *word; /* the next operation */
    const uint64_t *stop; /* behind the last one of this chunk */
    uint64_t time_ns;     /* of the last operation, from the start of the trace */
} hz_trace_cursor;

/* Whether these bytes start as a trace does. */
bool hz_trace_is_one(const void *bytes, size_t size);

/*
 * Reads a trace and looks at every checksum. Where something is wrong, `damage` says so, and what
 * stands before it can be read. Refuses with a sentence what is no trace, or has another version.
 */
void hz_trace_load(hz_trace *trace, const char *path, const unsigned char *bytes, size_t size);

void hz_trace_start(hz_trace_cursor *cursor, const hz_trace *trace, uint32_t thread);

/* The next operation; false at the end. `time_ns` of the cursor is then its time. */
bool hz_trace_next(hz_trace_cursor *cursor, hz_trace_operation *operation);

void hz_trace_drop(hz_trace *trace);

#endif
