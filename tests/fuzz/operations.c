/*
 * Operations on the heap, as the bytes say, against a shadow of it.
 *
 * The first byte is the number of threads less one (modulo 4); then each four bytes are an
 * operation: what, slot, and two bytes of size. The threads work at once, a batch of operations at
 * a time; which of them a slot belongs to changes with each batch, so that most blocks are resized
 * and freed by another thread than the one that allocated them. Which thread does what, and in
 * which order for a slot, depends on the bytes alone. Threads end with the input.
 */
#include "target.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "shadow.h"

enum { THREADS_MAX = 4, SLOTS = 64, BATCH = 32, RECORD = 4 };

typedef struct work {
    const uint8_t *records;
    size_t count;
    unsigned threads;
    pthread_barrier_t between; /* two batches */
} work;

typedef struct worker {
    work *shared;
    unsigned number;
} worker;

static shadow slots[SLOTS];
static uint64_t next_key[SLOTS]; /* so that a key depends on the bytes alone */

/* Small ones mostly: the two highest bits choose a unit. */
static size_t size_of(const uint8_t *record)
{
    const size_t number = ((size_t)record[2] << 8 | record[3]) & 0x3fff;
    static const size_t scale[] = {1, 4, 1, 64};
    const unsigned kind = record[2] >> 6;
    return kind == 0 ? number % 1100 : kind == 2 ? number % 70 : number * scale[kind];
}

static void allocate(shadow *slot, const uint8_t *record)
{
    const unsigned how = record[0] >> 4;
    size_t alignment = 16;
    slot->size = size_of(record);
    slot->key = ++next_key[slot - slots] * SLOTS + (uint64_t)(slot - slots);
    if (how < 3)
        slot->block = shadow_take_zeroed(slot->size);
    else if (how < 7)
        slot->block = shadow_take_aligned(record[0] * 257u + record[3], &alignment, slot->size);
    else if (how < 9)
        slot->block = realloc(NULL, slot->size);
    else
        slot->block = malloc(slot->size);
    require(slot->block != NULL, "no memory for %zu bytes: errno %d", slot->size, errno);
    require(((uintptr_t)slot->block & (alignment - 1)) == 0, "%zu bytes at %zu gave %p", slot->size,
            alignment, (void *)slot->block);
    require(malloc_usable_size(slot->block) >= slot->size, "usable %zu of %zu",
            malloc_usable_size(slot->block), slot->size);
    shadow_fill(slot);
}

static void release(shadow *slot)
{
    shadow_verify(slot, slot->size, "before free");
    free(slot->block);
    slot->block = NULL;
}

static void resize(shadow *slot, const uint8_t *record)
{
    const size_t size = size_of(record) + 1; /* realloc to 0 would free */
    const size_t kept = size < slot->size ? size : slot->size;
    shadow_verify(slot, slot->size, "before realloc");
    slot->block = realloc(slot->block, size);
    require(slot->block != NULL, "no memory to resize to %zu bytes", size);
    shadow_verify(slot, kept, "after realloc");
    slot->size = size;
    shadow_fill(slot);
}

static void operate(shadow *slot, const uint8_t *record)
{
    const unsigned what = record[0] & 15;
    if (what == 15 && record[2] < 16)
        (void)malloc_trim(0);
    else if (slot->block == NULL)
        allocate(slot, record);
    else if (what < 4)
        resize(slot, record);
    else if (what < 5)
        shadow_verify(slot, slot->size, "on the way");
    else
        release(slot);
}

static void *run(void *argument)
{
    const worker *self = argument;
    work *shared = self->shared;
    for (size_t first = 0, batch = 0; first < shared->count; first += BATCH, batch++) {
        const size_t end = first + BATCH < shared->count ? first + BATCH : shared->count;
        for (size_t i = first; i < end; i++) {
            const uint8_t *record = shared->records + i * RECORD;
            const unsigned slot = record[1] % SLOTS;
            if ((slot + batch) % shared->threads == self->number) operate(&slots[slot], record);
        }
        (void)pthread_barrier_wait(&shared->between);
    }
    return NULL;
}

static void require_all_apart(void)
{
    shadow live[SLOTS];
    size_t count = 0;
    for (size_t i = 0; i < SLOTS; i++)
        if (slots[i].block != NULL) live[count++] = slots[i];
    shadows_require_apart(live, count);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    pthread_t threads[THREADS_MAX];
    worker workers[THREADS_MAX];
    if (count < 1 + RECORD) return 0;
    work shared;
    shared.records = bytes + 1;
    shared.count = (count - 1) / RECORD;
    shared.threads = 1 + bytes[0] % THREADS_MAX;
    memset(next_key, 0, sizeof next_key);
    (void)pthread_barrier_init(&shared.between, NULL, shared.threads);
    for (unsigned t = 0; t < shared.threads; t++) {
        workers[t] = (worker){&shared, t};
        require(pthread_create(&threads[t], NULL, run, &workers[t]) == 0, "pthread_create failed");
    }
    for (unsigned t = 0; t < shared.threads; t++) (void)pthread_join(threads[t], NULL);
    (void)pthread_barrier_destroy(&shared.between);
    require_all_apart();
    for (size_t i = 0; i < SLOTS; i++)
        if (slots[i].block != NULL) release(&slots[i]);
    return 0;
}
