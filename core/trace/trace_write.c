/*
 * Writing a trace: see trace_write.h.
 */
#include "trace_write.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "arguments.h"

enum {
    FIRST_ROOM = 64,
    EXPONENT_MAX = (1 << HZ_TRACE_EXPONENT_BITS) - 1,
    LONG_DIGITS_BITS = HZ_TRACE_DIGITS_BITS + HZ_TRACE_DIGITS_MORE_BITS,
};

static void *memory_for(void *old, size_t count, size_t size)
{
    void *grown = reallocarray(old, count, size);
    if (grown == NULL) hz_fail("no memory to write a trace");
    return grown;
}

/* Without the file, which is not whole. */
static _Noreturn void give_up(const hz_trace_writer *writer, int failure)
{
    (void)unlink(writer->temporary);
    hz_fail("cannot write %s: %s", writer->path, strerror(failure));
}

static void write_bytes(hz_trace_writer *writer, const void *bytes, size_t count)
{
    const char *at = bytes;
    while (count > 0) {
        const ssize_t written = write(writer->fd, at, count);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) give_up(writer, written < 0 ? errno : ENOSPC);
        at += written;
        count -= (size_t)written;
        writer->bytes += (uint64_t)written;
    }
}

/* A link of the system itself, such as /dev/stdout. */
static bool is_system_link(const char *path)
{
    char target[6] = "";
    const ssize_t length = readlink(path, target, sizeof target);
    return length > 0 && (strncmp(target, "/dev/", 5) == 0 || strncmp(target, "/proc/", 6) == 0);
}

/* A file is written beside its place and renamed: a link is replaced, not what it leads to. */
void hz_require_output(const char *path)
{
    struct stat there;
    if (path[0] == '\0') hz_refuse("the file to write has no name");
    if (strcmp(path, "-") == 0) hz_refuse("cannot write -: name a file");
    if (is_system_link(path))
        hz_refuse("cannot write %s: it is a link of the system; name a file", path);
    if (stat(path, &there) != 0 || S_ISREG(there.st_mode)) return;
    hz_refuse("cannot write %s: %s; name a file", path,
              S_ISDIR(there.st_mode) ? "it is a directory" : "it is a device, a pipe or a socket");
}

