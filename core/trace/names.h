/*
 * The names of operations, as text and JSON have them.
 */
#ifndef HZ_TRACE_NAMES_H
#define HZ_TRACE_NAMES_H

#include "trace_format.h"

enum { HZ_KINDS = 1 << HZ_TRACE_KIND_BITS };

/* The name of a kind; NULL: there is no such kind. */
const char *hz_kind_name(unsigned kind);

/* The kind of a name of `length` bytes; 0: there is none. */
hz_trace_kind hz_kind_named(const char *name, size_t length);

#endif
