/*
 * The ledger: how often each lock of hz is taken, how long it is held and waited for, which system
 * calls are made meanwhile, and how long the slow paths take.
 *
 * A record belongs to one lock, found by its address. It is written only while that lock is held
 * (the misses are atomic), so the notes of several threads need no lock of their own. A hold
 * counts from the moment at which its record was found: finding it is the ledger's own cost.
 *
 * hz-bench calls hz_ledger_window at both ends of its counted window; what came before is
 * subtracted. A program that does not call it gets the whole of its life. The file is HZ_LEDGER.
 */
#include "ledger.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "../src/internal.h"
#include "../src/os.h"
#include "../src/text.h"
#include "delays.h"
#include "wraps.h"

enum {
    RECORDS = 1 << 14, /* 64 shards have 64 x 127 locks */
    DEEPEST = 8,       /* locks that a thread may hold at once */
    TEXT_BYTES = 4 << 20,
    PAUSE_NS = 100000, /* a longer hold is one whose thread did not run, or that faulted */
};

/* What is known of one lock. */
typedef struct record {
    const hz_lock *_Atomic lock;       /* NULL: this record is unused */
    const char *name;                  /* where and how it was first taken */
    uint64_t contended;                /* times that a thread had to wait */
    uint64_t waited_ticks;             /* how long all of them together */
    _Atomic uint64_t misses;           /* times that it was found held, waited for or not */
    uint64_t holds_with_calls;         /* holds with a system call inside */
    uint64_t calls[HZ_LEDGER_SYSTEMS]; /* system calls while it was held */
    hz_ledger_times held;              /* the holds */
} record;

/* A lock that the calling thread holds. */
typedef struct hold {
    record *of;
    uint64_t since;
    bool has_called; /* whether a system call was made under it */
} hold;

/* All that is counted; `before` is the same at the start of the window. */
typedef struct state {
    record records[RECORDS];
    hz_ledger_times systems[HZ_LEDGER_SYSTEMS];
    hz_ledger_times paths[HZ_LEDGER_PATHS];
    uint64_t ticks, ns; /* when it was read */
} state;

static state now, before;
static bool is_written;

static _Thread_local hold holds[DEEPEST] __attribute__((tls_model("initial-exec")));
static _Thread_local unsigned depth __attribute__((tls_model("initial-exec")));

uint64_t hz_ledger_ticks(void)
{
#ifdef __x86_64__
    return __builtin_ia32_rdtsc();
#else
    return hz_os_now_ns();
#endif
}

/* ---- times ---------------------------------------------------------------------------------- */

static unsigned bucket_for(uint64_t ticks)
{
    if (ticks < 4) return (unsigned)ticks;
    const unsigned log2 = 63u - (unsigned)__builtin_clzll(ticks);
    const unsigned bucket = 4 * log2 + (unsigned)(ticks >> (log2 - 2) & 3);
    return bucket < HZ_LEDGER_BUCKETS ? bucket : HZ_LEDGER_BUCKETS - 1;
}

/* The least time that falls into the next bucket. */
static uint64_t bucket_above(unsigned bucket)
{
    const unsigned next = bucket + 1;
    return next < 8 ? next : (uint64_t)(4 + next % 4) << (next / 4 - 2);
}

static void times_add(hz_ledger_times *times, uint64_t ticks)
{
    hz_atomic_add(&times->count, 1);
    hz_atomic_add(&times->ticks, ticks);
    hz_atomic_add(&times->buckets[bucket_for(ticks)], 1);
}

/* The same where the caller is the only writer. */
static void times_add_alone(hz_ledger_times *times, uint64_t ticks)
{
    _Atomic uint32_t *bucket = &times->buckets[bucket_for(ticks)];
    hz_atomic_poke(&times->count, hz_atomic_peek(&times->count) + 1);
    hz_atomic_poke(&times->ticks, hz_atomic_peek(&times->ticks) + ticks);
    hz_atomic_poke(bucket, hz_atomic_peek(bucket) + 1);
}

/* ---- noting --------------------------------------------------------------------------------- */

static record *record_of(const hz_lock *lock, const char *name)
{
    size_t at = (uintptr_t)lock / sizeof *lock * UINT64_C(0x9e3779b97f4a7c15) >> 50;
    for (size_t i = 0; i < RECORDS; i++, at = (at + 1) % RECORDS) {
        const hz_lock *found = hz_atomic_get(&now.records[at].lock);
        if (found == lock) return &now.records[at];
        if (found != NULL) continue;
        if (hz_atomic_replace(&now.records[at].lock, &found, lock)) now.records[at].name = name;
        if (hz_atomic_get(&now.records[at].lock) == lock) return &now.records[at];
    }
    abort(); /* more locks than hz can have */
}
_Static_assert(RECORDS == 1 << (64 - 50), "the shift leaves the number of a record");

void hz_ledger_missed(const hz_lock *lock, const char *name)
{
    hz_atomic_add(&record_of(lock, name)->misses, 1);
}

