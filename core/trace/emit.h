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

/* What came out. */
typedef struct hz_emitted {
    uint64_t calls;       /* operations that call the allocator */
    uint64_t handed;      /* blocks that go through a cell */
    uint64_t peak_bytes;  /* as in the header of the trace */
    uint64_t bytes;       /* of the file */
    uint32_t threads;     /* of the trace */
    uint64_t duration_ns; /* of the trace */
} hz_emitted;

/* Writes the trace of what was resolved and finished. The steps are used up. */
hz_emitted hz_emit(hz_resolver *resolver, const hz_emission *emission);

#endif
