/*
 * What a damaged trace still holds: its chunks up to the first that is not whole.
 */
#ifndef HZ_TRACE_SALVAGE_H
#define HZ_TRACE_SALVAGE_H

#include "trace_read.h"

/* What the chunks tell, in place of the header and the directory. */
typedef struct hz_salvaged {
    hz_trace_header header;
    hz_trace_thread *threads;
    hz_trace_place *places;
} hz_salvaged;

/* Makes the trace one of what stands before the damage. It points to `found` from then on. */
void hz_trace_salvage(hz_trace *trace, hz_salvaged *found);

void hz_salvaged_drop(hz_salvaged *found);

#endif
