/*
 * The plain text of a trace: see tools.h.
 */
#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "arguments.h"
#include "tools.h"
#include "walk.h"

/* ---- names ---------------------------------------------------------------------------------- */

static const char *const names[HZ_KINDS] = {
    [HZ_TRACE_MALLOC] = "malloc",
    [HZ_TRACE_CALLOC] = "calloc",
    [HZ_TRACE_ALIGNED_ALLOC] = "aligned_alloc",
    [HZ_TRACE_MEMALIGN] = "memalign",
    [HZ_TRACE_POSIX_MEMALIGN] = "posix_memalign",
    [HZ_TRACE_VALLOC] = "valloc",
    [HZ_TRACE_PVALLOC] = "pvalloc",
    [HZ_TRACE_NEW] = "new",
    [HZ_TRACE_NEW_NOTHROW] = "new_nothrow",
    [HZ_TRACE_NEW_ALIGNED] = "new_aligned",
    [HZ_TRACE_NEW_ALIGNED_NOTHROW] = "new_aligned_nothrow",
    [HZ_TRACE_REALLOC] = "realloc",
    [HZ_TRACE_FREE] = "free",
    [HZ_TRACE_FREE_SIZED] = "free_sized",
    [HZ_TRACE_FREE_ALIGNED_SIZED] = "free_aligned_sized",
    [HZ_TRACE_DELETE] = "delete",
    [HZ_TRACE_DELETE_SIZED] = "delete_sized",
    [HZ_TRACE_DELETE_ALIGNED] = "delete_aligned",
    [HZ_TRACE_DELETE_SIZED_ALIGNED] = "delete_sized_aligned",
    [HZ_TRACE_SPAWN] = "spawn",
    [HZ_TRACE_JOIN] = "join",
};

const char *hz_kind_name(unsigned kind)
{
    return kind < HZ_KINDS ? names[kind] : NULL;
}

hz_trace_kind hz_kind_named(const char *name, size_t length)
{
    for (unsigned kind = 0; kind < HZ_KINDS; kind++)
        if (names[kind] != NULL && strlen(names[kind]) == length &&
            memcmp(names[kind], name, length) == 0)
            return (hz_trace_kind)kind;
    return (hz_trace_kind)0;
}

/* ---- writing -------------------------------------------------------------------------------- */

enum { LOOK_BYTES = 4096 }; /* of a file, to see what it is */

/* The first line tells: "# ..." or "0 12 malloc". */
bool hz_plain_is_one(const hz_file_bytes *file)
{
    const size_t length = file->size < LOOK_BYTES ? file->size : LOOK_BYTES;
    size_t at = 0;
    for (size_t i = 0; i < length; i++)
        if (file->bytes[i] < ' ' && !isspace(file->bytes[i])) return false;
    while (at < length && isspace(file->bytes[at])) at++;
    if (at < length && file->bytes[at] == '#') return true;
    const size_t start = at;
    while (at < length && isdigit(file->bytes[at])) at++;
    return at > start && at < length && isspace(file->bytes[at]);
}

static void write_operation(const hz_ordered *next, FILE *out)
{
    const hz_trace_operation *operation = &next->operation;
    const hz_trace_kind kind = operation->kind;
    (void)fprintf(out, "%" PRIu32 " %" PRIu64 " %s", next->thread, next->time_ns,
                  hz_kind_name(kind));
    if (hz_trace_is_of_thread(kind)) {
        (void)fprintf(out, " %" PRIu32 "\n", operation->operand);
        return;
    }
    (void)fprintf(out, " %" PRIu64, next->block);
    if (!hz_trace_ends(kind)) (void)fprintf(out, " %" PRIu64, operation->size);
    if (!hz_trace_ends(kind) && operation->align_shift != 0)
        (void)fprintf(out, " %" PRIu64, UINT64_C(1) << operation->align_shift);
    (void)fputc('\n', out);
}

void hz_plain_write(const hz_trace *trace, FILE *out)
{
    hz_ordered next;
    hz_walk *walk = hz_walk_make(trace);
    (void)fputs("# thread ns operation block size alignment\n", out);
    while (hz_walk_next(walk, &next)) write_operation(&next, out);
}

/* ---- reading -------------------------------------------------------------------------------- */

enum { WORDS_MAX = 12, LINE_MAX_BYTES = 1 << 16, TEXT_THREADS_MAX = 1 << 20 };

/* A piece of a line. */
typedef struct word {
    const char *at;
    size_t length;
} word;

typedef struct reading {
    const char *path;      /* for messages */
    hz_resolver *resolver; /* gets the calls */
    uint64_t line;         /* number of the line that is read, from 1 */
    word words[WORDS_MAX]; /* of that line */
    size_t count;          /* how many */
    uint64_t time;         /* of the latest call */
    bool has_times;        /* some line has */
    hz_lives threads;      /* from a thread id, plus one, to the number of the thread */
    uint32_t thread_count; /* numbers that were given */
} reading;

/* ---- words ---------------------------------------------------------------------------------- */