void hz_ledger_taken(const hz_lock *lock, const char *name, uint64_t since)
{
    record *of = record_of(lock, name);
    const uint64_t at = hz_ledger_ticks();
    if (since != 0) {
        of->contended++;
        of->waited_ticks += at - since;
    }
    if (depth == DEEPEST) abort(); /* hz never nests that deep */
    holds[depth++] = (hold){of, at, false};
    hz_ledger_delay_hold();
}

void hz_ledger_releases(const hz_lock *lock)
{
    const uint64_t at = hz_ledger_ticks();
    unsigned i = depth;
    while (i > 0 && hz_atomic_peek(&holds[i - 1].of->lock) != lock) i--;
    if (i == 0) return; /* it was taken before a fork */
    const hold held = holds[i - 1];
    times_add_alone(&held.of->held, at - held.since);
    if (held.has_called) held.of->holds_with_calls++;
    memmove(&holds[i - 1], &holds[i], (depth - i) * sizeof holds[0]);
    depth--;
}

void hz_ledger_called(hz_ledger_system system, uint64_t since)
{
    hz_ledger_delay_call();
    times_add(&now.systems[system], hz_ledger_ticks() - since);
    for (unsigned i = 0; i < depth; i++) {
        holds[i].of->calls[system]++;
        holds[i].has_called = true;
    }
}

void hz_ledger_passed(hz_ledger_path path, uint64_t since)
{
    times_add(&now.paths[path], hz_ledger_ticks() - since);
}

/* ---- the window ----------------------------------------------------------------------------- */

static void read_clocks(state *at)
{
    at->ticks = hz_ledger_ticks();
    at->ns = hz_os_now_ns();
}

static void window_begins(void)
{
    for (size_t i = 0; i < RECORDS; i++)
        if (hz_atomic_get(&now.records[i].lock) != NULL) before.records[i] = now.records[i];
    memcpy(before.systems, now.systems, sizeof now.systems);
    memcpy(before.paths, now.paths, sizeof now.paths);
    read_clocks(&before);
}

static hz_ledger_times times_within(const hz_ledger_times *from, const hz_ledger_times *to)
{
    hz_ledger_times within = {.count = to->count - from->count, .ticks = to->ticks - from->ticks};
    for (unsigned i = 0; i < HZ_LEDGER_BUCKETS; i++)
        within.buckets[i] = to->buckets[i] - from->buckets[i];
    return within;
}

/* ---- the text ------------------------------------------------------------------------------- */

static double ns_per_tick;

/* The bucket of the time that a share of all does not exceed. */
static double percentile_ns(const hz_ledger_times *times, double share)
{
    uint64_t seen = 0;
    for (unsigned i = 0; i < HZ_LEDGER_BUCKETS; i++) {
        seen += times->buckets[i];
        if ((double)seen >= share * (double)times->count && seen > 0)
            return (double)bucket_above(i) * ns_per_tick;
    }
    return 0;
}

/* How many were shorter than PAUSE_NS, and how long they took: what the thread itself did. */
static void add_undisturbed(hz_text *text, const hz_ledger_times *times)
{
    double count = 0, ns = 0;
    for (unsigned i = 0; i < HZ_LEDGER_BUCKETS; i++) {
        const double above_ns = (double)bucket_above(i) * ns_per_tick;
        const double below_ns = i > 0 ? (double)bucket_above(i - 1) * ns_per_tick : 0;
        if (above_ns > PAUSE_NS) break;
        count += (double)times->buckets[i];
        ns += (double)times->buckets[i] * (above_ns + below_ns) / 2;
    }
    hz_text_add(text, ",\"undisturbed\":%.0f,\"undisturbed_ns\":%.0f", count, ns);
}

static void add_times(hz_text *text, const hz_ledger_times *times)
{
    hz_text_add(text, "\"count\":%" PRIu64 ",\"ns\":%.0f", times->count,
                (double)times->ticks * ns_per_tick);
    hz_text_add(text, ",\"p50_ns\":%.0f,\"p99_ns\":%.0f,\"most_ns\":%.0f",
                percentile_ns(times, 0.5), percentile_ns(times, 0.99), percentile_ns(times, 1));
    add_undisturbed(text, times);
}

/* Which shard and class a lock belongs to, if it lies in one. */
static void add_place(hz_text *text, const hz_lock *lock)
{
    const size_t offset = (uintptr_t)lock - (uintptr_t)hz_shards;
    if (hz_shards == NULL || offset >= hz_map.shards * sizeof(hz_shard)) return;
    const size_t within = offset % sizeof(hz_shard);
    hz_text_add(text, ",\"shard\":%zu", offset / sizeof(hz_shard));
    if (within < offsetof(hz_shard, bins))
        hz_text_add(text, ",\"class\":%zu", within / sizeof(hz_depot));
    else if (within < offsetof(hz_shard, inbox))
        hz_text_add(text, ",\"class\":%zu", (within - offsetof(hz_shard, bins)) / sizeof(hz_bin));
}

