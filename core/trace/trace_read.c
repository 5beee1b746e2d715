/*
 * Reading a trace: see trace_read.h.
 */
#include "trace_read.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arguments.h"

enum { THREADS_MAX = 1 << 22 }; /* a larger number in a chunk is damage that has a right checksum */

bool hz_trace_is_one(const void *bytes, size_t size)
{
    const size_t length = strlen(HZ_TRACE_MAGIC);
    return size >= length && memcmp(bytes, HZ_TRACE_MAGIC, length) == 0;
}

/* Notes what is wrong; the first thing stays. */
__attribute__((format(printf, 2, 3))) static bool damaged(hz_trace *trace, const char *format, ...)
{
    va_list words;
    if (trace->damage[0] != '\0') return false;
    va_start(words, format);
    (void)vsnprintf(trace->damage, sizeof trace->damage, format, words);
    va_end(words);
    return false;
}

/* ---- a whole trace -------------------------------------------------------------------------- */

static bool check_header(hz_trace *trace)
{
    hz_trace_header copy = trace->header;
    copy.checksum = 0;
    if (hz_trace_checksum(HZ_TRACE_CHECKSUM_START, &copy, sizeof copy / 8) !=
        trace->header.checksum)
        return damaged(trace, "its header is damaged");
    if (trace->header.file_bytes != trace->size)
        return damaged(trace, "it has %zu bytes and should have %" PRIu64 ": it was cut, or grew",
                       trace->size, trace->header.file_bytes);
    return true;
}

/* Length of the directory without its checksum; 0 when the file is too short for it. */
static uint64_t directory_bytes(const hz_trace *trace)
{
    const hz_trace_header *header = &trace->header;
    const uint64_t bytes = (uint64_t)header->thread_count * sizeof(hz_trace_thread) +
                           (uint64_t)header->chunk_count * sizeof(hz_trace_place) +
                           header->notes_bytes;
    const uint64_t rounded = (bytes + 7) / 8 * 8;
    const bool fits = header->directory_offset % 8 == 0 &&
                      header->directory_offset <= trace->size &&
                      rounded + 8 == trace->size - header->directory_offset;
    return fits ? rounded : 0;
}

static void *copy_of(const void *bytes, size_t count, size_t size)
{
    void *copy = calloc(count + 1, size);
    if (copy == NULL) hz_fail("no memory for a trace");
    if (count > 0) memcpy(copy, bytes, count * size);
    return copy;
}

static bool check_directory(hz_trace *trace)
{
    const hz_trace_header *header = &trace->header;
    const uint64_t length = directory_bytes(trace);
    const unsigned char *at = trace->bytes + header->directory_offset;
    uint64_t checksum;
    if (length == 0) return damaged(trace, "its directory is not where its header says");
    memcpy(&checksum, at + length, sizeof checksum);
    if (hz_trace_checksum(HZ_TRACE_CHECKSUM_START, at, length / 8) != checksum)
        return damaged(trace, "its directory is damaged");
    trace->threads = copy_of(at, header->thread_count, sizeof *trace->threads);
    at += header->thread_count * sizeof *trace->threads;
    trace->places = copy_of(at, header->chunk_count, sizeof *trace->places);
    trace->notes = (const char *)at + header->chunk_count * sizeof *trace->places;
    return true;
}

/* The chunk at an offset; NULL: there is none, or it is damaged. */
static const hz_trace_chunk *chunk_at(const hz_trace *trace, uint64_t offset)
{
    hz_trace_chunk copy;
    if (offset % 8 != 0 || offset > trace->size || trace->size - offset < sizeof copy) return NULL;
    memcpy(&copy, trace->bytes + offset, sizeof copy);
    if (copy.magic != HZ_TRACE_CHUNK_MAGIC || copy.word_count == 0 ||
        copy.word_count > HZ_TRACE_CHUNK_WORDS || copy.thread >= THREADS_MAX ||
        (trace->size - offset - sizeof copy) / 8 < copy.word_count)
        return NULL;
    const uint64_t checksum = copy.checksum;
    copy.checksum = 0;
    const uint64_t head = hz_trace_checksum(HZ_TRACE_CHECKSUM_START, &copy, sizeof copy / 8);
    const unsigned char *words = trace->bytes + offset + sizeof copy;
    if (hz_trace_checksum(head, words, copy.word_count) != checksum) return NULL;
    return (const hz_trace_chunk *)(const void *)(trace->bytes + offset);
}

static bool check_thread(hz_trace *trace, uint32_t number)
{
    const hz_trace_thread *thread = &trace->threads[number];
    if (thread->first_place > trace->header.chunk_count ||
        thread->chunk_count > trace->header.chunk_count - thread->first_place)
        return damaged(trace, "its directory names chunks of thread %u that it has not", number);
    for (uint32_t i = 0; i < thread->chunk_count; i++) {
        const uint64_t offset = trace->places[thread->first_place + i].offset;
        const hz_trace_chunk *chunk = chunk_at(trace, offset);
        if (chunk == NULL)
            return damaged(trace, "the chunk at byte %" PRIu64 " is damaged", offset);
        if (chunk->thread != number || chunk->number != i)
            return damaged(trace, "the chunk at byte %" PRIu64 " is not the one it should be",
                           offset);
    }
    return true;
}

