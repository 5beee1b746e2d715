/*
 * Recordings of other tools, and the plain text of our own: read into steps, and written.
 */
#ifndef HZ_TRACE_FOREIGN_H
#define HZ_TRACE_FOREIGN_H

#include <stdio.h>

#include "read_file.h"
#include "resolve.h"
#include "trace_read.h"

/* The forms. README.md describes the plain text; the others are described by their makers. */
typedef enum hz_form {
    HZ_FORM_NONE,     /* none of these */
    HZ_FORM_TEXT,     /* our own plain text */
    HZ_FORM_AOSP,     /* Android's memory_replay: "TID: malloc 0x1000 16" */
    HZ_FORM_MTRACE,   /* glibc's mtrace(3): "@ where + 0x1000 0x10"; it tells no threads */
    HZ_FORM_WORKLOAD, /* trace_run of glibc's malloc branch: bytes */
} hz_form;

/* The form of a file by how it begins. */
hz_form hz_form_of(const hz_file_bytes *file);

/* The form of that name; HZ_FORM_NONE: there is none. */
hz_form hz_form_named(const char *name);

/* Reads a file into steps; returns ns of one unit of time, 0 where it has no times. */
double hz_foreign_read(hz_form form, const char *path, const hz_file_bytes *file,
                       hz_resolver *resolver);

/* The two kinds of files that are read. */
double hz_read_lines(hz_form form, const char *path, const hz_file_bytes *file,
                     hz_resolver *resolver);
void hz_read_workload(const char *path, const hz_file_bytes *file, hz_resolver *resolver);

/* Writes a trace in another form; one that is bytes cannot be written. */
void hz_foreign_write(hz_form form, const hz_trace *trace, FILE *out);

#endif
