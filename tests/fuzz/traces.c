/*
 * The readers of recordings: the bytes are a file of any form. Their hash says what is done:
 *
 *   - at most two changes: a chunk (of a log: a frame) is doubled, left out, exchanged with
 *     another, becomes the last, or gets another field in its head or another last word; or the
 *     head of the file gets another field
 *   - it stays, or every checksum is made right again, so that what stands behind it is read
 *   - it is told of, cut, written as text, or rehearsed for a replay
 *
 * Whatever the file is, a reader ends with a sentence or makes a trace that can be opened, within
 * seconds, and in memory that is bounded. Each input has a process of its own, as a sentence ends
 * the process.
 */
#include "target.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "emit.h"
#include "log_read.h"
#include "tools.h"
#include "walk.h"

enum {
    FILE_MAX = 1 << 16,
    WORD = 8,
    PARTS_MAX = 256,
    SECONDS_MAX = 20,
    MEMORY_MAX_KB = 256 * 1024
};

enum { TELL, CUT, CONVERT, REPLAY }; /* what is done with the file */
enum {
    SAME,
    DOUBLED,
    LEFT_OUT,
    EXCHANGED,
    LAST_PART,
    OTHER_FIELD,
    OTHER_WORD,
    OTHER_HEAD,
    CHANGES
};

/* A file in the making; its bytes can be read as words. */
typedef struct content {
    _Alignas(16) uint8_t bytes[FILE_MAX];
    size_t count;
    size_t parts[PARTS_MAX]; /* where its chunks or frames stand */
    size_t part_count;
} content;

static uint64_t baseline_kb; /* resident before any input */

/* ---- chunks and frames ----------------------------------------------------------------------- */

/* Bytes of the chunk or frame at `at`; 0: there is none that is whole. */
static size_t part_bytes(const content *file, size_t at)
{
    hz_trace_chunk chunk;
    hz_log_frame frame;
    size_t bytes = 0;
    if (file->count - at >= sizeof frame) {
        memcpy(&chunk, file->bytes + at, sizeof chunk);
        memcpy(&frame, file->bytes + at, sizeof frame);
        if (chunk.magic == HZ_TRACE_CHUNK_MAGIC && chunk.word_count <= HZ_TRACE_CHUNK_WORDS)
            bytes = sizeof chunk + WORD * (size_t)chunk.word_count;
        else if (frame.magic == HZ_FRAME_MAGIC)
            bytes = sizeof frame + ((size_t)frame.bytes + WORD - 1) / WORD * WORD;
    }
    return bytes <= file->count - at ? bytes : 0;
}

static void find_parts(content *file)
{
    const bool is_trace = hz_starts_with(file->bytes, file->count, HZ_TRACE_MAGIC);
    size_t at = is_trace ? sizeof(hz_trace_header) : sizeof(hz_log_header);
    file->part_count = 0;
    for (size_t bytes;
         at < file->count && file->part_count < PARTS_MAX && (bytes = part_bytes(file, at)) > 0;
         at += bytes)
        file->parts[file->part_count++] = at;
}

static void exchange(content *file, size_t first, size_t second)
{
    static uint8_t kept[FILE_MAX];
    const size_t first_bytes = part_bytes(file, first), second_bytes = part_bytes(file, second);
    const size_t between = second - first - first_bytes;
    memcpy(kept, file->bytes + first, second + second_bytes - first);
    memcpy(file->bytes + first, kept + second - first, second_bytes);
    memcpy(file->bytes + first + second_bytes, kept + first_bytes, between);
    memcpy(file->bytes + first + second_bytes + between, kept, first_bytes);
}

/* Gives a field of 32 bits a value at which counts and numbers go wrong. */
static void change_field(content *file, size_t at, uint64_t which)
{
    uint32_t value;
    memcpy(&value, file->bytes + at, sizeof value);
    const uint32_t edges[] = {0,         value + 1,  value - 1, value ^ 64,
                              (1 << 22), UINT16_MAX, INT32_MAX, UINT32_MAX};
    memcpy(file->bytes + at, &edges[which % COUNT(edges)], sizeof value);
}

