/*
 * A whole file in memory, to be read.
 */
#ifndef HZ_TRACE_MAP_FILE_H
#define HZ_TRACE_MAP_FILE_H

#include <stddef.h>

typedef struct hz_mapped_file {
    const unsigned char *bytes; /* NULL when the file is empty */
    size_t size;                /* in bytes */
} hz_mapped_file;

/*
 * Maps a regular file; refuses with a sentence what cannot be read. When it becomes shorter while
 * it is read, that is a sentence, too. `path` must stay.
 */
hz_mapped_file hz_map_file(const char *path);

void hz_unmap_file(const hz_mapped_file *file);

#endif
