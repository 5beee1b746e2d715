/*
 * Texts in a buffer of the caller: built, or read from a file. Nothing here allocates.
 */
#ifndef HZ_TEXT_H
#define HZ_TEXT_H

#include <stddef.h>

typedef struct hz_text {
    char *start;   /* the buffer */
    size_t size;   /* its bytes */
    size_t length; /* of the whole text, even where it did not fit */
} hz_text;

#pragma GCC visibility push(hidden)

/* Appends; the buffer always stays terminated. */
__attribute__((format(printf, 2, 3))) void hz_text_add(hz_text *text, const char *format, ...);
/* Appends a string, without a function of the C library. */
void hz_text_put(hz_text *text, const char *string);
/* Appends a string as JSON has it, with its quotes. */
void hz_text_add_quoted(hz_text *text, const char *string);
/* The beginning of a file, terminated; returns its length: 0, with "", where it cannot be read. */
size_t hz_text_read(const char *path, char *text, size_t size);

#pragma GCC visibility pop

#endif
