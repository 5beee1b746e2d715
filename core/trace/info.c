/*
 * What is in a trace: see info.h.
 */
#include "info.h"

#include <stdlib.h>
#include <string.h>

#include "arguments.h"
#include "json.h"
#include "plain.h"
#include "walk.h"

enum { SIZE_BITS = 64, THREADS_SHOWN = 64 };

/* What is counted. */
typedef struct counts {
    uint64_t kinds[HZ_KINDS];      /* operations of each kind */
    uint64_t sizes[SIZE_BITS + 1]; /* allocations by the bits that their size has */
    uint64_t handed_ends;          /* blocks that another thread freed */
    uint64_t ends;                 /* blocks that were freed */
    uint64_t calls;                /* of all threads */
    uint64_t *thread_calls;        /* of each */
    uint64_t last_ns;              /* of the last operation */
    uint64_t *touch;               /* of each thread: bytes of its next block, or NO_TOUCH */
    uint64_t touched;              /* bytes that were touched of blocks where that is known */
    uint64_t looked_at;            /* bytes of these blocks */
} counts;

#define NO_TOUCH UINT64_MAX

/* Adds what was touched of a block of that size, if it is known. */
static void count_touch(counts *c, uint32_t thread, uint64_t size)
{
    const uint64_t touched = c->touch[thread];
    c->touch[thread] = NO_TOUCH;
    if (touched == NO_TOUCH) return;
    c->touched += touched < size ? touched : size;
    c->looked_at += size;
}

static void count_operation(counts *c, const hz_ordered *next)
{
    const hz_trace_operation *operation = &next->operation;
    c->kinds[operation->kind]++;
    if (next->time_ns > c->last_ns) c->last_ns = next->time_ns;
    if (operation->kind == HZ_TRACE_TOUCH) c->touch[next->thread] = operation->size;
    if (!hz_trace_calls(operation->kind)) return;
    c->calls++;
    c->thread_calls[next->thread]++;
    if (hz_trace_ends(operation->kind)) {
        c->ends++;
        c->handed_ends += operation->is_cell;
        return;
    }
    count_touch(c, next->thread, operation->size);
    const unsigned bits =
        operation->size == 0 ? 0 : SIZE_BITS - (unsigned)__builtin_clzll(operation->size);
    c->sizes[bits]++;
}

static void write_kinds(hz_json *json, const counts *c)
{
    hz_json_object(json, "operations");
    for (unsigned kind = 0; kind < HZ_KINDS; kind++)
        if (c->kinds[kind] > 0 && hz_kind_name(kind) != NULL)
            hz_json_int(json, hz_kind_name(kind), (int64_t)c->kinds[kind]);
    hz_json_object_end(json);
}

/* Pairs of the most bytes and how many allocations asked for at most so many, and more than half.
 */
static void write_sizes(hz_json *json, const counts *c)
{
    hz_json_array(json, "sizes");
    for (unsigned bits = 0; bits <= SIZE_BITS; bits++) {
        if (c->sizes[bits] == 0) continue;
        const uint64_t most = bits == SIZE_BITS ? UINT64_MAX : (UINT64_C(1) << bits) - 1;
        hz_json_array(json, NULL);
        hz_json_int(json, NULL, (int64_t)most);
        hz_json_int(json, NULL, (int64_t)c->sizes[bits]);
        hz_json_array_end(json);
    }
    hz_json_array_end(json);
}

static void write_threads(hz_json *json, const hz_trace *trace, const counts *c)
{
    hz_json_array(json, "threads_shown");
    for (uint32_t i = 0; i < trace->header->thread_count && i < THREADS_SHOWN; i++) {
        const hz_trace_thread *thread = &trace->threads[i];
        hz_json_object(json, NULL);
        hz_json_bytes(json, "name", thread->name, strnlen(thread->name, sizeof thread->name));
        hz_json_int(json, "calls", (int64_t)c->thread_calls[i]);
        hz_json_int(json, "start_ns", (int64_t)thread->start_ns);
        hz_json_int(json, "end_ns", (int64_t)thread->end_ns);
        hz_json_object_end(json);
    }
    hz_json_array_end(json);
}

static void write_notes(hz_json *json, const hz_trace *trace)
{
    if (trace->notes != NULL && trace->header->notes_bytes > 0)
        hz_json_raw(json, "notes", trace->notes, trace->header->notes_bytes);
    else
        hz_json_null(json, "notes");
}

static void write_info(hz_json *json, const hz_trace *trace, const counts *c)
{
    const hz_trace_header *header = trace->header;
    hz_json_object(json, NULL);
    hz_json_int(json, "schema", 1);
    hz_json_int(json, "bytes", (int64_t)trace->size);
    hz_json_int(json, "calls", (int64_t)c->calls);
    hz_json_int(json, "threads", (int64_t)header->thread_count);
    hz_json_int(json, "duration_ns", (int64_t)c->last_ns);
    hz_json_bool(json, "has_time", (header->flags & HZ_TRACE_HAS_TIME) != 0);
    hz_json_bool(json, "has_touch", (header->flags & HZ_TRACE_HAS_TOUCH) != 0);
    hz_json_int(json, "touched", (int64_t)c->touched);
    hz_json_int(json, "looked_at", (int64_t)c->looked_at);
    hz_json_bool(json, "is_part", (header->flags & HZ_TRACE_IS_PART) != 0);
    hz_json_int(json, "peak_bytes", (int64_t)header->peak_bytes);
    hz_json_int(json, "peak_blocks", (int64_t)header->peak_blocks);
    hz_json_int(json, "handed", (int64_t)header->handed_count);
    hz_json_int(json, "cells", (int64_t)header->cell_count);
    hz_json_int(json, "ends", (int64_t)c->ends);
    hz_json_int(json, "ends_by_others", (int64_t)c->handed_ends);
    write_kinds(json, c);
    write_sizes(json, c);
    write_threads(json, trace, c);
    write_notes(json, trace);
    hz_json_end_line(json);
}

void hz_trace_describe(const hz_trace *trace, FILE *out)
{
    hz_ordered next;
    counts c = {.calls = 0};
    hz_json json = {.out = out};
    hz_walk *walk = hz_walk_make(trace);
    c.thread_calls = calloc((size_t)trace->header->thread_count + 1, sizeof *c.thread_calls);
    c.touch = malloc(((size_t)trace->header->thread_count + 1) * sizeof *c.touch);
    if (c.thread_calls == NULL || c.touch == NULL) hz_fail("no memory for a trace");
    for (uint32_t i = 0; i < trace->header->thread_count; i++) c.touch[i] = NO_TOUCH;
    while (hz_walk_next(walk, &next)) count_operation(&c, &next);
    write_info(&json, trace, &c);
    free(c.thread_calls);
    free(c.touch);
}