static _Noreturn void refuse_line(const reading *r, const char *wanted)
{
    hz_refuse("%s, line %llu: want %s", r->path, (unsigned long long)r->line, wanted);
}

static void split(reading *r, const char *at, const char *end)
{
    r->count = 0;
    while (at < end && r->count < WORDS_MAX) {
        while (at < end && (*at == ' ' || *at == '\t' || *at == '\r')) at++;
        const char *start = at;
        while (at < end && *at != ' ' && *at != '\t' && *at != '\r') at++;
        if (at > start) r->words[r->count++] = (word){start, (size_t)(at - start)};
    }
}

/* A number in decimal, or in hexadecimal behind 0x; `wanted` says what is missing otherwise. */
static uint64_t read_number(const reading *r, size_t index, const char *wanted)
{
    char text[32];
    char *end;
    if (index >= r->count || r->words[index].length >= sizeof text) refuse_line(r, wanted);
    memcpy(text, r->words[index].at, r->words[index].length);
    text[r->words[index].length] = '\0';
    const uint64_t value = strtoull(text, &end, strncmp(text, "0x", 2) == 0 ? 16 : 10);
    if (*end != '\0' || end == text || text[0] == '-') refuse_line(r, wanted);
    return value;
}

static uint8_t read_align_shift(const reading *r, size_t index)
{
    const uint64_t align = read_number(r, index, "an alignment");
    if (align == 0 || (align & (align - 1)) != 0) refuse_line(r, "a power of two as alignment");
    return (uint8_t)__builtin_ctzll(align);
}

static uint64_t size_of(const reading *r, size_t index)
{
    const uint64_t size = read_number(r, index, "a size in bytes");
    if (size > HZ_TRACE_SIZE_MAX) refuse_line(r, "a size below 2^48");
    return size;
}

/* Threads are numbered as they are met, so that a large id is as good as a small one. */
static uint32_t read_thread(reading *r, size_t index)
{
    const uint64_t number = read_number(r, index, "a thread's number");
    if (number >= TEXT_THREADS_MAX) refuse_line(r, "a thread's number below a million");
    uint64_t found = hz_lives_find(&r->threads, number + 1);
    if (found == HZ_NO_STEP) {
        found = r->thread_count++;
        hz_lives_put(&r->threads, number + 1, found);
    }
    return (uint32_t)found;
}

/* Blocks of plain text have numbers; any number is as good an address as another, but not 0. */
static uint64_t block_of(const reading *r, size_t index)
{
    const uint64_t number = read_number(r, index, "a block's number");
    if (number >= UINT64_MAX / HZ_ADDRESS_UNIT) refuse_line(r, "a block's number below 2^60 - 1");
    return (number + 1) * HZ_ADDRESS_UNIT;
}

/* ---- calls ---------------------------------------------------------------------------------- */

/* THREAD NS KIND and what belongs to the kind. */
static void read_line(reading *r)
{
    if (r->words[0].at[0] == '#') return;
    if (r->count < 4) refuse_line(r, "a thread, a time in ns, an operation and its block");
    const hz_trace_kind kind = hz_kind_named(r->words[2].at, r->words[2].length);
    if (kind == 0) refuse_line(r, "an operation such as malloc, free or spawn in the third place");
    hz_call call = {.kind = (uint8_t)kind};
    call.thread = read_thread(r, 0);
    call.time = read_number(r, 1, "a time in ns");
    if (call.time > 0) r->has_times = true;
    if (call.time < r->time) refuse_line(r, "times that do not go back");
    r->time = call.time;
    if (hz_trace_is_of_thread(kind)) {
        call.size = read_thread(r, 3);
    } else {
        call.address = block_of(r, 3);
        if (!hz_trace_ends(kind)) call.size = size_of(r, 4);
        if (hz_trace_gives(kind) && r->count > 5) call.align_shift = read_align_shift(r, 5);
    }
    hz_resolve_call(r->resolver, &call);
}

/* ---- files ---------------------------------------------------------------------------------- */

/* Where the line ends that begins at `at`. A file that has no lines is not read to its end. */
static const char *end_of_line(const reading *r, const char *at, const char *stop)
{
    const size_t left = (size_t)(stop - at);
    const size_t most = left < LINE_MAX_BYTES ? left : LINE_MAX_BYTES;
    const char *newline = memchr(at, '\n', most);
    if (newline == NULL && left > most) refuse_line(r, "a line of at most 64 KiB");
    return newline != NULL ? newline : stop;
}

double hz_plain_read(const char *path, const hz_file_bytes *file, hz_resolver *resolver)
{
    reading r = {.path = path, .resolver = resolver};
    const char *at = (const char *)file->bytes;
    const char *stop = at + file->size;
    hz_lives_make(&r.threads);
    while (at < stop) {
        r.line++;
        const char *line_end = end_of_line(&r, at, stop);
        split(&r, at, line_end);
        at = line_end < stop ? line_end + 1 : stop;
        if (r.count > 0) read_line(&r);
    }
    hz_lives_drop(&r.threads);
    hz_resolver_finish(resolver);
    return r.has_times ? 1.0 : 0.0;
}
