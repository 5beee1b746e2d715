/*
 * Decay: memory that has not been used for a while goes one step back towards the system: blocks in
 * heaps of threads that ended to the depots, those heaps' slots to the system, blocks in depots to
 * their spans, free pages to the system.
 *
 * A tick is the call by which a slow path lets that happen. It comes while no lock is held, and one
 * tick returns at most 1 MiB of free pages to the system (under hardening=full, spans that it frees
 * also give back their guard pages, see guard.c). Only ticks and the background threads (rest.c,
 * background.c) return pages because of their age, or because too many are dirty.
 *
 *     a magazine is empty: hz_tick                            magazine.c
 *     a magazine is full, a ring is full: hz_tick_of_free     magazine.c, remote.c
 *     a large block is freed, shrinks or moves: the same      free.c, alloc.c
 *
 * The fast paths never tick and never read the clock. So a program that makes no calls returns
 * nothing: while it rests, the background thread of rest.c decays in its place.
 * The magazines of a thread stay as they are, as no other thread can take from them; when hz_trim
 * asks for them, a thread empties its own in its next tick. When threads
 * shrank each one that had no shortage for a second, a key-value store lost 6 % of its speed.
 */
#include "internal.h"
#include "os.h"

enum { TICK_CALLS = 64 };

/* On a line of its own: every slow path reads what would lie beside it. */
static struct {
    HZ_ALIGNED_TO_LINE hz_lock lock; /* guards the rest */
    uint32_t next;                   /* number of the next depot, counted over all shards */
    _Atomic uint32_t seen_ms;        /* when one of them was visited last */
    _Atomic uint32_t round_ms;       /* when the last round over all ended */
} depots;

/* Visits depots until one has given something up, and stops there, as a malloc or a free waits;
 * false when all have been visited. */
static bool go_on_with_depots(void)
{
    hz_atomic_poke(&depots.seen_ms, hz_os_now_ms());
    while (depots.next < hz_map.shards * HZ_CLASSES) {
        const uint32_t at = depots.next;
        const hz_decayed decayed = hz_depot_decay(at / HZ_CLASSES, at % HZ_CLASSES + 1);
        if (decayed != HZ_DECAYED_PART) depots.next++;
        if (decayed != HZ_DECAYED_NOTHING) return true;
    }
    depots.next = 0;
    hz_atomic_poke(&depots.round_ms, hz_atomic_peek(&depots.seen_ms));
    return false;
}

static bool is_time_for_depots(void)
{
    const uint32_t passed_ms = hz_os_now_ms() - hz_atomic_peek(&depots.round_ms);
    return passed_ms > 0 && passed_ms >= (uint32_t)hz_live(decay_ms);
}

uint32_t hz_decay_seen_ms(void)
{
    return hz_atomic_peek(&depots.seen_ms);
}

/* Visits all depots every decay_ms, and at most once a millisecond. */
static bool decay_depots(void)
{
    if (!is_time_for_depots() || !hz_lock_try(&depots.lock)) return false;
    const bool is_busy = is_time_for_depots() && go_on_with_depots();
    hz_lock_release(&depots.lock);
    return is_busy;
}

static bool decay_blocks(void)
{
    const bool is_stripping = hz_heap_decay();
    return decay_depots() || is_stripping;
}

bool hz_decay(void)
{
    const bool is_purging = hz_purge_part();
    return decay_blocks() || (is_purging && hz_purge_is_behind());
}

/* How often all threads were asked to empty their magazines. */
static _Atomic uint32_t asked;

void hz_tick_ask(hz_heap *mine)
{
    const uint32_t now = hz_atomic_add(&asked, 1) + 1;
    if (mine != &hz_heap_none) mine->asked_before = now;
}

static void do_what_is_asked(hz_heap *heap)
{
    heap->asked_before = hz_atomic_peek(&asked);
    hz_remote_flush(heap);
    hz_magazine_flush_all(heap);
}

/* Threads without a heap share hz_heap_none, so they count no calls. */
void hz_tick(hz_heap *heap)
{
    if (heap == &hz_heap_none) return;
    if (HZ_UNLIKELY(heap->asked_before != hz_atomic_peek(&asked))) do_what_is_asked(heap);
    if (HZ_LIKELY(++heap->slow_calls % TICK_CALLS != 0)) return;
    (void)decay_blocks();
}

void hz_tick_of_free(hz_heap *heap)
{
    hz_rest_note(); /* after what was freed: else a thread that is held up wakes no other */
    hz_tick(heap);
    (void)hz_purge_part();
}

void hz_decay_after_fork(void)
{
    (void)hz_lock_inherit(&depots.lock);
}
