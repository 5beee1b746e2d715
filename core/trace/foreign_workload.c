/*
 * Workloads of trace_run, the replay of glibc's malloc branch: see foreign.h. The file is bytes: a
 * list of threads first, then for each thread a list of operations with whole numbers behind them,
 * seven bits a byte, high ones first. Pointers have numbers. Where threads depend on each other
 * there are pairs of marks, so the threads are run here side by side.
 */
#include "foreign.h"

#include <stdlib.h>
#include <string.h>

#include "arguments.h"

enum { THREADS_MAX = 1 << 16, NOPS_MAX = 1 << 20 };

/* The first byte of each operation. */
enum {
    CODE_NOP,
    CODE_DONE,
    CODE_MALLOC,
    CODE_CALLOC,
    CODE_REALLOC,
    CODE_FREE,
    CODE_SET_MARK,
    CODE_AWAIT_MARK,
    CODE_POINTERS,
    CODE_MARKS,
    CODE_THREADS,
    CODE_THREAD,
    CODE_MEMALIGN,
    CODE_VALLOC,
    CODE_PVALLOC,
    CODE_POSIX_MEMALIGN,
};

typedef struct workload {
    const char *path; /* for messages */
    const hz_file_bytes *file;
    hz_resolver *resolver; /* gets the calls */
    size_t *starts;        /* where the next operation of each thread stands; 0: it has ended */
    uint32_t thread_count;
    unsigned char *marks; /* which are set */
    uint64_t mark_count;
    uint64_t run_bytes; /* of operations that were run: each stands in the file once */
} workload;

static _Noreturn void refuse_byte(const workload *w, size_t at, const char *what)
{
    hz_refuse("%s, byte %zu: %s", w->path, at, what);
}

static uint64_t read_varint(const workload *w, size_t *at)
{
    for (uint64_t value = 0; *at < w->file->size; value <<= 7) {
        const unsigned char byte = w->file->bytes[(*at)++];
        value |= byte & 0x7f;
        if ((byte & 0x80) == 0) return value;
        if (value >> 57 != 0) refuse_byte(w, *at, "a number above 2^64");
    }
    refuse_byte(w, *at, "the file ends in the middle of a number");
}

/* Where the next operation stands. A file that has none is not read to its end. */
static size_t skip_nops(const workload *w, size_t at)
{
    const size_t start = at;
    while (at < w->file->size && w->file->bytes[at] == CODE_NOP)
        if (++at - start > NOPS_MAX) refuse_byte(w, at, "more than a million empty operations");
    return at;
}

static void read_marks(workload *w, size_t *at)
{
    w->mark_count = read_varint(w, at) + 1;
    if (w->marks != NULL || w->mark_count - 1 > w->file->size)
        refuse_byte(w, *at, "more marks than there can be");
    w->marks = calloc(w->mark_count, 1);
    if (w->marks == NULL) hz_fail("no memory for %llu marks", (unsigned long long)w->mark_count);
}

static void read_head(workload *w)
{
    for (size_t at = 0; (at = skip_nops(w, at)) < w->file->size;) {
        switch (w->file->bytes[at++]) {
        case CODE_DONE:
            return;
        case CODE_POINTERS:
        case CODE_THREADS:
            (void)read_varint(w, &at);
            break;
        case CODE_MARKS:
            read_marks(w, &at);
            break;
        case CODE_THREAD:
            if (w->thread_count == THREADS_MAX)
                refuse_byte(w, at, "more threads than there can be");
            w->starts[w->thread_count] = read_varint(w, &at);
            if (w->starts[w->thread_count++] >= w->file->size)
                refuse_byte(w, at, "a thread that starts behind the end of the file");
            break;
        default:
            refuse_byte(w, at - 1, "no operation of a workload of trace_run");
        }
    }
}

static unsigned char *mark_of(const workload *w, size_t at, uint64_t mark)
{
    if (mark >= w->mark_count || w->marks == NULL) refuse_byte(w, at, "a mark that there is not");
    return &w->marks[mark];
}

