/*
 * Opening a trace: see trace_open.h.
 *
 * Nothing of the file is believed before its checksum was compared, and no offset is followed that
 * leads outside. Reading everything here also brings the file into memory before a replay starts.
 */
#include "trace_open.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "arguments.h"

enum { WORD = sizeof(uint64_t) };

/* The bytes of a regular file that is not shorter than a header. */
static const unsigned char *map_trace(const char *path, uint64_t *size)
{
    struct stat about;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &about) != 0) hz_refuse("cannot read %s: %s", path, strerror(errno));
    if (!S_ISREG(about.st_mode)) hz_refuse("cannot read %s: it is not a regular file", path);
    *size = (uint64_t)about.st_size;
    if (*size < sizeof(hz_trace_header)) hz_refuse("%s is not a trace: it is too short", path);
    void *bytes = mmap(NULL, *size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
    if (bytes == MAP_FAILED) hz_refuse("cannot read %s: %s", path, strerror(errno));
    (void)close(fd);
    return bytes;
}

static void require_header(const hz_trace *trace, uint64_t size)
{
    hz_trace_header header = *trace->header;
    if (memcmp(header.magic, HZ_TRACE_MAGIC, sizeof header.magic) != 0)
        hz_refuse("%s is not a trace: record one with `hztune record`", trace->path);
    if (header.version != HZ_TRACE_VERSION)
        hz_refuse("%s is a trace of version %" PRIu32 ", this hz-bench reads version %d",
                  trace->path, header.version, HZ_TRACE_VERSION);
    header.checksum = 0;
    if (hz_trace_checksum(HZ_TRACE_CHECKSUM_START, &header, sizeof header / WORD) !=
        trace->header->checksum)
        hz_refuse("%s is damaged: the checksum of its header is wrong", trace->path);
    if (header.file_bytes != size)
        hz_refuse("%s is %s: it should have %" PRIu64 " bytes and has %" PRIu64
                  "; `hztune trace cut` makes a whole trace of what is left",
                  trace->path, size < header.file_bytes ? "cut" : "damaged", header.file_bytes,
                  size);
}

/* Bytes of the directory, its checksum included. Each count has 32 bits: this does not overflow. */
static uint64_t directory_length(const hz_trace_header *header)
{
    const uint64_t bytes = header->thread_count * (uint64_t)sizeof(hz_trace_thread) +
                           header->chunk_count * (uint64_t)sizeof(hz_trace_place) +
                           header->notes_bytes;
    return (bytes + WORD - 1) / WORD * WORD + WORD;
}

static void open_directory(hz_trace *trace)
{
    const hz_trace_header *header = trace->header;
    const uint64_t offset = header->directory_offset;
    const uint64_t bytes = directory_length(header);
    uint64_t checksum;
    if (offset < sizeof *header || offset % WORD != 0 || offset > header->file_bytes ||
        header->file_bytes - offset != bytes)
        hz_refuse("%s is damaged: its directory is not where its header says", trace->path);
    const unsigned char *at = trace->bytes + offset;
    memcpy(&checksum, at + bytes - WORD, sizeof checksum);
    if (hz_trace_checksum(HZ_TRACE_CHECKSUM_START, at, bytes / WORD - 1) != checksum)
        hz_refuse("%s is damaged: the checksum of its directory is wrong", trace->path);
    trace->threads = (const void *)at;
    trace->places = (const void *)(trace->threads + header->thread_count);
}

/* Whether the chunk at a place is what the directory says, and undamaged. */
static bool is_sound(const hz_trace *trace, const hz_trace_place *place, uint32_t number)
{
    const uint64_t end = trace->header->directory_offset;
    const uint64_t bytes = sizeof(hz_trace_chunk) + WORD * (uint64_t)place->word_count;
    if (place->word_count == 0 || place->word_count > HZ_TRACE_CHUNK_WORDS) return false;
    if (place->offset < sizeof(hz_trace_header) || place->offset % WORD != 0) return false;
    if (place->offset > end || bytes > end - place->offset) return false;
    hz_trace_chunk chunk;
    memcpy(&chunk, trace->bytes + place->offset, sizeof chunk);
    const uint64_t expected = chunk.checksum;
    chunk.checksum = 0;
    uint64_t checksum = hz_trace_checksum(HZ_TRACE_CHECKSUM_START, &chunk, sizeof chunk / WORD);
    checksum =
        hz_trace_checksum(checksum, trace->bytes + place->offset + sizeof chunk, place->word_count);
    return checksum == expected && chunk.magic == HZ_TRACE_CHUNK_MAGIC &&
           chunk.thread == place->thread && chunk.number == number &&
           chunk.word_count == place->word_count;
}

/* The places of the threads follow each other, and the chunks there are theirs. */
static void check_chunks(const hz_trace *trace)
{
    uint32_t first = 0;
    for (uint32_t i = 0; i < trace->header->thread_count; i++) {
        const hz_trace_thread *thread = &trace->threads[i];
        uint64_t words = 0;
        if (thread->first_place != first ||
            thread->chunk_count > trace->header->chunk_count - first)
            hz_refuse("%s is damaged: the places of thread %" PRIu32 " are wrong", trace->path, i);
        for (uint32_t j = 0; j < thread->chunk_count; j++) {
            const hz_trace_place *place = &trace->places[first + j];
            if (place->thread != i || !is_sound(trace, place, j))
                hz_refuse("%s is damaged: chunk %" PRIu32 " of thread %" PRIu32
                          " is wrong; `hztune trace cut` makes a whole trace of what precedes it",
                          trace->path, j, i);
            words += place->word_count;
        }
        if (words != thread->word_count)
            hz_refuse("%s is damaged: the words of thread %" PRIu32 " are not as many as it says",
                      trace->path, i);
        first += thread->chunk_count;
    }
    if (first != trace->header->chunk_count)
        hz_refuse("%s is damaged: it has chunks of no thread", trace->path);
}

hz_trace hz_trace_open(const char *path)
{
    uint64_t size;
    hz_trace trace = {.path = path};
    trace.bytes = map_trace(path, &size);
    trace.header = (const void *)trace.bytes;
    require_header(&trace, size);
    open_directory(&trace);
    check_chunks(&trace);
    return trace;
}
