/*
 * Where a block seems to lie while a thread passes others on: a block that is in use lies nowhere,
 * or its contents could make hz take it for a free one.
 *
 * The depot of the class has room for one block. A thread gives all of its magazine up: one block
 * goes to the depot, and the thread stops at the lock of the bin, where the others are to go.
 */
#include "check.h"

#include <hz/hz.h>

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "internal.h"

enum { SIZE = 64, FEW = 32, MANY = 1 << 16 };

static uint32_t class_;
static pthread_barrier_t step; /* of both threads */

static void get(void **blocks, size_t count)
{
    for (size_t i = 0; i < count; i++) blocks[i] = filled_block(hz_malloc(SIZE), SIZE);
}

/* The depot is full when a block finds no room and goes on to its span; then one is taken out. */
static void leave_room_for_one(void)
{
    static void *blocks[MANY];
    void *out;
    size_t i = 0;
    get(blocks, MANY);
    for (bool is_full = false; i < MANY && !is_full; i++) {
        hz_seal(blocks[i], hz_map.keys[class_]);
        hz_depot_give(0, class_, &blocks[i], 1);
        is_full = !hz_depot_holds(0, class_, blocks[i]);
    }
    require(i < MANY, "the depot never ran full");
    require(hz_depot_take(0, class_, &out, 1, NULL) == 1, "the depot is empty");
}

static void *fill_and_give_up(void *unused)
{
    void *blocks[FEW];
    (void)unused;
    for (int turn = 0; turn < 100; turn++) {
        get(blocks, FEW);
        for (size_t i = 0; i < FEW; i++) hz_free(blocks[i]);
    }
    (void)pthread_barrier_wait(&step);
    (void)pthread_barrier_wait(&step);
    hz_magazine_flush_all(hz_heap_mine);
    return NULL;
}

CHECK_IN(30,
         "a block that came out of the depot lies in no magazine, though others follow it there")
{
    void *block;
    class_ = hz_class_of(SIZE);
    hz_lock *lock = &hz_shards[0].bins[class_].lock;
    (void)pthread_barrier_init(&step, NULL, 2);
    const pthread_t thread = thread_start(fill_and_give_up, NULL);
    (void)pthread_barrier_wait(&step);
    leave_room_for_one();
    hz_lock_take(lock);
    (void)pthread_barrier_wait(&step);
    while ((hz_atomic_peek(&lock->word) & HZ_LOCK_SLEEPERS) == 0) sched_yield();
    require(hz_depot_take(0, class_, &block, 1, NULL) == 1, "the depot is empty");
    for (const hz_heap *heap = hz_heap_first(); heap != NULL; heap = heap->next)
        require(!hz_magazine_holds(heap, class_, block), "it still lies in a magazine");
    hz_lock_release(lock);
    (void)thread_end(thread);
}
