/*
 * What little a program pays: blocks that it seldom asks for leave no memory behind that serves
 * nothing else, and a thread that only frees what sixteen others allocate hoards nothing.
 */
#include <malloc.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "check.h"

enum { KIB = 1024, KERNEL_PAGE = 4 * KIB, FILLING = 64 * KIB };

CHECK("the first long block of its class that is freed waits without its memory")
{
    unsigned char *block = memset(malloc(250 * KIB), 1, 250 * KIB);
    const size_t before = resident_bytes();
    free(block);
    require(resident_bytes() + 220 * KIB < before, "%zu bytes resident, then %zu", before,
            resident_bytes());
    require(malloc(250 * KIB) == block, "it is not the next block of its class");
}

/* Blocks that the first one's refill cut beside it lie on the same pages of the kernel. */
CHECK("the first block of a class touches no more pages than it lies on")
{
    for (size_t size = 1000; size < 30000; size += size / 3) {
        const uint64_t before = hz_counter("blocks_carved");
        const size_t bytes = malloc_usable_size(malloc(size));
        const uint64_t cut = hz_counter("blocks_carved") - before;
        require(cut <= (2 * bytes + KERNEL_PAGE - 1) / bytes, "%zu blocks of %zu bytes were cut",
                (size_t)cut, bytes);
    }
}

/* ---- huge pages ------------------------------------------------------------------------------ */

static void *filling[FILLING];

static size_t faults_so_far(void)
{
    struct rusage used;
    require(getrusage(RUSAGE_SELF, &used) == 0, "no rusage");
    return (size_t)used.ru_minflt;
}

PROGRAM("--grow")
{
    (void)memset(filling, 1, sizeof filling);
    const size_t before = resident_bytes(), faults = faults_so_far(), mappings = mapping_count();
    for (size_t i = 0; i < FILLING; i++) filling[i] = malloc(KIB);
    const size_t taken = faults_so_far() - faults;
    void *untouched = calloc(FILLING, 4 * KIB);
    const size_t grown = resident_bytes() - before;
    require(taken < FILLING * KIB / KERNEL_PAGE / 8, "%zu page faults", taken);
    require(mapping_count() <= mappings + 8, "%zu mappings more", mapping_count() - mappings);
    require(grown < FILLING * KIB / 7 * 8, "%zu bytes for %d blocks", grown, FILLING);
    for (size_t i = 0; i < FILLING; i++) free(filling[i]);
    free(untouched);
    (void)malloc_trim(0);
    const size_t left = resident_bytes() - before;
    require(left < 4 * KIB * KIB, "%zu bytes are still resident", left);
}

PROGRAM("--ask")
{
    for (size_t i = 0; i < FILLING; i += KIB) {
        filling[i] = malloc(100 * KIB);
        const uint64_t asked = hz_counter("huge_page_bytes");
        require(asked % (2 * KIB * KIB) == 0, "%zu bytes", (size_t)asked);
    }
}

CHECK("thp=on asks for whole huge pages")
{
    require_program("--ask", 0, "HZ_THP=on");
}

CHECK_IN(60, "thp=adaptive saves page faults at no memory and no mappings, and what is freed returns")
{
    require_program("--grow", 0, "HZ_THP=adaptive");
}

/* ---- a thread that only frees -----------------------------------------------------------------
 */

/*
 * Live are the bytes that the blocks in flight can hold: what is measured is hoarding, not the
 * rounding of sizes. TEST_LIVE_MIB is their bound, TEST_BLOCKS the number of blocks that pass, and
 * TEST_RATIO_PERCENT what may be resident at most (hoarders reach two to four times the live
 * bytes).
 */
enum { PRODUCERS = 16, QUEUE_MAX = 1 << 20, SOME = 256 };

static struct {
    pthread_mutex_t lock;
    pthread_cond_t filled, emptied;
    void *blocks[QUEUE_MAX];
    size_t first, count, bytes, bytes_max, sent, total;
} queue = {.lock = PTHREAD_MUTEX_INITIALIZER,
           .filled = PTHREAD_COND_INITIALIZER,
           .emptied = PTHREAD_COND_INITIALIZER};

static bool is_nearly_full(void)
{
    return queue.bytes * 10 >= queue.bytes_max * 9;
}

static void *produce(void *seed)
{
    uint64_t state = (uint64_t)(uintptr_t)seed;
    for (bool more = true; more;) {
        void *made = malloc(16 + random_next(&state) % 1008);
        const size_t size = malloc_usable_size(made);
        memset(made, 1, size);
        (void)pthread_mutex_lock(&queue.lock);
        while (queue.bytes + size > queue.bytes_max || queue.count == QUEUE_MAX)
            (void)pthread_cond_wait(&queue.emptied, &queue.lock);
        queue.blocks[(queue.first + queue.count++) % QUEUE_MAX] = made;
        queue.bytes += size;
        more = ++queue.sent < queue.total;
        if (is_nearly_full()) (void)pthread_cond_signal(&queue.filled);
        (void)pthread_mutex_unlock(&queue.lock);
    }
    return NULL;
}

/* Takes some blocks off the queue while it is nearly full; frees them outside the lock. */
static void consume_some(void)
{
    void *taken[SOME];
    (void)pthread_mutex_lock(&queue.lock);
    while (!is_nearly_full()) (void)pthread_cond_wait(&queue.filled, &queue.lock);
    for (size_t i = 0; i < SOME; i++, queue.count--) {
        taken[i] = queue.blocks[queue.first];
        queue.first = (queue.first + 1) % QUEUE_MAX;
        queue.bytes -= malloc_usable_size(taken[i]);
    }
    (void)pthread_cond_broadcast(&queue.emptied);
    (void)pthread_mutex_unlock(&queue.lock);
    for (size_t i = 0; i < SOME; i++) free(taken[i]);
}

static size_t most_resident;

/* Looks in the last half: the first is growing up. */
static void *consume(void *unused)
{
    for (size_t freed = 0, looked = 0; freed < queue.total * 9 / 10; freed += SOME) {
        consume_some();
        if (freed < queue.total / 2 || freed - looked < 20000) continue;
        const size_t resident = resident_bytes();
        most_resident = resident > most_resident ? resident : most_resident;
        looked = freed;
    }
    return unused;
}

/* The producers may wait for ever at last: the process ends with this check. */
CHECK_IN(120, "a thread that only frees hoards nothing")
{
    crowd producers;
    queue.bytes_max = number_chosen("TEST_LIVE_MIB", 64) << 20;
    queue.total = number_chosen("TEST_BLOCKS", 2000000);
    memset(queue.blocks, 0, sizeof queue.blocks);
    const size_t base = resident_bytes();
    const pthread_t consumer = thread_start(consume, NULL);
    crowd_start(&producers, PRODUCERS, produce);
    (void)thread_end(consumer);
    const double ratio = (double)(most_resident - base) / (double)queue.bytes_max;
    const double allowed = (double)number_chosen("TEST_RATIO_PERCENT", 120) / 100;
    printf("# at most %.3f of the live bytes were resident\n", ratio);
    require(ratio <= allowed, "%.3f of the live bytes were resident, %.2f may be", ratio, allowed);
}
