/*
 * One thread only frees what sixteen others allocate: its cache must not hold the memory of all.
 *
 * Live are the bytes that the blocks in flight can hold: what is measured is hoarding, not the
 * rounding of sizes. TEST_LIVE_MIB is their bound, TEST_BLOCKS the number of blocks that pass, and
 * TEST_RATIO_PERCENT what may be resident at most (hoarders reach two to four times the live
 * bytes).
 */
#include "check.h"

#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PRODUCERS = 16, SIZE_MIN = 16, SIZE_MAX_BYTES = 1024, QUEUE_MAX = 1 << 20 };

typedef struct parcel {
    unsigned char *block;
    size_t size;
} parcel;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t filled;
    pthread_cond_t emptied;
    parcel parcels[QUEUE_MAX];
    size_t first;
    size_t count;
    size_t bytes;
    size_t bytes_max;
    size_t sent;
    size_t total;
} queue = {.lock = PTHREAD_MUTEX_INITIALIZER,
           .filled = PTHREAD_COND_INITIALIZER,
           .emptied = PTHREAD_COND_INITIALIZER};

static int send_parcel(parcel sent)
{
    (void)pthread_mutex_lock(&queue.lock);
    while (queue.bytes + sent.size > queue.bytes_max || queue.count == QUEUE_MAX)
        (void)pthread_cond_wait(&queue.emptied, &queue.lock);
    queue.parcels[(queue.first + queue.count++) % QUEUE_MAX] = sent;
    queue.bytes += sent.size;
    const int more = ++queue.sent < queue.total;
    if (queue.bytes * 10 >= queue.bytes_max * 9) (void)pthread_cond_signal(&queue.filled);
    (void)pthread_mutex_unlock(&queue.lock);
    return more;
}

static void *produce(void *argument)
{
    uint64_t state = (uint64_t)(uintptr_t)argument;
    int more = 1;
    while (more) {
        const size_t size = SIZE_MIN + random_next(&state) % (SIZE_MAX_BYTES - SIZE_MIN);
        parcel made = {malloc(size), 0};
        require(made.block != NULL, "no memory for %zu bytes", size);
        made.size = malloc_usable_size(made.block);
        memset(made.block, 1, made.size);
        more = send_parcel(made);
    }
    return NULL;
}

/* Takes some parcels off the queue while it is nearly full; frees them outside the lock. */
static size_t consume_some(void)
{
    enum { SOME = 256 };
    parcel taken[SOME];
    size_t count = 0;
    (void)pthread_mutex_lock(&queue.lock);
    while (queue.bytes * 10 < queue.bytes_max * 9)
        (void)pthread_cond_wait(&queue.filled, &queue.lock);
    for (; count < SOME; count++) {
        taken[count] = queue.parcels[queue.first];
        queue.first = (queue.first + 1) % QUEUE_MAX;
        queue.count--;
        queue.bytes -= taken[count].size;
    }
    (void)pthread_cond_broadcast(&queue.emptied);
    (void)pthread_mutex_unlock(&queue.lock);
    for (size_t i = 0; i < count; i++) free(taken[i].block);
    return count;
}

static size_t most_resident;

static void *consume(void *unused)
{
    for (size_t freed = 0, looked = 0; freed < queue.total * 9 / 10; freed += consume_some()) {
        if (freed > queue.total / 2 &&
            freed - looked > 20000) { /* the last half: the first is growing up */
            const size_t resident = resident_bytes();
            most_resident = resident > most_resident ? resident : most_resident;
            looked = freed;
        }
    }
    return unused;
}

CHECK_IN(120, "a thread that only frees hoards nothing")
{
    queue.bytes_max = number_chosen("TEST_LIVE_MIB", 64) << 20;
    queue.total = number_chosen("TEST_BLOCKS", 2000000);
    memset(queue.parcels, 0, sizeof queue.parcels);
    const size_t base = resident_bytes();
    const pthread_t consumer = thread_start(consume, NULL);
    for (size_t i = 0; i < PRODUCERS; i++) {
        (void)thread_start(produce, (void *)(uintptr_t)(i + 1));
    }
    (void)pthread_join(
        consumer, NULL); /* the producers may wait for ever now: the process ends with this check */
    const double ratio = (double)(most_resident - base) / (double)queue.bytes_max;
    const double allowed = (double)number_chosen("TEST_RATIO_PERCENT", 120) / 100;
    printf("# at most %.3f of the live bytes were resident\n", ratio);
    require(ratio <= allowed, "%.3f of the live bytes were resident, %.2f may be", ratio, allowed);
}
