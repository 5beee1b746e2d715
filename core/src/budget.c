/*
 * How much the magazines of a thread may hold. All magazines together have thread_cache_share of the
 * bytes of all blocks. Threads that are at work, which ran short in this epoch or in the one before,
 * share that equally: most threads of a large pool sleep, and need no part.
 *
 * A thread that sleeps keeps its magazines, as no other thread can take from them. So a long one is
 * charged to its thread until it shrinks or the thread ends, and what is charged to others is not
 * there to be shared; or a pool whose threads work in turn would fill all of them. Short ones are
 * free. But each thread has at least its part if all were at work.
 */
#include "internal.h"
#include "os.h"

#define LITTLE_BYTES ((size_t)2 << 20) /* a process with fewer bytes of blocks counts as this */

enum {
    SHORT_BYTES = 4096, /* a magazine of up to so many bytes is short */
    EPOCH_SHIFT = 7,    /* an epoch has 128 ms */
    EPOCH_MS = 1 << EPOCH_SHIFT,
    EPOCHS = 1 << 24, /* their numbers come again after that many: 24 days */
    LATE = 8,         /* a thread may see the clock so many epochs after another one */
    COUNT_BITS = 20,  /* for the threads of an epoch */
    COUNT_MOST = (1 << COUNT_BITS) - 1,
};

/* On a line of its own, as every growth reads it. */
static struct {
    HZ_ALIGNED_TO_LINE _Atomic uint64_t work; /* an epoch, how many threads ran short in the one
                                                 before, and how many so far in this one */
    _Atomic size_t charged;                   /* to all threads */
} budget;

static uint32_t before_of(uint64_t work)
{
    return (uint32_t)(work >> COUNT_BITS) & COUNT_MOST;
}

static uint32_t now_of(uint64_t work)
{
    return (uint32_t)work & COUNT_MOST;
}

/* With one more thread in `epoch`; the same if another thread has seen a later one. */
static uint64_t with_one_more(uint64_t work, uint32_t epoch)
{
    const uint32_t passed = (epoch - (uint32_t)(work >> 2 * COUNT_BITS)) % EPOCHS;
    const uint32_t now = passed == 0 ? now_of(work) : 0;
    const uint32_t before = passed == 0 ? before_of(work) : passed == 1 ? now_of(work) : 0;
    if (passed > EPOCHS - LATE) return work;
    return ((uint64_t)epoch << COUNT_BITS | before) << COUNT_BITS | (now + (now < COUNT_MOST));
}

/* Never under `full`: there the heap knows the thread's last block. */
static void note_node(hz_heap *heap)
{
    const bool is_away = hz_map.nodes > 1 && !hz_is_fenced() &&
                         hz_os_node() % hz_map.nodes != hz_node_of(heap->shard);
    heap->astray = is_away ? heap->astray + 1 : 0;
}

void hz_budget_note(hz_heap *heap, uint64_t now_ticks)
{
    if (heap->noted_ticks != 0 &&
        now_ticks - heap->noted_ticks < (uint64_t)hz_os_ticks_of_ms() * EPOCH_MS / 2)
        return;
    const uint32_t epoch = hz_os_ticks_settle() >> EPOCH_SHIFT & (EPOCHS - 1);
    const bool is_noted = heap->noted_ticks != 0 && heap->noted_epoch == epoch;
    note_node(heap);
    heap->noted_ticks = now_ticks;
    heap->noted_epoch = epoch;
    uint64_t work = hz_atomic_peek(&budget.work);
    while (!is_noted && !hz_atomic_replace(&budget.work, &work, with_one_more(work, epoch)))
        continue;
}

/* Threads at work; at least 1. */
static uint32_t workers(void)
{
    const uint64_t work = hz_atomic_peek(&budget.work);
    const uint32_t before = before_of(work), now = now_of(work), heaps = hz_heap_count();
    const uint32_t most = before > now ? before : now;
    return most < heaps ? (most > 0 ? most : 1) : heaps;
}

/* An equal part for each thread at work, but no more than is not charged to others; and at least an
 * equal part for each thread. */
size_t hz_budget_of(const hz_heap *heap)
{
    const size_t cut = hz_span_cut_bytes(), most = (size_t)hz_live(thread_cache_bytes);
    const size_t all = (cut > LITTLE_BYTES ? cut : LITTLE_BYTES) / 100 *
                       (size_t)hz_live(thread_cache_share);
    const size_t others = hz_atomic_peek(&budget.charged) - heap->charged_bytes;
    size_t part = all / workers();
    if (part > all - (others < all ? others : all)) part = all - (others < all ? others : all);
    if (part < all / hz_heap_count()) part = all / hz_heap_count();
    return part < most ? part : most;
}

static size_t charge_for(size_t bytes)
{
    return bytes > SHORT_BYTES ? bytes : 0;
}

void hz_budget_charge(hz_heap *heap, size_t from, size_t to)
{
    const size_t more = charge_for(to) - charge_for(from);
    heap->grown_bytes += to - from;
    heap->charged_bytes += more;
    if (more != 0) hz_atomic_add(&budget.charged, more);
}

void hz_budget_join(const hz_heap *heap)
{
    hz_atomic_add(&budget.charged, heap->charged_bytes);
}

void hz_budget_leave(const hz_heap *heap)
{
    hz_atomic_add(&budget.charged, -heap->charged_bytes);
}

void hz_budget_after_fork(void)
{
    hz_atomic_poke(&budget.work, 0);
    hz_atomic_poke(&budget.charged, hz_heap_mine->charged_bytes);
}