static bool check_all(hz_trace *trace)
{
    if (!check_header(trace) || !check_directory(trace)) return false;
    for (uint32_t i = 0; i < trace->header.thread_count; i++)
        if (!check_thread(trace, i)) return false;
    return true;
}

/* ---- a damaged one -------------------------------------------------------------------------- */

static void count_chunk(hz_trace *trace, const hz_trace_chunk *chunk)
{
    const uint32_t known = trace->header.thread_count;
    if (chunk->thread >= known) {
        trace->threads = reallocarray(trace->threads, chunk->thread + 1, sizeof *trace->threads);
        if (trace->threads == NULL) hz_fail("no memory for a trace");
        memset(trace->threads + known, 0, (chunk->thread + 1 - known) * sizeof *trace->threads);
        trace->header.thread_count = chunk->thread + 1;
    }
    trace->threads[chunk->thread].chunk_count++;
    trace->threads[chunk->thread].word_count += chunk->word_count;
    trace->header.chunk_count++;
}

/* Whether a spawn names a thread shows in the operations alone. */
static void find_spawns(hz_trace *trace)
{
    for (uint32_t i = 0; i < trace->header.thread_count; i++) {
        hz_trace_operation operation;
        hz_trace_cursor cursor;
        hz_trace_start(&cursor, trace, i);
        while (hz_trace_next(&cursor, &operation))
            if (operation.kind == HZ_TRACE_SPAWN && operation.operand < trace->header.thread_count)
                trace->threads[operation.operand].waits_for_spawn = 1;
    }
}

/* Reads chunk after chunk up to the first that is not whole. */
static void salvage(hz_trace *trace)
{
    const hz_trace_chunk *chunk;
    free(trace->threads);
    free(trace->places);
    const uint32_t flags = trace->header.flags & (HZ_TRACE_HAS_TIME | HZ_TRACE_HAS_TOUCH);
    trace->threads = NULL;
    trace->notes = NULL;
    trace->header = (hz_trace_header){.version = HZ_TRACE_VERSION, .flags = flags};
    uint64_t end = sizeof trace->header;
    for (; (chunk = chunk_at(trace, end)) != NULL; end += sizeof *chunk + 8 * chunk->word_count)
        count_chunk(trace, chunk);
    trace->places = calloc((size_t)trace->header.chunk_count + 1, sizeof *trace->places);
    if (trace->places == NULL) hz_fail("no memory for a trace");
    uint32_t first = 0;
    for (uint32_t i = 0; i < trace->header.thread_count; i++) {
        trace->threads[i].first_place = first;
        first += trace->threads[i].chunk_count;
        trace->threads[i].chunk_count = 0;
    }
    for (uint64_t at = sizeof trace->header; at < end;
         at += sizeof *chunk + 8 * chunk->word_count) {
        chunk = (const hz_trace_chunk *)(const void *)(trace->bytes + at);
        hz_trace_thread *thread = &trace->threads[chunk->thread];
        trace->places[thread->first_place + thread->chunk_count++] =
            (hz_trace_place){at, chunk->thread, chunk->word_count};
    }
    find_spawns(trace);
}

/* ---- all together --------------------------------------------------------------------------- */

void hz_trace_load(hz_trace *trace, const char *path, const unsigned char *bytes, size_t size)
{
    *trace = (hz_trace){.bytes = bytes, .size = size};
    if (!hz_trace_is_one(bytes, size)) hz_refuse("%s is not a trace", path);
    if (size < sizeof trace->header) hz_refuse("%s: the file ends in its header", path);
    memcpy(&trace->header, bytes, sizeof trace->header);
    if (trace->header.version != HZ_TRACE_VERSION)
        hz_refuse("%s: a trace of version %u; this hztune reads version %d", path,
                  trace->header.version, HZ_TRACE_VERSION);
    if (!check_all(trace)) salvage(trace);
}

void hz_trace_start(hz_trace_cursor *cursor, const hz_trace *trace, uint32_t thread)
{
    const hz_trace_thread *about = &trace->threads[thread];
    *cursor = (hz_trace_cursor){.trace = trace,
                                .place = about->first_place,
                                .end = about->first_place + about->chunk_count};
}

bool hz_trace_next(hz_trace_cursor *cursor, hz_trace_operation *operation)
{
    while (cursor->word == cursor->stop) {
        if (cursor->place == cursor->end) return false;
        const unsigned char *at =
            cursor->trace->bytes + cursor->trace->places[cursor->place++].offset;
        const hz_trace_chunk *chunk = (const hz_trace_chunk *)(const void *)at;
        cursor->word = (const uint64_t *)(const void *)(chunk + 1);
        cursor->stop = cursor->word + chunk->word_count;
        cursor->time_ns = chunk->start_ns;
    }
    cursor->word = hz_trace_unpack(cursor->word, operation);
    if (cursor->word > cursor->stop) cursor->word = cursor->stop;
    cursor->time_ns += operation->delta_ns;
    return true;
}

void hz_trace_drop(hz_trace *trace)
{
    free(trace->threads);
    free(trace->places);
    *trace = (hz_trace){0};
}
