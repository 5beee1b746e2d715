/*
 * From the log of a recording to its traces.
 */
#ifndef HZ_TRACE_FINISH_H
#define HZ_TRACE_FINISH_H

#include <stdbool.h>

/* What is wanted. */
typedef struct hz_finish {
    const char *log;    /* the log's file */
    const char *output; /* where the trace of the image goes that called most */
    bool is_each;       /* those of all others, too, as OUTPUT.PID */
    bool is_quiet;      /* nothing is said on stderr */
} hz_finish;

/* Writes the traces and says on stderr what is in them; false when nothing was recorded. */
bool hz_finish_log(const hz_finish *wanted);

#endif