static void workload_moves(const workload *w, hz_call *call, uint64_t old)
{
    hz_call from = *call;
    from.address = old;
    if (old == 0) {
        call->kind = HZ_TRACE_MALLOC;
        if (call->address != 0) hz_resolve_give(w->resolver, call);
        return;
    }
    hz_resolve_moving(w->resolver, &from);
    if (call->address != 0) hz_resolve_moved(w->resolver, call);
}

/* An operation with pointers; `at` stands behind its first byte. */
static void run_call(const workload *w, unsigned char code, hz_call *call, size_t *at)
{
    static const uint8_t kinds[] = {
        [CODE_MALLOC] = HZ_TRACE_MALLOC,     [CODE_CALLOC] = HZ_TRACE_CALLOC,
        [CODE_REALLOC] = HZ_TRACE_REALLOC,   [CODE_FREE] = HZ_TRACE_FREE,
        [CODE_MEMALIGN] = HZ_TRACE_MEMALIGN, [CODE_VALLOC] = HZ_TRACE_VALLOC,
        [CODE_PVALLOC] = HZ_TRACE_PVALLOC,   [CODE_POSIX_MEMALIGN] = HZ_TRACE_POSIX_MEMALIGN,
    };
    call->kind = code < sizeof kinds ? kinds[code] : 0;
    if (call->kind == 0) refuse_byte(w, *at - 1, "no operation of a workload of trace_run");
    call->address = read_varint(w, at) * HZ_ADDRESS_UNIT;
    if (code == CODE_FREE) {
        if (call->address != 0) hz_resolve_end(w->resolver, call);
        return;
    }
    const bool is_aligned = code == CODE_MEMALIGN || code == CODE_POSIX_MEMALIGN;
    const uint64_t second = is_aligned || code == CODE_REALLOC ? read_varint(w, at) : 0;
    call->size = read_varint(w, at);
    if (call->size > HZ_TRACE_SIZE_MAX) refuse_byte(w, *at, "a size above 2^48");
    if (is_aligned && second > 1) call->align_shift = (uint8_t)(63 - __builtin_clzll(second));
    if (code == CODE_REALLOC)
        workload_moves(w, call, second * HZ_ADDRESS_UNIT);
    else if (call->address != 0)
        hz_resolve_give(w->resolver, call);
}

/* Runs a thread until it ends or has to wait; returns whether it did anything. */
static bool run_thread(workload *w, uint32_t thread)
{
    const size_t start = w->starts[thread];
    size_t at = start;
    for (size_t from = at; (at = skip_nops(w, at)) < w->file->size; from = at) {
        const size_t here = at;
        const unsigned char code = w->file->bytes[at++];
        hz_call call = {.thread = thread};
        if (code == CODE_DONE) {
            w->starts[thread] = 0;
            return true;
        }
        if (code == CODE_SET_MARK) {
            *mark_of(w, here, read_varint(w, &at)) = 1;
        } else if (code == CODE_AWAIT_MARK) {
            if (*mark_of(w, here, read_varint(w, &at)) == 0) {
                w->starts[thread] = here;
                return here != start;
            }
        } else {
            run_call(w, code, &call, &at);
        }
        w->run_bytes += at - from;
        if (w->run_bytes > w->file->size)
            refuse_byte(w, here, "an operation that several threads have");
    }
    refuse_byte(w, at, "the file ends in the middle of a thread");
}

void hz_read_workload(const char *path, const hz_file_bytes *file, hz_resolver *resolver)
{
    workload w = {.path = path, .file = file, .resolver = resolver};
    w.starts = calloc(THREADS_MAX, sizeof *w.starts);
    if (w.starts == NULL) hz_fail("no memory for a workload");
    read_head(&w);
    for (bool goes_on = true; goes_on;) {
        goes_on = false;
        for (uint32_t i = 0; i < w.thread_count; i++)
            if (w.starts[i] != 0 && run_thread(&w, i)) goes_on = true;
    }
    for (uint32_t i = 0; i < w.thread_count; i++)
        if (w.starts[i] != 0)
            refuse_byte(&w, w.starts[i], "a thread waits for a mark that no other thread sets");
    free(w.starts);
    free(w.marks);
}
