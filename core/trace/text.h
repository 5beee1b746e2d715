/*
 * The plain text of a trace, as README.md describes it: read into steps, and written.
 */
#ifndef HZ_TRACE_TEXT_H
#define HZ_TRACE_TEXT_H

#include <stdio.h>

#include "read_file.h"
#include "resolve.h"
#include "trace_read.h"

/* Whether a file begins as plain text does. */
bool hz_text_is_one(const hz_file_bytes *file);

/* Reads it into steps; returns ns of one unit of time, 0 where it has no times. */
double hz_text_read(const char *path, const hz_file_bytes *file, hz_resolver *resolver);

/* Writes a trace as text. */
void hz_text_write(const hz_trace *trace, FILE *out);

#endif
