/*
 * A whole file in memory, to be checked and read.
 *
 * It is a copy: what was checked stays as it was, whatever the owner of the file does to it. A
 * private mapping shows what others write to the file until the page is written to here.
 */
#ifndef HZ_TRACE_READ_FILE_H
#define HZ_TRACE_READ_FILE_H

#include <stddef.h>

typedef struct hz_file_bytes {
    const unsigned char *bytes; /* NULL when the file is empty */
    size_t size;                /* in bytes */
} hz_file_bytes;

/* Reads a regular file, past the allocator; refuses with a sentence what cannot be read. */
hz_file_bytes hz_read_file(const char *path);

void hz_drop_file(const hz_file_bytes *file);

#endif
