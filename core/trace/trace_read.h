/*
 * Reading a trace: copied as a whole, and every checksum compared.
 */
#ifndef HZ_TRACE_READ_H
#define HZ_TRACE_READ_H

#include "trace_format.h"

/*
 * A whole file in memory, to be checked and read. It is a copy: what was checked stays as it was,
 * whatever the owner of the file does to it. A private mapping shows what others write to the file
 * until the page is written to here.
 */
typedef struct hz_file_bytes {
    const unsigned char *bytes; /* NULL when the file is empty */
    size_t size;                /* in bytes */
} hz_file_bytes;

/* Reads a regular file, past the allocator; refuses with a sentence what cannot be read. */
hz_file_bytes hz_read_file(const char *path);

/* All of it points into the file. */
typedef struct hz_trace {
    const char *path;               /* as it was given */
    const unsigned char *bytes;     /* the whole file */
    size_t size;                    /* its length */
    const hz_trace_header *header;  /* at its start */
    const hz_trace_thread *threads; /* header->thread_count */
    const hz_trace_place *places;   /* header->chunk_count: by thread, then by number */
    const char *notes;              /* header->notes_bytes of JSON; NULL: there are none */
} hz_trace;

/* Whether these bytes start with those of `magic`, as a trace does with HZ_TRACE_MAGIC. */
bool hz_starts_with(const void *bytes, size_t size, const char *magic);

/* Reads a trace; refuses with a sentence what is none, not whole, or has another version. */
void hz_trace_read(hz_trace *trace, const char *path, const hz_file_bytes *file);

/* The words of a place, and where they end. */
static inline const uint64_t *hz_trace_words(const hz_trace *trace, const hz_trace_place *place,
                                             const uint64_t **end)
{
    const void *words = trace->bytes + place->offset + sizeof(hz_trace_chunk);
    *end = (const uint64_t *)words + place->word_count;
    return words;
}

#endif
