/*
 * What hz-trace does with a trace: change.c cuts it and lets it tell less, info.c describes it, and
 * plain.c has its plain text, as README.md describes that.
 */
#ifndef HZ_TRACE_TOOLS_H
#define HZ_TRACE_TOOLS_H

#include <stdio.h>

#include "resolve.h"
#include "trace_read.h"

/* ---- change.c ------------------------------------------------------------------------------- */

/* Resolves a trace again. */
void hz_resolve_trace(const hz_trace *trace, hz_resolver *resolver);

/*
 * Leaves out what happened before and after two times. Blocks that live at the first one are
 * allocated then, so that memory is what it was.
 */
void hz_cut(hz_resolver *resolver, uint64_t from, uint64_t to);

/* Rounds sizes up to `unit` bytes, a power of two, so that they tell no lengths. */
void hz_round_sizes(hz_resolver *resolver, uint64_t unit);

/* Takes away the names of the threads. */
void hz_forget_names(hz_resolver *resolver);

/* ---- info.c --------------------------------------------------------------------------------- */

/* Writes what is in a trace, as one object of JSON. */
void hz_trace_describe(const hz_trace *trace, FILE *out);

/* ---- plain.c -------------------------------------------------------------------------------- */

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
