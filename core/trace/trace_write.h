/*
 * Writing a trace: operations of many threads come in the order of their time, and stand in the
 * file by thread, in chunks.
 */
#ifndef HZ_TRACE_WRITE_H
#define HZ_TRACE_WRITE_H

#include "trace_format.h"

/* A thread while it is written. */
typedef struct hz_trace_stream {
    hz_trace_thread about; /* as it will stand in the directory */
    uint64_t *words;       /* of its current chunk */
    uint32_t word_count;   /* how many */
    uint32_t word_room;    /* for how many there is room */
    uint64_t chunk_ns;     /* when the current chunk starts */
    uint64_t now_ns;       /* where the deltas have led */
    bool has_begun;        /* it has an operation */
    uint32_t next_place;   /* of its chunks, while the places are sorted */
} hz_trace_stream;

typedef struct hz_trace_writer {
    const char *path;         /* of the trace */
    char *temporary;          /* of the file until it is whole */
    int fd;                   /* that file */
    uint64_t bytes;           /* written so far */
    hz_trace_header header;   /* as it will stand at the start; the caller fills in some of it */
    hz_trace_stream *streams; /* by number of thread */
    hz_trace_place *places;   /* of the chunks so far */
    uint32_t place_room;      /* for how many there is room */
} hz_trace_writer;

/* Refuses a path at which no file can be made: whatever stands there would be replaced. */
void hz_require_output(const char *path);

/* Starts a trace of so many threads; refuses with a sentence when it cannot be written. */
void hz_trace_create(hz_trace_writer *writer, const char *path, uint32_t thread_count);

/*
 * Appends an operation of a thread at a time in ns from the start of the trace; `delta_ns` of it is
 * filled in.
 */
void hz_trace_append(hz_trace_writer *writer, uint32_t thread, hz_trace_operation *operation,
                     uint64_t time_ns);

/*
 * Writes the rest, with the notes (JSON, or empty); the file appears under its name. With the
 * header goes what the caller knows: flags, cells, handed blocks, duration, peaks.
 */
void hz_trace_close(hz_trace_writer *writer, const char *notes);

#endif
