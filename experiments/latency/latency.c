/*
 * How long single calls of malloc and free take: latency SHAPE CALLS. Prints one JSON object.
 *
 * Every call is timed by the CPU's counter and goes into a histogram of 64 steps to a doubling. A
 * call during which the thread lost its CPU is left out: whenever a call, or the time between two
 * calls, is longer than SUSPECT_NS, the thread's count of involuntary switches is read again, and a
 * call that raised it does not count. Time that the thread waits of its own accord does.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum {
    STEPS = 64,
    BUCKETS = 64 * STEPS,
    SUSPECT_NS = 2000,
    CHURN_SLOTS = 20000,
    BURST_SLOTS = 4000,
    LIGHT_SLOTS = 64,
    LIGHT_ROUNDS = 100,
    PAUSE_NS = 1000000,
};

static uint64_t histogram[BUCKETS];
static uint64_t counted, left_out, left_to_do, last_end, suspect_ticks, state = 88172645463325252u;
static long switches_seen;

/* ---- time ----------------------------------------------------------------------------------- */

static uint64_t ticks(void)
{
    unsigned unused;
    return __builtin_ia32_rdtscp(&unused);
}

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static double ticks_per_ns(void)
{
    const double start_ns = now_ns();
    const uint64_t start = ticks();
    while (now_ns() - start_ns < 2e7) continue;
    return (double)(ticks() - start) / (now_ns() - start_ns);
}

/* ---- counting ------------------------------------------------------------------------------- */

static unsigned bucket_of(uint64_t value)
{
    if (value < STEPS) return (unsigned)value;
    const unsigned log2 = 63u - (unsigned)__builtin_clzll(value);
    return (log2 - 5) * STEPS + (unsigned)(value >> (log2 - 6) & (STEPS - 1));
}

static uint64_t bucket_end(unsigned bucket)
{
    if (bucket < STEPS) return bucket + 1;
    const unsigned log2 = bucket / STEPS + 5;
    return (STEPS + bucket % STEPS + 1ull) << (log2 - 6);
}

/* Whether the thread lost its CPU since it was asked last. */
static int was_switched(void)
{
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    const int is_more = usage.ru_nivcsw != switches_seen;
    switches_seen = usage.ru_nivcsw;
    return is_more;
}

static void note(uint64_t start, uint64_t end)
{
    const uint64_t took = end - start;
    left_to_do -= left_to_do > 0;
    if (took > suspect_ticks && was_switched()) {
        left_out++;
    } else {
        histogram[bucket_of(took)]++;
        counted++;
    }
    last_end = ticks();
}

static uint64_t call_begins(void)
{
    if (ticks() - last_end > suspect_ticks) (void)was_switched();
    return ticks();
}

static void *timed_malloc(size_t size)
{
    const uint64_t start = call_begins();
    char *block = malloc(size);
    const uint64_t end = ticks();
    note(start, end);
    for (size_t at = 0; at < size; at += 4096) block[at] = 1;
    return block;
}

static void timed_free(void *block)
{
    const uint64_t start = call_begins();
    free(block);
    const uint64_t end = ticks();
    note(start, end);
}

/* ---- shapes --------------------------------------------------------------------------------- */

static uint64_t draw(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

/* Between 16 bytes and `most`, a power of two; each doubling is as frequent as the others. */
static size_t some_size(unsigned log2_most)
{
    const unsigned log2 = 4 + (unsigned)(draw() % (log2_most - 4));
    return ((size_t)1 << log2) + draw() % ((size_t)1 << log2);
}

/* Blocks of many sizes, each freed after a random time. */
static void churn(void)
{
    static void *slots[CHURN_SLOTS];
    while (left_to_do > 0) {
        void **slot = &slots[draw() % CHURN_SLOTS];
        if (*slot != NULL) timed_free(*slot);
        *slot = timed_malloc(some_size(13));
    }
}

static void burst_once(unsigned log2_most)
{
    static void *slots[BURST_SLOTS];
    for (size_t i = 0; i < BURST_SLOTS; i++) slots[i] = timed_malloc(some_size(log2_most));
    for (size_t i = 0; i < BURST_SLOTS; i++) timed_free(slots[i]);
}

/* Everything is freed, and allocated anew. */
static void burst(void)
{
    while (left_to_do > 0) burst_once(18);
}

/* After each burst a light load with pauses, in which the allocator returns memory. */
static void idle(void)
{
    const struct timespec pause = {0, PAUSE_NS};
    void *light[LIGHT_SLOTS];
    while (left_to_do > 0) {
        for (int i = 0; i < 50; i++) burst_once(16);
        burst_once(18);
        for (int round = 0; round < LIGHT_ROUNDS; round++) {
            for (int i = 0; i < LIGHT_SLOTS; i++) light[i] = timed_malloc(some_size(16));
            for (int i = 0; i < LIGHT_SLOTS; i++) timed_free(light[i]);
            nanosleep(&pause, NULL);
        }
    }
}

/* ---- result --------------------------------------------------------------------------------- */

static double quantile_ns(double share, double per_ns)
{
    const double wanted = share * (double)counted;
    uint64_t below = 0;
    for (unsigned bucket = 0; bucket < BUCKETS; bucket++) {
        below += histogram[bucket];
        if ((double)below >= wanted && below > 0) return (double)bucket_end(bucket) / per_ns;
    }
    return 0;
}

static long minor_faults(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt;
}

int main(int argc, char **argv)
{
    const char *shape = argc == 3 ? argv[1] : "";
    void (*run)(void) = strcmp(shape, "churn") == 0   ? churn
                        : strcmp(shape, "burst") == 0 ? burst
                        : strcmp(shape, "idle") == 0  ? idle
                                                      : NULL;
    if (run == NULL) {
        fprintf(stderr, "usage: latency churn|burst|idle CALLS\n");
        return 2;
    }
    const double per_ns = ticks_per_ns();
    left_to_do = strtoull(argv[2], NULL, 10);
    suspect_ticks = (uint64_t)(SUSPECT_NS * per_ns);
    (void)was_switched();
    last_end = ticks();
    run();
    printf("{\"calls\": %llu, \"left_out\": %llu, \"median_ns\": %.0f, \"p9999_ns\": %.0f, "
           "\"p999999_ns\": %.0f, \"worst_ns\": %.0f, \"minor_faults\": %ld}\n",
           (unsigned long long)counted, (unsigned long long)left_out, quantile_ns(0.5, per_ns),
           quantile_ns(0.9999, per_ns), quantile_ns(0.999999, per_ns), quantile_ns(1, per_ns),
           minor_faults());
    return 0;
}
