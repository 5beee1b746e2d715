/*
 * Which cache lines the threads of a program take from each other: a simulation of their caches.
 *
 * In this build (libhz-lines.so) the compiler calls a function before each access to memory that
 * may be shared, as it does for ThreadSanitizer; here those functions write a log. At the end the
 * logs are merged as if all threads ran at once: all advance by one call of malloc or free, then
 * all by the next one. Each thread has a cache of its own, or that of a CPU. Caches are unlimited, so a
 * line leaves one only when a thread with another one writes to it. The program's own accesses are
 * seen if it is built the same way and linked to this library, as hz-bench-lines is.
 *
 *     HZ_LINES=FILE         where the result goes
 *     HZ_LINES_SKIP=N       calls of each thread before its log begins (default 100000)
 *     HZ_LINES_CALLS=N      calls that the log of each thread holds (default 20000)
 *     HZ_LINES_CPUS=N       CPUs with a cache that the threads share (default: each has its own)
 */
#include "lines.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "../src/atomic.h"
#include "variables.h"

enum {
    LANES = HZ_LINES_CACHES, /* threads whose accesses are noted: the first ones */
    NOTES_PER_CALL = 64, /* room for so many, on average */
};

/* A note is an access: its address, with bits for a write and an atomic access; or it is CALL. */
enum { CALL = 1, WRITE = 2, ATOMIC = 4, FLAGS = 7 };

/* The log of one thread. */
typedef struct lane {
    uint64_t *notes;  /* NULL until its first call after those that are skipped */
    size_t count;     /* notes in it */
    size_t room;      /* for how many */
    uint64_t skipped; /* calls before */
    uint64_t calls;   /* calls in the log */
} lane;

static lane lanes[LANES];
static _Atomic uint32_t lanes_used;
static uint64_t skip, most_calls;
static uint32_t cpus;
static _Atomic uint64_t all_calls; /* of all threads, those before and after the logs, too */
static const char *path;
static _Thread_local lane *mine __attribute__((tls_model("initial-exec")));
static _Thread_local bool has_none __attribute__((tls_model("initial-exec")));

/* The ends of this library in memory. */
extern const char __ehdr_start[] __attribute__((visibility("hidden")));
extern const char etext[] __attribute__((visibility("hidden")));

/* ---- the log -------------------------------------------------------------------------------- */

static lane *lane_mine(void)
{
    if (mine != NULL || has_none) return mine;
    const uint32_t number = hz_atomic_add(&lanes_used, 1);
    has_none = number >= LANES;
    if (!has_none) mine = &lanes[number];
    return mine;
}

static void note(uint64_t what)
{
    lane *to = mine;
    if (to == NULL || to->notes == NULL || to->count == to->room) return;
    if (to->count > 0 && to->notes[to->count - 1] == what && what != CALL) return;
    to->notes[to->count++] = what;
}

static bool lane_open(lane *to)
{
    to->room = most_calls * NOTES_PER_CALL;
    void *memory = mmap(NULL, to->room * sizeof *to->notes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory != MAP_FAILED) to->notes = memory;
    return to->notes != NULL;
}

static void call_begins(void)
{
    lane *to = path != NULL ? lane_mine() : NULL;
    if (to == NULL) return;
    (void)hz_atomic_add(&all_calls, 1);
    if (to->skipped < skip) {
        to->skipped++;
        return;
    }
    if (to->notes == NULL && !lane_open(to)) return;
    if (to->calls == most_calls) {
        to->room = to->count; /* full */
        return;
    }
    to->calls++;
    note(CALL);
}

static void note_access(const volatile void *address, size_t bytes, uint64_t flags)
{
    const uintptr_t first = (uintptr_t)address / 8, last = ((uintptr_t)address + bytes - 1) / 8;
    for (uintptr_t word = first; word <= last; word++) note((uint64_t)word * 8 | flags);
}

/* ---- what the compiler calls ---------------------------------------------------------------- */

#pragma GCC visibility push(default)

void __tsan_init(void);
void __tsan_func_entry(const void *caller);
void __tsan_func_exit(void);
void __tsan_atomic_thread_fence(int order);
void __tsan_read_range(const void *address, size_t bytes);
void __tsan_write_range(const void *address, size_t bytes);

void __tsan_init(void)
{
}

/* A function whose caller lies outside of this library is an entry point. */
void __tsan_func_entry(const void *caller)
{
    const uintptr_t at = (uintptr_t)caller;
    if (at < (uintptr_t)__ehdr_start || at >= (uintptr_t)etext) call_begins();
}

void __tsan_func_exit(void)
{
}

void __tsan_atomic_thread_fence(int order)
{
    (void)order;
    atomic_thread_fence(memory_order_seq_cst);
}

void __tsan_read_range(const void *address, size_t bytes)
{
    note_access(address, bytes, 0);
}

void __tsan_write_range(const void *address, size_t bytes)
{
    note_access(address, bytes, WRITE);
}

#define ACCESS(name, bytes, flags)                                                                 \
    void __tsan_##name(const void *address);                                                       \
    void __tsan_##name(const void *address)                                                        \
    {                                                                                              \
        note_access(address, bytes, flags);                                                        \
    }
