/*
 * Changes to a trace: a part of it, and one that tells less of its program.
 */
#ifndef HZ_TRACE_CHANGE_H
#define HZ_TRACE_CHANGE_H

#include "resolve.h"
#include "trace_read.h"

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

#endif
