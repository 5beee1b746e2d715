/*
 * Reading a trace: see trace_read.h.
 *
 * Nothing of the file is believed before its checksum was compared, and no offset is followed that
 * leads outside. A checksum is no proof either: no count is larger than the file has bytes for, and
 * every byte of the file belongs to something, so nothing is read that is not there. What
 * was checked is a copy of the file past the allocator (trace_read.h), as a replay calls that only
 * for what was recorded.
 */
#include "trace_read.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "arguments.h"

enum { WORD = sizeof(uint64_t), NOTES_MAX_BYTES = 1 << 20 };

hz_file_bytes hz_read_file(const char *path)
{
    struct stat about;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &about) != 0) hz_refuse("cannot read %s: %s", path, strerror(errno));
    if (S_ISDIR(about.st_mode)) hz_refuse("cannot read %s: it is a folder", path);
    if (!S_ISREG(about.st_mode)) hz_refuse("cannot read %s: it is not a regular file", path);
    const size_t size = (size_t)about.st_size;
    if (size / (size_t)sysconf(_SC_PAGESIZE) >= (size_t)sysconf(_SC_PHYS_PAGES))
        hz_refuse("cannot read %s: it is larger than the memory of this machine", path);
    unsigned char *bytes = NULL;
    if (size > 0)
        bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (bytes == MAP_FAILED) hz_refuse("cannot read %s: %s", path, strerror(errno));
    for (size_t done = 0; done < size;) {
        const ssize_t length = read(fd, bytes + done, size - done);
        if (length < 0) hz_refuse("cannot read %s: %s", path, strerror(errno));
        if (length == 0) hz_fail("cannot read %s: it became shorter while it was read", path);
        done += (size_t)length;
    }
    (void)close(fd);
    return (hz_file_bytes){bytes, size};
}

bool hz_starts_with(const void *bytes, size_t size, const char *magic)
{
    const size_t length = strlen(magic);
    return size >= length && memcmp(bytes, magic, length) == 0;
}

/* Refuses the file unless this holds of it. */
__attribute__((format(printf, 3, 4))) static void want(const hz_trace *trace, bool holds,
                                                       const char *otherwise, ...)
{
    char damage[128];
    va_list words;
    if (holds) return;
    va_start(words, otherwise);
    (void)vsnprintf(damage, sizeof damage, otherwise, words);
    va_end(words);
    hz_refuse("%s is %s; copy it again, or record again", trace->path, damage);
}

/* ---- checks --------------------------------------------------------------------------------- */

static void check_header(const hz_trace *trace)
{
    const uint64_t bytes = trace->header->file_bytes;
    hz_trace_header copy = *trace->header;
    copy.checksum = 0;
    want(trace,
         hz_trace_checksum(HZ_TRACE_CHECKSUM_START, &copy, sizeof copy / WORD) ==
             trace->header->checksum,
         "damaged: the checksum of its header is wrong");
    want(trace, bytes == trace->size, "%s: it should have %" PRIu64 " bytes and has %zu",
         trace->size < bytes ? "cut" : "damaged", bytes, trace->size);
}

/* Bytes of the directory, its checksum included. Each count has 32 bits: this does not overflow. */
static uint64_t directory_bytes(const hz_trace_header *header)
{
    const uint64_t bytes = header->thread_count * (uint64_t)sizeof(hz_trace_thread) +
                           header->chunk_count * (uint64_t)sizeof(hz_trace_place) +
                           header->notes_bytes;
    return (bytes + WORD - 1) / WORD * WORD + WORD;
}

/* A thread is started by an operation, and a chunk has one: there are not more than words. */
static void check_directory(hz_trace *trace)
{
    const hz_trace_header *header = trace->header;
    const uint64_t offset = header->directory_offset, bytes = directory_bytes(header);
    uint64_t checksum;
    want(trace,
         offset >= sizeof *header && offset % WORD == 0 && offset <= trace->size &&
             trace->size - offset == bytes,
         "damaged: its directory is not where its header says");
    want(trace,
         header->thread_count <= offset / WORD && header->chunk_count <= offset / WORD &&
             header->notes_bytes <= NOTES_MAX_BYTES,
         "damaged: its header counts more than there is room for");
    const unsigned char *at = trace->bytes + offset;
    memcpy(&checksum, at + bytes - WORD, sizeof checksum);
    want(trace, hz_trace_checksum(HZ_TRACE_CHECKSUM_START, at, bytes / WORD - 1) == checksum,
         "damaged: the checksum of its directory is wrong");
    trace->threads = (const void *)at;
    trace->places = (const void *)(trace->threads + header->thread_count);
    trace->notes = (const void *)(trace->places + header->chunk_count);
}