static void change_file(content *file, unsigned change, uint64_t which)
{
    const size_t head_bytes = sizeof(hz_log_header);
    find_parts(file);
    if (change == OTHER_HEAD && file->count >= head_bytes)
        change_field(file, 4 * (which % (head_bytes / 4)), which >> 16);
    if (file->part_count == 0) return;
    const size_t one = file->parts[which % file->part_count], end = one + part_bytes(file, one);
    const size_t other = file->parts[(which >> 16) % file->part_count];
    if (change == DOUBLED && file->count + end - one <= FILE_MAX) {
        memmove(file->bytes + end, file->bytes + one, file->count - one);
        file->count += end - one;
    }
    if (change == LEFT_OUT) {
        memmove(file->bytes + one, file->bytes + end, file->count - end);
        file->count -= end - one;
    }
    if (change == EXCHANGED && one != other)
        exchange(file, one < other ? one : other, one < other ? other : one);
    if (change == LAST_PART) file->count = end;
    if (change == OTHER_FIELD) change_field(file, one + 4 * ((which >> 16) % 6), which >> 24);
    if (change == OTHER_WORD) change_field(file, end - WORD, which >> 24);
}

/* ---- checksums ------------------------------------------------------------------------------- */

/* The checksum of `words` words; the one at `field` counts as 0, and becomes it. */
static void mend(uint8_t *at, size_t words, size_t field)
{
    memset(at + field, 0, WORD);
    const uint64_t checksum = hz_trace_checksum(HZ_TRACE_CHECKSUM_START, at, words);
    memcpy(at + field, &checksum, WORD);
}

static void mend_trace(content *file)
{
    hz_trace_header header;
    memcpy(&header, file->bytes, sizeof header);
    const uint64_t offset = header.directory_offset;
    if (offset % WORD == 0 && offset < file->count && file->count % WORD == 0) {
        uint8_t *directory = file->bytes + offset;
        const size_t words = (file->count - offset) / WORD - 1;
        const uint64_t checksum = hz_trace_checksum(HZ_TRACE_CHECKSUM_START, directory, words);
        memcpy(directory + WORD * words, &checksum, WORD);
    }
    header.file_bytes = file->count;
    memcpy(file->bytes, &header, sizeof header);
    mend(file->bytes, sizeof header / WORD, offsetof(hz_trace_header, checksum));
}