void hz_trace_create(hz_trace_writer *writer, const char *path, uint32_t thread_count)
{
    hz_require_output(path);
    *writer = (hz_trace_writer){.path = path, .header.thread_count = thread_count};
    if (asprintf(&writer->temporary, "%s.%d.part", path, (int)getpid()) < 0)
        hz_fail("no memory to write a trace");
    writer->fd = open(writer->temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (writer->fd < 0) hz_refuse("cannot write %s: %s", path, strerror(errno));
    writer->streams = memory_for(NULL, (size_t)thread_count + 1, sizeof *writer->streams);
    memset(writer->streams, 0, thread_count * sizeof *writer->streams);
    write_bytes(writer, &writer->header, sizeof writer->header);
}

/* ---- chunks --------------------------------------------------------------------------------- */

static void note_place(hz_trace_writer *writer, uint32_t thread, uint32_t word_count)
{
    if (writer->header.chunk_count == writer->place_room) {
        writer->place_room = 2 * writer->place_room + FIRST_ROOM;
        writer->places = memory_for(writer->places, writer->place_room, sizeof *writer->places);
    }
    writer->places[writer->header.chunk_count++] =
        (hz_trace_place){writer->bytes, thread, word_count};
}

static void write_chunk(hz_trace_writer *writer, uint32_t thread)
{
    hz_trace_stream *stream = &writer->streams[thread];
    if (stream->word_count == 0) return;
    hz_trace_chunk chunk = {.magic = HZ_TRACE_CHUNK_MAGIC,
                            .thread = thread,
                            .number = stream->about.chunk_count++,
                            .word_count = stream->word_count,
                            .start_ns = stream->chunk_ns};
    chunk.checksum = hz_trace_checksum(HZ_TRACE_CHECKSUM_START, &chunk, sizeof chunk / 8);
    chunk.checksum = hz_trace_checksum(chunk.checksum, stream->words, stream->word_count);
    note_place(writer, thread, stream->word_count);
    write_bytes(writer, &chunk, sizeof chunk);
    write_bytes(writer, stream->words, 8 * (size_t)stream->word_count);
    stream->about.word_count += stream->word_count;
    stream->word_count = 0;
}

static void put_word(hz_trace_stream *stream, uint64_t word)
{
    if (stream->word_count == stream->word_room) {
        stream->word_room = stream->word_room == 0 ? FIRST_ROOM : 2 * stream->word_room;
        stream->words = memory_for(stream->words, stream->word_room, sizeof word);
    }
    stream->words[stream->word_count++] = word;
}

/* ---- operations ----------------------------------------------------------------------------- */

/* A delta as it can be written. */
typedef struct delta {
    uint64_t digits;
    unsigned exponent;
} delta;

/* The nearest delta with so many digits. */
static delta nearest(uint64_t ns, unsigned digits_bits)
{
    delta found = {ns, 0};
    while (found.digits >> digits_bits != 0) {
        found.exponent++;
        found.digits = (ns + (UINT64_C(1) << (found.exponent - 1))) >> found.exponent;
    }
    return found;
}

void hz_trace_append(hz_trace_writer *writer, uint32_t thread, hz_trace_operation *operation,
                     uint64_t time_ns)
{
    hz_trace_stream *stream = &writer->streams[thread];
    if (stream->word_count + 2 > HZ_TRACE_CHUNK_WORDS) write_chunk(writer, thread);
    if (!stream->has_begun) {
        stream->has_begun = true;
        stream->about.start_ns = stream->now_ns = time_ns;
    }
    if (stream->word_count == 0) stream->chunk_ns = stream->now_ns;
    uint64_t ns = time_ns > stream->now_ns ? time_ns - stream->now_ns : 0;
    if (ns > HZ_TRACE_DELTA_MAX_NS) ns = HZ_TRACE_DELTA_MAX_NS;
    delta passed = nearest(ns, HZ_TRACE_DIGITS_BITS);
    const bool is_long = passed.exponent > EXPONENT_MAX;
    if (is_long) passed = nearest(ns, LONG_DIGITS_BITS);
    if (passed.exponent > EXPONENT_MAX) passed = (delta){ns >> EXPONENT_MAX, EXPONENT_MAX};
    const bool is_wide = is_long || operation->align_shift != 0 ||
                         operation->size >> HZ_TRACE_SIZE_BITS != 0 ||
                         operation->operand >> HZ_TRACE_OPERAND_BITS != 0;
    put_word(stream, (uint64_t)operation->kind | (uint64_t)operation->is_cell << HZ_TRACE_CELL_AT |
                         (uint64_t)is_wide << HZ_TRACE_WIDE_AT |
                         (uint64_t)passed.exponent << HZ_TRACE_EXPONENT_AT |
                         hz_trace_bits(passed.digits, 0, HZ_TRACE_DIGITS_BITS)
                             << HZ_TRACE_DIGITS_AT |
                         hz_trace_bits(operation->operand, 0, HZ_TRACE_OPERAND_BITS)
                             << HZ_TRACE_OPERAND_AT |
                         operation->size << HZ_TRACE_SIZE_AT);
    if (is_wide)
        put_word(stream,
                 hz_trace_bits(operation->size, HZ_TRACE_SIZE_BITS, HZ_TRACE_SIZE_MORE_BITS) |
                     (uint64_t)operation->operand >> HZ_TRACE_OPERAND_BITS
                                                         << HZ_TRACE_OPERAND_MORE_AT |
                     (uint64_t)operation->align_shift << HZ_TRACE_ALIGN_AT |
                     passed.digits >> HZ_TRACE_DIGITS_BITS << HZ_TRACE_DIGITS_MORE_AT);
    operation->delta_ns = passed.digits << passed.exponent;
    stream->now_ns += operation->delta_ns;
    stream->about.end_ns = stream->now_ns;
    stream->about.call_count += hz_trace_calls(operation->kind);
}

/* ---- the end -------------------------------------------------------------------------------- */

/* Sorts the places by thread, then by number: each thread's are in order already. */
static hz_trace_place *sorted_places(hz_trace_writer *writer)
{
    hz_trace_place *sorted =
        memory_for(NULL, (size_t)writer->header.chunk_count + 1, sizeof *sorted);
    uint32_t first = 0;
    for (uint32_t i = 0; i < writer->header.thread_count; i++) {
        writer->streams[i].about.first_place = writer->streams[i].next_place = first;
        first += writer->streams[i].about.chunk_count;
    }
    for (uint32_t i = 0; i < writer->header.chunk_count; i++)
        sorted[writer->streams[writer->places[i].thread].next_place++] = writer->places[i];
    return sorted;
}

/* The directory in one piece, so that it can be given its checksum. */
static void write_directory(hz_trace_writer *writer, const char *notes)
{
    hz_trace_header *header = &writer->header;
    hz_trace_place *places = sorted_places(writer);
    header->directory_offset = writer->bytes;
    header->notes_bytes = (uint32_t)strlen(notes);
    const size_t threads = header->thread_count * sizeof(hz_trace_thread);
    const size_t chunks = header->chunk_count * sizeof *places;
    const size_t bytes = (threads + chunks + header->notes_bytes + 7) / 8 * 8;
    char *directory = memory_for(NULL, bytes + 8, 1);
    memset(directory, 0, bytes + 8);
    for (uint32_t i = 0; i < header->thread_count; i++)
        memcpy(directory + i * sizeof(hz_trace_thread), &writer->streams[i].about,
               sizeof(hz_trace_thread));
    if (chunks > 0) memcpy(directory + threads, places, chunks);
    memcpy(directory + threads + chunks, notes, header->notes_bytes);
    const uint64_t checksum = hz_trace_checksum(HZ_TRACE_CHECKSUM_START, directory, bytes / 8);
    memcpy(directory + bytes, &checksum, sizeof checksum);
    write_bytes(writer, directory, bytes + 8);
    free(directory);
    free(places);
}

static void write_header(hz_trace_writer *writer)
{
    hz_trace_header *header = &writer->header;
    memcpy(header->magic, HZ_TRACE_MAGIC, sizeof header->magic);
    header->version = HZ_TRACE_VERSION;
    header->file_bytes = writer->bytes;
    header->checksum = 0;
    header->checksum = hz_trace_checksum(HZ_TRACE_CHECKSUM_START, header, sizeof *header / 8);
    if (pwrite(writer->fd, header, sizeof *header, 0) != (ssize_t)sizeof *header)
        give_up(writer, errno);
}

void hz_trace_close(hz_trace_writer *writer, const char *notes)
{
    for (uint32_t i = 0; i < writer->header.thread_count; i++) {
        write_chunk(writer, i);
        writer->header.call_count += writer->streams[i].about.call_count;
    }
    write_directory(writer, notes);
    write_header(writer);
    if (fsync(writer->fd) != 0 || rename(writer->temporary, writer->path) != 0)
        give_up(writer, errno);
    (void)close(writer->fd);
    for (uint32_t i = 0; i < writer->header.thread_count; i++) free(writer->streams[i].words);
    free(writer->streams);
    free(writer->places);
    free(writer->temporary);
}
