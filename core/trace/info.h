/*
 * What is in a trace, as JSON.
 */
#ifndef HZ_TRACE_INFO_H
#define HZ_TRACE_INFO_H

#include <stdio.h>

#include "trace_read.h"

/* Writes one object. */
void hz_trace_describe(const hz_trace *trace, FILE *out);

#endif
