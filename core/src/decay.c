/*
 * Decay: what nobody has used for a while goes one step back towards the system. The heaps of
 * threads that ended to the depots, blocks in depots to their spans, free pages to the system.
 *
 * There is no clock on the fast paths, and no thread that waits, unless the program asks for the
 * background worker: slow paths look at the time every so often. So a program that does nothing
 * returns nothing; the worker is for those that rest after they have needed much. What a thread's
 * magazines hold stays: nobody else can take it, and a magazine that is made smaller whenever it
 * has not run short for a second cost a key-value store 6 % of its speed.
 */
#include "internal.h"
#include "os.h"

enum { TICK_CALLS = 64 };

static struct {
    hz_lock lock;     /* guards the rest */
    uint32_t next;    /* the depot to look at, all shards' in a row */
    uint32_t seen_ms; /* when the last of them was looked at */
} depots;

/* Goes on with the depots until one has given something up; false when all have been seen. A part
 * only, as a malloc or a free waits for it. */
static bool go_on_with_depots(void)
{
    while (depots.next < hz_map.shards * HZ_CLASSES) {
        const uint32_t at = depots.next++;
        if (hz_depot_decay(at / HZ_CLASSES, at % HZ_CLASSES + 1)) return true;
    }
    depots.next = 0;
    depots.seen_ms = hz_os_now_ms();
    return false;
}

/* Every purge_delay_ms, and at most once a millisecond, all of them. */
static bool decay_depots(void)
{
    if (!hz_lock_try(&depots.lock)) return false;
    const uint32_t passed_ms = hz_os_now_ms() - depots.seen_ms;
    const bool is_due = passed_ms > 0 && passed_ms >= (uint32_t)hz_cfg.purge_delay_ms;
    const bool is_busy = is_due && go_on_with_depots();
    hz_lock_release(&depots.lock);
    return is_busy;
}

bool hz_decay(void)
{
    hz_heap_cool_old();
    hz_pages_purge_old();
    return decay_depots();
}

void hz_tick(hz_heap *heap)
{
    if (HZ_LIKELY(++heap->slow_calls % TICK_CALLS != 0)) return;
    (void)hz_decay();
}

void hz_decay_after_fork(void)
{
    (void)hz_lock_inherit(&depots.lock);
}
