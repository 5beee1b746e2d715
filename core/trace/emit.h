/*
 * From steps to a trace: slots and cells are assigned, and every thread gets its operations.
 */
#ifndef HZ_TRACE_EMIT_H
#define HZ_TRACE_EMIT_H

#include "resolve.h"

/* What is known beside the steps. */
typedef struct hz_emission {
    const char *path;   /* of the trace */
    double ns_per_unit; /* of the times of the steps; 0: they are only an order */
    uint32_t flags;     /* of the trace: HZ_TRACE_IS_PART, where it is */
    const char *notes;  /* JSON */
} hz_emission;

/* Writes the trace of what was resolved and finished; returns its header. The steps are used up. */
hz_trace_header hz_emit(hz_resolver *resolver, const hz_emission *emission);

#endif