/* The chunk at an offset; NULL: none ends before `end`, or it is damaged. */
static const hz_trace_chunk *chunk_at(const hz_trace *trace, uint64_t offset, uint64_t end)
{
    hz_trace_chunk copy;
    if (offset < sizeof(hz_trace_header) || offset % WORD != 0 || offset > end ||
        end - offset < sizeof copy)
        return NULL;
    memcpy(&copy, trace->bytes + offset, sizeof copy);
    if (copy.magic != HZ_TRACE_CHUNK_MAGIC || copy.word_count == 0 ||
        copy.word_count > HZ_TRACE_CHUNK_WORDS ||
        (end - offset - sizeof copy) / WORD < copy.word_count)
        return NULL;
    const uint64_t expected = copy.checksum;
    copy.checksum = 0;
    const uint64_t head = hz_trace_checksum(HZ_TRACE_CHECKSUM_START, &copy, sizeof copy / WORD);
    const unsigned char *chunk = trace->bytes + offset;
    if (hz_trace_checksum(head, chunk + sizeof copy, copy.word_count) != expected) return NULL;
    return (const void *)chunk;
}

/* Whether the chunk at a place is what the directory says. */
static bool is_sound(const hz_trace *trace, const hz_trace_place *place, uint32_t thread,
                     uint32_t number)
{
    const hz_trace_chunk *chunk = chunk_at(trace, place->offset, trace->header->directory_offset);
    return chunk != NULL && place->thread == thread && chunk->thread == thread &&
           chunk->number == number && chunk->word_count == place->word_count;
}

/* The places of a thread begin at `first`, and the chunks there are its own; returns their bytes.
 */
static uint64_t check_thread(const hz_trace *trace, uint32_t number, uint32_t first)
{
    const hz_trace_thread *thread = &trace->threads[number];
    uint64_t words = 0;
    want(trace,
         thread->first_place == first && thread->chunk_count <= trace->header->chunk_count - first,
         "damaged: the places of thread %" PRIu32 " are wrong", number);
    for (uint32_t i = 0; i < thread->chunk_count; i++) {
        const hz_trace_place *place = &trace->places[first + i];
        want(trace, is_sound(trace, place, number, i),
             "damaged: chunk %" PRIu32 " of thread %" PRIu32 " is wrong", i, number);
        words += place->word_count;
    }
    want(trace, words == thread->word_count,
         "damaged: thread %" PRIu32 " has not as many words as it says", number);
    return thread->chunk_count * (uint64_t)sizeof(hz_trace_chunk) + WORD * words;
}

/* The chunks of the threads are all that stands between the header and the directory. */
static void check_chunks(const hz_trace *trace)
{
    uint32_t first = 0;
    uint64_t bytes = sizeof *trace->header;
    for (uint32_t i = 0; i < trace->header->thread_count; i++) {
        bytes += check_thread(trace, i, first);
        first += trace->threads[i].chunk_count;
    }
    want(trace, first == trace->header->chunk_count && bytes == trace->header->directory_offset,
         "damaged: its chunks are not all that it holds");
}

/* ---- a file --------------------------------------------------------------------------------- */

void hz_trace_read(hz_trace *trace, const char *path, const hz_file_bytes *file)
{
    *trace = (hz_trace){.path = path, .bytes = file->bytes, .size = file->size};
    if (file->size < sizeof *trace->header) hz_refuse("%s is not a trace: it is too short", path);
    if (!hz_starts_with(file->bytes, file->size, HZ_TRACE_MAGIC))
        hz_refuse("%s is not a trace: record one with `hztune record`", path);
    trace->header = (const void *)file->bytes;
    if (trace->header->version != HZ_TRACE_VERSION)
        hz_refuse("%s is a trace of version %" PRIu32 "; this hztune reads version %d", path,
                  trace->header->version, HZ_TRACE_VERSION);
    check_header(trace);
    check_directory(trace);
    check_chunks(trace);
}
