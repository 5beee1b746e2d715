/*
 * A program with phases, for the governor: in a burst it does a quarter of the work that it could,
 * in a steady phase less, and while it is idle next to nothing. Requests allocate blocks and free
 * them; a part of them stays for the phase.
 *
 *     phases SECONDS SEED FILE
 *
 * FILE always holds the number of requests since the start. At the end it prints, for each phase,
 * seconds, requests, CPU seconds and the mean of its resident memory in MiB.
 */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PHASES = 3, SLOTS = 32768, BLOCKS = 24, NS_PER_S = 1000000000, SLICE_NS = 20000000 };

typedef struct phase {
    const char *name;
    double mean_s;
    int64_t rate; /* requests a second */
    size_t kept;  /* slots in use, of SLOTS */
    size_t bytes; /* the greatest block of a request */
    double seconds, cpu_s, mib_s;
    int64_t requests;
} phase;

static phase phases[PHASES] = {
    {.name = "burst", .mean_s = 8, .rate = 12000, .kept = SLOTS, .bytes = 262144},
    {.name = "steady", .mean_s = 12, .rate = 2000, .kept = SLOTS / 32, .bytes = 131072},
    {.name = "idle", .mean_s = 16, .rate = 4, .kept = SLOTS / 128, .bytes = 16384},
};

static uint64_t state;

static uint64_t draw(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static double share(void)
{
    return (double)(draw() >> 11) / 9007199254740992.0;
}

static int64_t clock_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * NS_PER_S + now.tv_nsec;
}

static double resident_mib(void)
{
    long pages = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file == NULL) return 0.0;
    if (fscanf(file, "%ld %ld", &pages, &resident) != 2) resident = 0;
    fclose(file);
    return (double)resident * (double)sysconf(_SC_PAGESIZE) / 1048576.0;
}

static void *slots[SLOTS];

/* A request: blocks of many sizes, each written; one of them takes the place of an older one. */
static void serve(const phase *now)
{
    void *blocks[BLOCKS];
    for (size_t i = 0; i < BLOCKS; i++) {
        const size_t bytes = 64 + (size_t)(share() * share() * share() * (double)now->bytes);
        blocks[i] = malloc(bytes);
        if (blocks[i] == NULL) abort();
        memset(blocks[i], (int)i, bytes);
    }
    const size_t slot = draw() % now->kept;
    free(slots[slot]);
    slots[slot] = blocks[0];
    for (size_t i = 1; i < BLOCKS; i++) free(blocks[i]);
}

static void drop_beyond(size_t kept)
{
    for (size_t i = kept; i < SLOTS; i++) {
        free(slots[i]);
        slots[i] = NULL;
    }
}

static void tell(const char *path, int64_t requests)
{
    FILE *file = fopen(path, "w");
    if (file == NULL) return;
    fprintf(file, "%" PRId64 "\n", requests);
    fclose(file);
}

/* Works for `seconds`; returns the requests since the start. */
static int64_t work(phase *now, double seconds, const char *path, int64_t requests)
{
    const int64_t began = clock_ns(CLOCK_MONOTONIC), cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    int64_t at = began, done = 0;
    drop_beyond(now->kept);
    while (at < began + (int64_t)(seconds * NS_PER_S)) {
        const int64_t slice_ends = at + SLICE_NS;
        const int64_t due = (int64_t)((double)(slice_ends - began) / NS_PER_S * (double)now->rate);
        while (done < due && clock_ns(CLOCK_MONOTONIC) < slice_ends) {
            serve(now);
            done++;
        }
        const int64_t left = slice_ends - clock_ns(CLOCK_MONOTONIC);
        if (left > 0) usleep((useconds_t)(left / 1000));
        now->mib_s += resident_mib() * (double)(clock_ns(CLOCK_MONOTONIC) - at) / NS_PER_S;
        at = clock_ns(CLOCK_MONOTONIC);
        tell(path, requests + done);
    }
    now->seconds += (double)(at - began) / NS_PER_S;
    now->cpu_s += (double)(clock_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu) / NS_PER_S;
    now->requests += done;
    return requests + done;
}

int main(int count, char **words)
{
    if (count != 4) return 2;
    double left = strtod(words[1], NULL);
    int64_t requests = 0;
    state = strtoull(words[2], NULL, 10) * 2654435761U + 88172645463325252U;
    uint64_t plan = state; /* phases are the same, whatever a burst has time for */
    for (size_t last = 1; left > 0.0;) {
        const uint64_t work_state = state;
        state = plan;
        last = (last + 1 + draw() % (PHASES - 1)) % PHASES;
        double seconds = 4.0 + share() * 2.0 * (phases[last].mean_s - 4.0);
        plan = state;
        state = work_state;
        if (seconds > left) seconds = left;
        requests = work(&phases[last], seconds, words[3], requests);
        left -= seconds;
    }
    for (size_t i = 0; i < PHASES; i++) {
        const phase *now = &phases[i];
        printf("%s %.2f %" PRId64 " %.3f %.1f\n", now->name, now->seconds, now->requests,
               now->cpu_s, now->seconds > 0.0 ? now->mib_s / now->seconds : 0.0);
    }
    return 0;
}
