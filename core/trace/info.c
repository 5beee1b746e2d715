/*
 * What is in a trace: see tools.h.
 */
#include <string.h>

#include "json.h"
#include "tools.h"
#include "walk.h"

enum { SIZE_BITS = 64, THREADS_SHOWN = 64 };

/* What is counted. */
typedef struct counts {
    uint64_t kinds[HZ_KINDS];      /* operations of each kind */
    uint64_t sizes[SIZE_BITS + 1]; /* allocations by the bits that their size has */
    uint64_t handed_ends;          /* blocks that another thread freed */
    uint64_t ends;                 /* blocks that were freed */
} counts;

static void count_operation(counts *c, const hz_ordered *next)
{
    const hz_trace_operation *operation = &next->operation;
    c->kinds[operation->kind]++;
    if (!hz_trace_calls(operation->kind)) return;
    if (hz_trace_ends(operation->kind)) {
        c->ends++;
        c->handed_ends += operation->is_cell;
        return;
    }
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

static void write_threads(hz_json *json, const hz_trace *trace)
{
    hz_json_array(json, "threads_shown");
    for (uint32_t i = 0; i < trace->header->thread_count && i < THREADS_SHOWN; i++) {
        const hz_trace_thread *thread = &trace->threads[i];
        hz_json_object(json, NULL);
        hz_json_bytes(json, "name", thread->name, strnlen(thread->name, sizeof thread->name));
        hz_json_int(json, "calls", (int64_t)thread->call_count);
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
    hz_json_int(json, "calls", (int64_t)header->call_count);
    hz_json_int(json, "threads", (int64_t)header->thread_count);
    hz_json_int(json, "duration_ns", (int64_t)header->duration_ns);
    hz_json_bool(json, "has_time", (header->flags & HZ_TRACE_HAS_TIME) != 0);
    hz_json_bool(json, "is_part", (header->flags & HZ_TRACE_IS_PART) != 0);
    hz_json_int(json, "peak_bytes", (int64_t)header->peak_bytes);
    hz_json_int(json, "peak_blocks", (int64_t)header->peak_blocks);
    hz_json_int(json, "handed", (int64_t)header->handed_count);
    hz_json_int(json, "cells", (int64_t)header->cell_count);
    hz_json_int(json, "ends", (int64_t)c->ends);
    hz_json_int(json, "ends_by_others", (int64_t)c->handed_ends);
    write_kinds(json, c);
    write_sizes(json, c);
    write_threads(json, trace);
    write_notes(json, trace);
    hz_json_end_line(json);
}

void hz_trace_describe(const hz_trace *trace, FILE *out)
{
    hz_ordered next;
    counts c = {.ends = 0};
    hz_json json = {.out = out};
    hz_walk *walk = hz_walk_make(trace);
    while (hz_walk_next(walk, &next)) count_operation(&c, &next);
    write_info(&json, trace, &c);
}
