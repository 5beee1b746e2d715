/*
 * From a log to steps: the events of one image's threads, in the order of their stamps.
 */
#ifndef HZ_TRACE_LOG_MERGE_H
#define HZ_TRACE_LOG_MERGE_H

#include "log_read.h"
#include "resolve.h"

/* The image that logged most, of those that have not been taken; UINT32_MAX: there is none left. */
uint32_t hz_log_largest_image(const hz_log *log, const bool *is_taken, uint32_t image_room);

/* How many images a log has room for: one more than the highest number. */
uint32_t hz_log_image_room(const hz_log *log);

/* Resolves all events of an image. */
void hz_log_merge(const hz_log *log, uint32_t image, hz_resolver *resolver);

#endif
