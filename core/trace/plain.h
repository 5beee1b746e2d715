/*
 * The plain text of a trace, as README.md describes it: read into steps, and written; and the names
 * of operations, as text and JSON have them.
 */
#ifndef HZ_TRACE_PLAIN_H
#define HZ_TRACE_PLAIN_H

#include <stdio.h>

#include "resolve.h"
#include "trace_read.h"

enum { HZ_KINDS = 1 << HZ_TRACE_KIND_BITS };

/* The name of a kind; NULL: there is no such kind. */
const char *hz_kind_name(unsigned kind);

/* The kind of a name of `length` bytes; 0: there is none. */
hz_trace_kind hz_kind_named(const char *name, size_t length);

/* Whether a file begins as plain text does. */
bool hz_plain_is_one(const hz_file_bytes *file);

/* Reads it into steps; returns ns of one unit of time, 0 where it has no times. */
double hz_plain_read(const char *path, const hz_file_bytes *file, hz_resolver *resolver);

/* Writes a trace as text. */
void hz_plain_write(const hz_trace *trace, FILE *out);

#endif