static void mend_checksums(content *file)
{
    find_parts(file);
    if (hz_starts_with(file->bytes, file->count, HZ_TRACE_MAGIC))
        mend_trace(file);
    else if (hz_starts_with(file->bytes, file->count, HZ_LOG_MAGIC))
        mend(file->bytes, sizeof(hz_log_header) / WORD, offsetof(hz_log_header, checksum));
    for (size_t i = 0; i < file->part_count; i++) {
        uint8_t *part = file->bytes + file->parts[i];
        const bool is_chunk = part[2] == (HZ_TRACE_CHUNK_MAGIC >> 16 & 0xff);
        mend(part, part_bytes(file, file->parts[i]) / WORD,
             is_chunk ? offsetof(hz_trace_chunk, checksum) : offsetof(hz_log_frame, checksum));
    }
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Writes what was resolved; it can be opened again. */
static void write_trace(hz_resolver *resolver, const char *output)
{
    if (resolver->steps.count == 0) return;
    (void)hz_emit(resolver, &(hz_emission){.path = output, .ns_per_unit = 1.0, .notes = "{}"});
    const hz_file_bytes file = hz_read_file(output);
    const pid_t reader = fork(); /* a refusal ends it */
    int status = -1;
    if (reader == 0) {
        hz_trace_read(&(hz_trace){0}, output, &file);
        _exit(0);
    }
    require(waitpid(reader, &status, 0) == reader && status == 0, "what was written is refused");
}

static void read_trace(const uint8_t *bytes, size_t count, unsigned verb, const char *output)
{
    hz_trace trace;
    hz_resolver resolver;
    FILE *nowhere = fopen("/dev/null", "w");
    require(nowhere != NULL, "no /dev/null");
    hz_trace_read(&trace, "input", &(hz_file_bytes){bytes, count});
    if (verb == TELL) hz_trace_describe(&trace, nowhere);
    if (verb == CONVERT) hz_plain_write(&trace, nowhere);
    if (verb == CUT) {
        hz_resolver_make(&resolver, output);
        hz_resolve_trace(&trace, &resolver);
        if (trace.header->duration_ns % 2 != 0) hz_cut(&resolver, 1, trace.header->duration_ns);
        write_trace(&resolver, output);
    }
}

static void read_log(const uint8_t *bytes, size_t count, const char *output)
{
    hz_log log;
    hz_log_read(&log, "input", bytes, count);
    for (hz_log_image image = {0}; hz_log_next_image(&log, &image);) {
        hz_resolver resolver;
        hz_resolver_make(&resolver, output);
        hz_log_merge(&log, &image, &resolver);
        write_trace(&resolver, output);
        hz_resolver_drop(&resolver);
    }
}

static void read_text(const uint8_t *bytes, size_t count, const char *output)
{
    const hz_file_bytes file = {bytes, count};
    hz_resolver resolver;
    if (!hz_plain_is_one(&file)) return;
    hz_resolver_make(&resolver, output);
    (void)hz_plain_read("input", &file, &resolver);
    write_trace(&resolver, output);
}

/* In memory of exactly the file's length, so that a step beyond it is seen. */
static void read_file(const content *file, unsigned verb, const char *output)
{
    uint8_t *bytes = malloc(file->count);
    require(bytes != NULL || file->count == 0, "no memory");
    if (file->count > 0) memcpy(bytes, file->bytes, file->count);
    const bool is_trace = hz_starts_with(bytes, file->count, HZ_TRACE_MAGIC);
    if (is_trace && verb == REPLAY) { /* it opens files only */
        FILE *out = fopen(output, "w");
        require(out != NULL && fwrite(bytes, 1, file->count, out) == file->count, "cannot write");
        (void)fclose(out);
        (void)hz_rehearse(output);
    } else if (is_trace)
        read_trace(bytes, file->count, verb, output);
    else if (hz_starts_with(bytes, file->count, HZ_LOG_MAGIC))
        read_log(bytes, file->count, output);
    else
        read_text(bytes, file->count, output);
    _exit(0);
}

/* ---- all together ---------------------------------------------------------------------------- */

/* Where sanitizers write, while sentences go nowhere. */
void __sanitizer_set_report_fd(void *fd) __attribute__((weak));

static void be_quiet(void)
{
    const int reports = dup(STDERR_FILENO);
    if (__sanitizer_set_report_fd != NULL) __sanitizer_set_report_fd((void *)(intptr_t)reports);
    if (freopen("/dev/null", "w", stderr) == NULL) _exit(0);
}

static void require_well_ended(pid_t child)
{
    int status;
    struct rusage used;
    require(wait4(child, &status, 0, &used) == child, "no child");
    require(WIFEXITED(status), "a reader was ended by signal %d", WTERMSIG(status));
    require(WEXITSTATUS(status) <= 2, "a reader ended with status %d", WEXITSTATUS(status));
    require((uint64_t)used.ru_maxrss < baseline_kb + MEMORY_MAX_KB, "a reader took %ld KiB",
            used.ru_maxrss);
}

static uint64_t hash_of(const uint8_t *bytes, size_t count)
{
    uint64_t hash = count;
    for (size_t i = 0; i < count; i++) hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    return (hash ^ hash >> 32) * UINT64_C(0x9e3779b97f4a7c15);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    static content file;
    static char output[64];
    const uint64_t plan = hash_of(bytes, count);
    struct rusage used;
    if (count > FILE_MAX) return 0;
    file.count = count;
    memcpy(file.bytes, bytes, count);
    change_file(&file, plan % CHANGES, plan >> 16);
    change_file(&file, plan / CHANGES % CHANGES, plan >> 24);
    if ((plan >> 6 & 3) != 0) mend_checksums(&file);
    (void)snprintf(output, sizeof output, "/dev/shm/hz-fuzz-%d", (int)getpid());
    if (baseline_kb == 0 && getrusage(RUSAGE_SELF, &used) == 0)
        baseline_kb = (uint64_t)used.ru_maxrss;
    const pid_t child = fork();
    if (child == 0) {
        be_quiet();
        (void)alarm(SECONDS_MAX);
        read_file(&file, plan >> 8 & 3, output);
    }
    require(child > 0, "cannot fork");
    require_well_ended(child);
    (void)unlink(output);
    return 0;
}
