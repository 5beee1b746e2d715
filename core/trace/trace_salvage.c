/*
 * What a damaged trace still holds: see trace_salvage.h.
 */
#include "trace_salvage.h"

#include <stdlib.h>
#include <string.h>

#include "arguments.h"

enum { THREADS_BELIEVED = 1 << 16 }; /* whatever the file's length; threads sizes memory */

/* The next number of a chunk of that thread. */
static uint32_t next_number(const hz_salvaged *found, uint32_t thread)
{
    return thread < found->header.thread_count ? found->threads[thread].chunk_count : 0;
}

/*
 * The chunk at an offset; NULL: none that is whole and can be next. A checksum may be right by
 * accident, or by design: more threads than the file has room for, a chunk that is there twice and
 * one that is missing are damage, too.
 */
static const hz_trace_chunk *whole_chunk(const hz_trace *trace, const hz_salvaged *found,
                                         uint64_t offset)
{
    const uint64_t threads_max = THREADS_BELIEVED + trace->size / sizeof(hz_trace_chunk);
    const hz_trace_chunk *chunk = hz_trace_chunk_at(trace, offset, trace->size);
    return chunk != NULL && chunk->thread < threads_max &&
                   chunk->number == next_number(found, chunk->thread)
               ? chunk
               : NULL;
}

static uint64_t chunk_bytes(const hz_trace_chunk *chunk)
{
    return sizeof *chunk + sizeof(uint64_t) * chunk->word_count;
}

static void count_chunk(hz_salvaged *found, const hz_trace_chunk *chunk)
{
    const uint32_t known = found->header.thread_count;
    if (chunk->thread >= known) {
        found->threads = reallocarray(found->threads, chunk->thread + 1, sizeof *found->threads);
        if (found->threads == NULL) hz_fail("no memory for a trace");
        memset(found->threads + known, 0, (chunk->thread + 1 - known) * sizeof *found->threads);
        found->header.thread_count = chunk->thread + 1;
    }
    found->threads[chunk->thread].chunk_count++;
    found->threads[chunk->thread].word_count += chunk->word_count;
    found->header.chunk_count++;
}

/* Counts what is whole; returns where it ends. */
static uint64_t count_chunks(const hz_trace *trace, hz_salvaged *found)
{
    const hz_trace_chunk *chunk;
    uint64_t end = sizeof(hz_trace_header);
    for (; (chunk = whole_chunk(trace, found, end)) != NULL; end += chunk_bytes(chunk))
        count_chunk(found, chunk);
    return end;
}

/* Notes where the chunks up to `end` stand, sorted by thread. */
static void note_places(const hz_trace *trace, hz_salvaged *found, uint64_t end)
{
    const hz_trace_chunk *chunk;
    uint32_t first = 0;
    found->places = calloc((size_t)found->header.chunk_count + 1, sizeof *found->places);
    if (found->places == NULL) hz_fail("no memory for a trace");
    for (uint32_t i = 0; i < found->header.thread_count; i++) {
        found->threads[i].first_place = first;
        first += found->threads[i].chunk_count;
        found->threads[i].chunk_count = 0;
    }
    for (uint64_t at = sizeof(hz_trace_header); at < end; at += chunk_bytes(chunk)) {
        chunk = (const void *)(trace->bytes + at);
        hz_trace_thread *thread = &found->threads[chunk->thread];
        found->places[thread->first_place + thread->chunk_count++] =
            (hz_trace_place){at, chunk->thread, chunk->word_count};
    }
}

/* Whether a spawn names a thread shows in the operations alone. */
static void find_spawns(const hz_trace *trace, hz_salvaged *found)
{
    for (uint32_t i = 0; i < found->header.thread_count; i++) {
        hz_trace_operation operation;
        hz_trace_cursor cursor;
        hz_trace_start(&cursor, trace, i);
        while (hz_trace_next(&cursor, &operation))
            if (operation.kind == HZ_TRACE_SPAWN && operation.operand < found->header.thread_count)
                found->threads[operation.operand].waits_for_spawn = 1;
    }
}

void hz_trace_salvage(hz_trace *trace, hz_salvaged *found)
{
    const uint32_t flags = trace->header->flags & (HZ_TRACE_HAS_TIME | HZ_TRACE_HAS_TOUCH);
    *found = (hz_salvaged){.header = {.version = HZ_TRACE_VERSION, .flags = flags}};
    note_places(trace, found, count_chunks(trace, found));
    trace->header = &found->header;
    trace->threads = found->threads;
    trace->places = found->places;
    trace->notes = NULL;
    find_spawns(trace, found);
}

void hz_salvaged_drop(hz_salvaged *found)
{
    free(found->threads);
    free(found->places);
    *found = (hz_salvaged){.threads = NULL};
}
