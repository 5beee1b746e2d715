/*
 * From a log to steps: the events of one image's threads, in the order of their stamps.
 */
#ifndef HZ_TRACE_LOG_MERGE_H
#define HZ_TRACE_LOG_MERGE_H

#include "log_read.h"
#include "resolve.h"

/* The frames of one image: they stand side by side. Zeros stand before the first one. */
typedef struct hz_log_image {
    size_t first;    /* index of its first frame */
    size_t end;      /* behind its last one */
    uint32_t number; /* of the pool */
    uint64_t bytes;  /* that it logged */
} hz_log_image;

/* Goes on to the next image of a log; false: there is none. */
bool hz_log_next_image(const hz_log *log, hz_log_image *image);

/* Resolves all events of an image. */
void hz_log_merge(const hz_log *log, const hz_log_image *image, hz_resolver *resolver);

#endif
