/*
 * From a log to its traces: see log_read.h.
 */
#include "log_read.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arguments.h"
#include "emit.h"
#include "json.h"
#include "trace_read.h"

enum {
    WORTH_BYTES = 8192,     /* of a log: one with less is of a program that did next to nothing */
    LONG_BYTES = 128 << 20, /* putting so many in order takes seconds */
};

static const char *const endings[] = {
    [HZ_POOL_OPEN] = "cut",
    [HZ_POOL_STOPPED] = "complete",
    [HZ_POOL_TOO_SLOW] = "too slow",
    [HZ_POOL_DISK] = "no room",
};

/* Why a recording that is not complete ended, for people. */
static const char *const reasons[] = {
    [HZ_POOL_OPEN] = "the recording was cut short, this is what was written of it",
    [HZ_POOL_TOO_SLOW] = "the recording ended before the program: what was logged could not be "
                         "written fast enough; write to a faster disk",
    [HZ_POOL_DISK] = "the recording ended before the program: no room was left on the disk",
};

static unsigned ending_of(const hz_log *log)
{
    return log->is_complete && log->end.why <= HZ_POOL_DISK ? (unsigned)log->end.why : HZ_POOL_OPEN;
}

/* Nanoseconds of one unit of a stamp. */
static double ns_per_unit(const hz_log *log)
{
    if (log->header.clock != HZ_CLOCK_COUNTER) return 1.0;
    const double units = (double)(log->end.stamp - log->header.stamp);
    if (log->end.stamp > log->header.stamp) return (double)(log->end.ns - log->header.ns) / units;
    return 0.0; /* it was cut before the clock was looked at twice */
}

/* ---- notes ---------------------------------------------------------------------------------- */

static void note_program(hz_json *json, const hz_log *log, uint32_t image)
{
    for (size_t i = 0; i < log->images.count; i++) {
        const hz_log_frame *frame = log->images.at[i];
        if (frame->image != image) continue;
        const char *words = (const char *)(frame + 1);
        hz_json_int(json, "pid", frame->pid);
        hz_json_array(json, "program");
        for (size_t at = 0; at < frame->bytes;) {
            const size_t length = strnlen(words + at, frame->bytes - at);
            hz_json_bytes(json, NULL, words + at, length);
            at += length + 1;
        }
        hz_json_array_end(json);
    }
}

/* When the first call was, by CLOCK_MONOTONIC: where the times of the trace begin. */
static int64_t start_ns(const hz_log *log, const hz_resolver *resolver)
{
    if (resolver->steps.count == 0) return (int64_t)log->header.ns;
    const double passed = (double)(int64_t)(resolver->steps.at[0].time - log->header.stamp);
    return (int64_t)log->header.ns + (int64_t)(passed * ns_per_unit(log));
}

static char *notes_of(const hz_log *log, uint32_t image, const hz_resolver *resolver)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (out == NULL) hz_fail("no memory for the notes of a trace");
    hz_json json = {.out = out};
    hz_json_object(&json, NULL);
    note_program(&json, log, image);
    hz_json_string(&json, "ending", endings[ending_of(log)]);
    hz_json_string(&json, "clock", log->header.clock == HZ_CLOCK_COUNTER ? "counter" : "raw");
    hz_json_int(&json, "start_ns", start_ns(log, resolver));
    hz_json_int(&json, "unknown", (int64_t)resolver->unknown);
    hz_json_int(&json, "overlapping", (int64_t)resolver->overlapping);
    hz_json_int(&json, "lost", (int64_t)log->end.lost);
    hz_json_object_end(&json);
    (void)fclose(out);
    return text;
}

/* ---- traces --------------------------------------------------------------------------------- */

static void report_trace(const hz_trace_header *made, const char *path, const hz_resolver *resolver)
{
    (void)fprintf(stderr,
                  "hz-record: %s: %" PRIu64 " calls of %u thread%s in %.3f s, %" PRIu64
                  " blocks freed by another thread, %.1f bytes a call\n",
                  path, made->call_count, made->thread_count, made->thread_count == 1 ? "" : "s",
                  (double)made->duration_ns * 1e-9, made->handed_count,
                  made->call_count > 0 ? (double)made->file_bytes / (double)made->call_count : 0.0);
    hz_resolver_tell(resolver, "hz-record");
}

static void write_trace(const hz_log *log, const hz_log_image *image, const char *path)
{
    hz_resolver resolver;
    hz_resolver_make(&resolver, path);
    hz_log_merge(log, image, &resolver);
    char *notes = notes_of(log, image->number, &resolver);
    const bool is_part = log->header.is_woken != 0 || ending_of(log) != HZ_POOL_STOPPED;
    const hz_emission emission = {.path = path,
                                  .ns_per_unit = ns_per_unit(log),
                                  .flags = is_part ? HZ_TRACE_IS_PART : 0,
                                  .notes = notes};
    const hz_trace_header made = hz_emit(&resolver, &emission);
    report_trace(&made, path, &resolver);
    free(notes);
    hz_resolver_drop(&resolver);
}

/* Writes the trace of an image that is not the largest; false: it is not worth it. */
static bool write_other(const hz_log *log, const hz_log_image *image, const char *output)
{
    char *path;
    const int pid = log->events.at[image->first]->pid;
    if (image->bytes < WORTH_BYTES) return false;
    if (asprintf(&path, "%s.%d-%" PRIu32, output, pid, image->number) < 0) hz_fail("no memory");
    write_trace(log, image, path);
    free(path);
    return true;
}

bool hz_finish_log(const char *file, const char *output, bool is_each)
{
    hz_log log;
    hz_log_image largest = {0};
    size_t left = 0;
    const hz_file_bytes bytes = hz_read_file(file);
    hz_log_read(&log, file, bytes.bytes, bytes.size);
    for (hz_log_image image = {0}; hz_log_next_image(&log, &image);)
        if (image.bytes > largest.bytes) largest = image;
    if (largest.bytes == 0) return false;
    if (bytes.size >= LONG_BYTES)
        (void)fprintf(stderr, "hz-record: its calls are put in order, %zu MiB\n", bytes.size >> 20);
    write_trace(&log, &largest, output);
    for (hz_log_image image = {0}; hz_log_next_image(&log, &image);)
        if (image.first != largest.first) left += !is_each || !write_other(&log, &image, output);
    if (left > 0)
        (void)fprintf(stderr, "hz-record: %zu other program%s called %s and %s left out%s\n", left,
                      left == 1 ? "" : "s", is_each ? "hardly anything" : "less",
                      left == 1 ? "is" : "are", is_each ? "" : " (--each)");
    const char *reason = reasons[ending_of(&log)];
    if (reason != NULL) (void)fprintf(stderr, "hz-record: %s\n", reason);
    return true;
}
