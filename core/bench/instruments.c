/*
 * Times of the calls (--latency).
 *
 * Durations go into buckets of 1/16 of a power of two, so a percentile is exact to 6 %.
 */
#include <stdio.h>

#include "bench.h"

#define BUCKETS (64 * 16)

/* Times of one kind of call. */
typedef struct latency {
    uint64_t count;            /* calls */
    uint64_t max_ns;           /* slowest */
    uint32_t buckets[BUCKETS]; /* calls by duration */
} latency;

/* What such a run keeps for one player. */
struct hz_instruments {
    latency take; /* times of malloc and realloc */
    latency give; /* times of free */
};

enum { SUB_BUCKETS = 16, SUB_BITS = 4 };

hz_instruments *hz_instruments_new(void)
{
    return hz_harness_alloc(sizeof(hz_instruments));
}

/* --- times ----------------------------------------------------------------------------------- */

static size_t bucket_of(uint64_t ns)
{
    if (ns < SUB_BUCKETS) return (size_t)ns;
    const unsigned power = 63U - (unsigned)__builtin_clzll(ns);
    return (size_t)(power - SUB_BITS + 1) * SUB_BUCKETS +
           ((ns >> (power - SUB_BITS)) & (SUB_BUCKETS - 1));
}

/* The longest duration that falls into `bucket`. */
static uint64_t bucket_end(size_t bucket)
{
    if (bucket < SUB_BUCKETS) return bucket;
    const unsigned shift = (unsigned)(bucket / SUB_BUCKETS) - 1;
    return ((bucket % SUB_BUCKETS + SUB_BUCKETS + 1) << shift) - 1;
}

static void add_time(latency *times, int64_t elapsed_ns)
{
    const uint64_t ns = (uint64_t)elapsed_ns;
    times->count++;
    times->buckets[bucket_of(ns)]++;
    if (ns > times->max_ns) times->max_ns = ns;
}

/* The call has given a block. */
void hz_timer_take(hz_instruments *instruments, int64_t start_ns)
{
    add_time(&instruments->take, hz_clock_ns() - start_ns);
}

/* The call has freed one. */
void hz_timer_give(hz_instruments *instruments, int64_t start_ns)
{
    add_time(&instruments->give, hz_clock_ns() - start_ns);
}

/* malloc(size), or realloc(old, size) when there is an old block. */
void *hz_take_timed(hz_instruments *instruments, void *old, size_t size)
{
    const int64_t start_ns = hz_clock_ns();
    void *block = old == NULL ? malloc(size) : realloc(old, size);
    hz_timer_take(instruments, start_ns);
    return block;
}

void hz_free_timed(hz_instruments *instruments, void *block)
{
    const int64_t start_ns = hz_clock_ns();
    free(block);
    hz_timer_give(instruments, start_ns);
}

/* --- report ---------------------------------------------------------------------------------- */

static void add_latency(latency *sum, const latency *part)
{
    sum->count += part->count;
    if (part->max_ns > sum->max_ns) sum->max_ns = part->max_ns;
    for (size_t i = 0; i < BUCKETS; i++) sum->buckets[i] += part->buckets[i];
}

/* The duration that a share of `part` of 10,000 calls does not exceed. */
static uint64_t percentile(const latency *times, uint64_t part)
{
    const uint64_t wanted = (times->count * part + 9999) / 10000;
    uint64_t seen = 0;
    for (size_t i = 0; i < BUCKETS; i++) {
        seen += times->buckets[i];
        if (seen >= wanted && seen > 0)
            return bucket_end(i) < times->max_ns ? bucket_end(i) : times->max_ns;
    }
    return times->max_ns;
}

static void json_latency(hz_json *json, const char *key, const latency *times)
{
    hz_json_object(json, key);
    hz_json_int(json, "count", (int64_t)times->count);
    hz_json_int(json, "p50_ns", (int64_t)percentile(times, 5000));
    hz_json_int(json, "p99_ns", (int64_t)percentile(times, 9900));
    hz_json_int(json, "p999_ns", (int64_t)percentile(times, 9990));
    hz_json_int(json, "p9999_ns", (int64_t)percentile(times, 9999));
    hz_json_int(json, "max_ns", (int64_t)times->max_ns);
    hz_json_object_end(json);
}

/* Adds the times to the result. */
void hz_instruments_report(const hz_run *run, hz_json *json)
{
    if (!run->options->latency) return;
    hz_instruments *sum = hz_instruments_new();
    for (unsigned i = 0; i < run->threads; i++) {
        add_latency(&sum->take, &run->players[i].instruments->take);
        add_latency(&sum->give, &run->players[i].instruments->give);
    }
    hz_json_object(json, "latency");
    json_latency(json, "malloc", &sum->take);
    json_latency(json, "free", &sum->give);
    hz_json_object_end(json);
}
