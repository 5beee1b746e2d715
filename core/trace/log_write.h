/*
 * Writing a log: see log_format.h. A write that fails ends the log where the last whole frame ends.
 */
#ifndef HZ_TRACE_LOG_WRITE_H
#define HZ_TRACE_LOG_WRITE_H

#include "log_format.h"

typedef struct hz_log_writer {
    int fd;         /* the file */
    uint64_t bytes; /* of whole frames, and the header */
    int failure;    /* errno of the write that failed, or 0 */
} hz_log_writer;

/* Makes the file; refuses with a sentence when that is not possible. */
void hz_log_open(hz_log_writer *writer, const char *path, uint32_t clock, bool is_woken);

/* Appends a frame, whose magic and checksum are filled in here; false from the first failure on. */
bool hz_log_append(hz_log_writer *writer, hz_log_frame *frame, const void *content);

#endif
