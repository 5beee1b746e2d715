/*
 * Builds the texts that hz prints, in a buffer of the caller.
 */
#ifndef HZ_STATS_H
#define HZ_STATS_H

#include <stddef.h>

typedef struct hz_text {
    char *start;   /* the buffer */
    size_t size;   /* its bytes */
    size_t length; /* of the whole text, even where it did not fit */
} hz_text;

/* Appends; the buffer always stays terminated. */
__attribute__((format(printf, 2, 3))) void hz_text_add(hz_text *text, const char *format, ...);

/* Appends "config":{...}, the configuration in effect. */
void hz_text_add_config(hz_text *text);

#endif