#define ACCESSES(bytes)                                                                            \
    ACCESS(read##bytes, bytes, 0)                                                                  \
    ACCESS(write##bytes, bytes, WRITE)                                                             \
    ACCESS(unaligned_read##bytes, bytes, 0)                                                        \
    ACCESS(unaligned_write##bytes, bytes, WRITE)
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)

#define UPDATE(type, bits, operation)                                                              \
    type __tsan_atomic##bits##_##operation(_Atomic type *object, type value, int order);           \
    type __tsan_atomic##bits##_##operation(_Atomic type *object, type value, int order)            \
    {                                                                                              \
        (void)order;                                                                               \
        note_access(object, sizeof value, WRITE | ATOMIC);                                         \
        return atomic_##operation(object, value);                                                  \
    }
#define EXCHANGE_IF(type, bits, kind)                                                              \
    bool __tsan_atomic##bits##_compare_exchange_##kind(_Atomic type *object, type *expected,       \
                                                       type value, int order, int other);          \
    bool __tsan_atomic##bits##_compare_exchange_##kind(_Atomic type *object, type *expected,       \
                                                       type value, int order, int other)           \
    {                                                                                              \
        (void)order, (void)other;                                                                  \
        note_access(object, sizeof value, WRITE | ATOMIC);                                         \
        return atomic_compare_exchange_##kind(object, expected, value);                            \
    }
#define ATOMICS(type, bits)                                                                        \
    type __tsan_atomic##bits##_load(const _Atomic type *object, int order);                        \
    type __tsan_atomic##bits##_load(const _Atomic type *object, int order)                         \
    {                                                                                              \
        (void)order;                                                                               \
        note_access(object, sizeof(type), 0);                                                      \
        return atomic_load(object);                                                                \
    }                                                                                              \
    void __tsan_atomic##bits##_store(_Atomic type *object, type value, int order);                 \
    void __tsan_atomic##bits##_store(_Atomic type *object, type value, int order)                  \
    {                                                                                              \
        (void)order;                                                                               \
        note_access(object, sizeof value, WRITE);                                                  \
        atomic_store(object, value);                                                               \
    }                                                                                              \
    EXCHANGE_IF(type, bits, strong)                                                                \
    EXCHANGE_IF(type, bits, weak)                                                                  \
    UPDATE(type, bits, exchange)                                                                   \
    UPDATE(type, bits, fetch_add)                                                                  \
    UPDATE(type, bits, fetch_sub)                                                                  \
    UPDATE(type, bits, fetch_or)
ATOMICS(uint8_t, 8)
ATOMICS(uint16_t, 16)
ATOMICS(uint32_t, 32)
ATOMICS(uint64_t, 64)

/* memcpy and memset, which the compiler does not report: hz's are led here (lines.h). */
void *hz_lines_copy(void *to, const void *from, size_t bytes)
{
    if (bytes > 0) __tsan_read_range(from, bytes);
    if (bytes > 0) __tsan_write_range(to, bytes);
    return (memmove)(to, from, bytes);
}

void *hz_lines_set(void *to, int value, size_t bytes)
{
    if (bytes > 0) __tsan_write_range(to, bytes);
    return (memset)(to, value, bytes);
}

#pragma GCC visibility pop

/* ---- merging -------------------------------------------------------------------------------- */

/* Of two CPUs, threads have 0 1 1 0 0 1 1 0: so neighbours share one as often as not. */
static uint32_t cache_of(uint32_t lane_number)
{
    return cpus > 0 ? (lane_number + lane_number / cpus) % cpus : lane_number;
}

/* Plays one call of a lane, from note `at` on; returns where the next one begins. */
static size_t call_play(const lane *from, uint32_t cache, size_t at)
{
    if (at < from->count) at++; /* CALL */
    for (; at < from->count && from->notes[at] != CALL; at++) {
        const uint64_t flags = from->notes[at] & FLAGS;
        hz_caches_access(cache, from->notes[at] - flags, (flags & WRITE) != 0, flags == WRITE);
    }
    return at;
}

static uint64_t lanes_merge(uint32_t used)
{
    size_t at[LANES] = {0};
    uint64_t calls = 0;
    for (uint64_t round = 0; round < most_calls; round++) {
        for (uint32_t i = 0; i < used; i++) {
            const uint32_t number = (uint32_t)((i + round) % used);
            if (round >= lanes[number].calls) continue;
            at[number] = call_play(&lanes[number], cache_of(number), at[number]);
            calls++;
        }
    }
    return calls;
}

__attribute__((constructor)) static void lines_begin(void)
{
    skip = hz_ledger_number_of("HZ_LINES_SKIP", 100000);
    cpus = (uint32_t)hz_ledger_number_of("HZ_LINES_CPUS", 0);
    most_calls = hz_ledger_number_of("HZ_LINES_CALLS", 20000);
    path = getenv("HZ_LINES");
}

__attribute__((destructor)) static void lines_end(void)
{
    const char *to = path;
    const uint32_t started = hz_atomic_peek(&lanes_used);
    const uint32_t used = started < LANES ? started : LANES;
    uint32_t threads = 0;
    if (to == NULL) return;
    path = NULL; /* what follows is not noted */
    mine = NULL;
    has_none = true;
    const uint64_t calls = lanes_merge(used);
    for (uint32_t i = 0; i < used; i++) threads += lanes[i].calls > 0;
    hz_caches_write(to, threads, calls, hz_atomic_peek(&all_calls));
}
