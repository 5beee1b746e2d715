/*
 * A trace file, opened to be replayed: mapped as a whole, and every checksum compared.
 */
#ifndef HZ_TRACE_OPEN_H
#define HZ_TRACE_OPEN_H

#include "trace_format.h"

/* All of it points into the mapped file. */
typedef struct hz_trace {
    const char *path;               /* as it was given */
    const unsigned char *bytes;     /* the whole file */
    const hz_trace_header *header;  /* at its start */
    const hz_trace_thread *threads; /* header->thread_count */
    const hz_trace_place *places;   /* header->chunk_count */
} hz_trace;

/* Opens a file; refuses with one sentence what is not a whole trace of this version. */
hz_trace hz_trace_open(const char *path);

/* The words of a place, and where they end. */
static inline const uint64_t *hz_trace_words(const hz_trace *trace, const hz_trace_place *place,
                                             const uint64_t **end)
{
    const void *words = trace->bytes + place->offset + sizeof(hz_trace_chunk);
    *end = (const uint64_t *)words + place->word_count;
    return words;
}

#endif
