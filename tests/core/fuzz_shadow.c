/*
 * A fuzzer with several threads against a shadow of the heap.
 *
 * Each thread owns slots. A step allocates into a slot by one of seven entry points, resizes,
 * frees, or hands the block to another thread, which frees it or keeps it. Every block is filled
 * with a pattern of its own and read back before it changes hands, size or life: a block given out
 * twice, moved wrongly or written by the allocator is found. Between rounds all threads end, so
 * that blocks outlive the threads that made them; then the shadow is sorted by address and no two
 * live blocks may overlap. Nothing of the fuzzer itself lives on the heap under test.
 *
 * TEST_SEED, TEST_THREADS, TEST_ROUNDS and TEST_STEPS (per thread and round) change it.
 */
#include "check.h"
#include "shadow.h"

#include <pthread.h>
#include <string.h>

enum { THREADS_MAX = 32, SLOTS = 600, MAILBOX = 64 };
static const size_t live_bytes_max = 24u << 20; /* per thread */

typedef struct mailbox {
    pthread_mutex_t lock;
    size_t count;
    shadow parcels[MAILBOX];
} mailbox;

typedef struct worker {
    uint64_t state; /* of the generator */
    size_t live_bytes;
    shadow slots[SLOTS];
    mailbox inbox;
} worker;

static worker workers[THREADS_MAX];
static size_t thread_count;
static size_t steps;

/* ---- operations ----------------------------------------------------------------------------- */

static size_t random_size(uint64_t *state)
{
    const uint64_t draw = random_next(state);
    const unsigned kind = (unsigned)(draw & 0xff);
    const size_t bits = (size_t)(draw >> 8);
    if (kind < 150) return bits % 513;
    if (kind < 220) return bits % 8193;
    if (kind < 250) return bits % 131073;
    return bits % ((3u << 20) + 1);
}

static void allocate(worker *self, shadow *slot)
{
    shadow_take(slot, random_next(&self->state), random_size(&self->state));
    self->live_bytes += slot->size;
}

static void release(worker *self, shadow *slot)
{
    self->live_bytes -= slot->size;
    shadow_release(slot);
}

static void resize(worker *self, shadow *slot)
{
    const size_t size = random_size(&self->state) + 1; /* realloc to 0 would free */
    self->live_bytes += size - slot->size;
    shadow_resize(slot, size);
}

/* ---- hand-over ------------------------------------------------------------------------------ */

static void hand_over(worker *self, shadow *slot)
{
    worker *other = &workers[random_next(&self->state) % thread_count];
    (void)pthread_mutex_lock(&other->inbox.lock);
    const int fits = other->inbox.count < MAILBOX;
    if (fits) {
        self->live_bytes -= slot->size;
        other->inbox.parcels[other->inbox.count++] = *slot;
        slot->block = NULL;
    }
    (void)pthread_mutex_unlock(&other->inbox.lock);
    if (!fits) release(self, slot);
}

/* Empties the inbox: every block that finds an empty slot is kept half of the time, the others are
 * freed here. */
static void receive(worker *self)
{
    static _Thread_local shadow parcels[MAILBOX];
    (void)pthread_mutex_lock(&self->inbox.lock);
    const size_t count = self->inbox.count;
    memcpy(parcels, self->inbox.parcels, count * sizeof parcels[0]);
    self->inbox.count = 0;
    (void)pthread_mutex_unlock(&self->inbox.lock);
    for (size_t i = 0; i < count; i++) {
        shadow *slot = &self->slots[random_next(&self->state) % SLOTS];
        self->live_bytes += parcels[i].size;
        if (slot->block == NULL && i % 2 == 0)
            *slot = parcels[i];
        else
            release(self, &parcels[i]);
    }
}

static void step(worker *self)
{
    const uint64_t draw = random_next(&self->state);
    shadow *slot = &self->slots[(draw >> 8) % SLOTS];
    const unsigned choice = (unsigned)(draw & 0xff);
    if (slot->block == NULL) {
        if (self->live_bytes < live_bytes_max) allocate(self, slot);
    } else if (choice < 40) {
        resize(self, slot);
    } else if (choice < 130) {
        hand_over(self, slot);
    } else {
        release(self, slot);
    }
    if (choice % 16 == 0) receive(self);
}

static void *work(void *argument)
{
    worker *self = argument;
    for (size_t i = 0; i < steps; i++) step(self);
    return NULL;
}

/* ---- the shadow as a whole ------------------------------------------------------------------ */

static size_t gather(shadow *all, const shadow *from, size_t length)
{
    size_t count = 0;
    for (size_t i = 0; i < length; i++)
        if (from[i].block != NULL) all[count++] = from[i];
    return count;
}

static void require_all_apart(void)
{
    static shadow all[THREADS_MAX * (SLOTS + MAILBOX)];
    size_t count = 0;
    for (size_t t = 0; t < thread_count; t++) {
        count += gather(all + count, workers[t].slots, SLOTS);
        count += gather(all + count, workers[t].inbox.parcels, workers[t].inbox.count);
    }
    shadows_require_apart(all, count);
}

static void free_everything(void)
{
    for (size_t t = 0; t < thread_count; t++) {
        receive(&workers[t]);
        for (size_t i = 0; i < SLOTS; i++)
            if (workers[t].slots[i].block != NULL) release(&workers[t], &workers[t].slots[i]);
        require(workers[t].live_bytes == 0, "the fuzzer lost count: %zu bytes",
                workers[t].live_bytes);
    }
}

static void run_round(void)
{
    pthread_t threads[THREADS_MAX];
    for (size_t t = 0; t < thread_count; t++) threads[t] = thread_start(work, &workers[t]);
    for (size_t t = 0; t < thread_count; t++) (void)thread_end(threads[t]);
    require_all_apart();
}

static void the_heap_agrees_with_its_shadow(void)
{
    uint64_t seed = seed_chosen(20261121);
    const size_t rounds = number_chosen("TEST_ROUNDS", 5);
    thread_count = number_chosen("TEST_THREADS", 4);
    steps = number_chosen("TEST_STEPS", 20000);
    require(thread_count >= 1 && thread_count <= THREADS_MAX, "TEST_THREADS is 1 to %d",
            THREADS_MAX);
    for (size_t t = 0; t < thread_count; t++) {
        workers[t].state = random_next(&seed);
        (void)pthread_mutex_init(&workers[t].inbox.lock, NULL);
    }
    shadow_learn();
    for (size_t round = 0; round < rounds; round++) run_round();
    free_everything();
}

int main(void)
{
    return run_check_here("the heap agrees with its shadow", the_heap_agrees_with_its_shadow, 300);
}