static void add_calls(hz_text *text, const record *from, const record *to)
{
    const char *separator = "";
    hz_text_add(text, ",\"calls\":{");
    for (unsigned i = 0; i < HZ_LEDGER_SYSTEMS; i++) {
        if (to->calls[i] == from->calls[i]) continue;
        hz_text_add(text, "%s\"%s\":%" PRIu64, separator, hz_ledger_system_names[i],
                    to->calls[i] - from->calls[i]);
        separator = ",";
    }
    hz_text_add(text, "}}");
}

static void add_lock(hz_text *text, const record *from, const record *to)
{
    const char *slash = strrchr(to->name, '/');
    const hz_ledger_times held = times_within(&from->held, &to->held);
    const uint64_t contended = to->contended - from->contended;
    const uint64_t misses = hz_atomic_peek(&to->misses) - hz_atomic_peek(&from->misses);
    if (held.count == 0 && misses == 0) return;
    hz_text_add(text, "\n{\"name\":\"%s\"", slash != NULL ? slash + 1 : to->name);
    add_place(text, hz_atomic_peek(&to->lock));
    hz_text_add(text, ",\"contended\":%" PRIu64 ",\"in_vain\":%" PRIu64, contended,
                misses > contended ? misses - contended : 0);
    hz_text_add(text, ",\"waited_ns\":%.0f,\"with_calls\":%" PRIu64 ",",
                (double)(to->waited_ticks - from->waited_ticks) * ns_per_tick,
                to->holds_with_calls - from->holds_with_calls);
    add_times(text, &held);
    add_calls(text, from, to);
    hz_text_add(text, ",");
}

static void add_named_times(hz_text *text, const char *key, const char *const *names,
                            unsigned count, const hz_ledger_times *from, const hz_ledger_times *to)
{
    hz_text_add(text, "\"%s\":{", key);
    for (unsigned i = 0; i < count; i++) {
        const hz_ledger_times within = times_within(&from[i], &to[i]);
        hz_text_add(text, "%s\n\"%s\":{", i > 0 ? "," : "", names[i]);
        add_times(text, &within);
        hz_text_add(text, "}");
    }
    hz_text_add(text, "}");
}

/* What two readings of the clock cost: part of each time. */
static double clock_cost_ns(void)
{
    enum { TRIES = 1000 };
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < TRIES; i++) {
        const uint64_t since = hz_ledger_ticks(), ticks = hz_ledger_ticks() - since;
        if (ticks < least) least = ticks;
    }
    return (double)least * ns_per_tick;
}

static void text_fill(hz_text *text)
{
    hz_text_add(text, "{\"schema\":\"hz-ledger/1\",\"seconds\":%.6f,\"clock_ns\":%.1f,",
                (double)(now.ns - before.ns) * 1e-9, clock_cost_ns());
    hz_text_add(text, "\"delayed\":{\"calls\":%" PRIu64 ",\"holds\":%" PRIu64 "},",
                hz_ledger_delayed_calls(), hz_ledger_delayed_holds());
    hz_text_add(text, "\"shards\":%" PRIu32 ",\"nodes\":%" PRIu32 ",\"locks\":[", hz_map.shards,
                hz_map.nodes);
    for (size_t i = 0; i < RECORDS; i++)
        if (hz_atomic_get(&now.records[i].lock) != NULL)
            add_lock(text, &before.records[i], &now.records[i]);
    hz_text_add(text, "null],\n");
    add_named_times(text, "system_calls", hz_ledger_system_names, HZ_LEDGER_SYSTEMS, before.systems,
                    now.systems);
    hz_text_add(text, ",\n");
    add_named_times(text, "paths", hz_ledger_path_names, HZ_LEDGER_PATHS, before.paths, now.paths);
    hz_text_add(text, "}\n");
}

static void ledger_write(void)
{
    static char buffer[TEXT_BYTES];
    hz_text text = {buffer, sizeof buffer, 0};
    const char *path = getenv("HZ_LEDGER");
    if (path == NULL || is_written) return;
    is_written = true;
    read_clocks(&now);
    ns_per_tick = (double)(now.ns - before.ns) / (double)(now.ticks - before.ticks);
    text_fill(&text);
    static const char failed[] = "hz: HZ_LEDGER: the file cannot be written\n";
    if (text.length >= sizeof buffer || !hz_os_write_file(path, buffer, text.length))
        hz_os_write_stderr(failed, sizeof failed - 1);
}

__attribute__((visibility("default"))) void hz_ledger_window(bool begins)
{
    if (begins)
        window_begins();
    else
        ledger_write();
}

__attribute__((constructor)) static void ledger_begins(void)
{
    hz_ledger_delays_begin();
    read_clocks(&before);
}

__attribute__((destructor)) static void ledger_ends(void)
{
    ledger_write();
}
