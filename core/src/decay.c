/*
 * Decay: what nobody has used for a while goes one step back towards the system. Magazines to the
 * depot, the heaps of threads that ended too, depots to the spans, free pages to the system.
 *
 * There is no clock on the fast paths, and no thread that waits, unless the program asks for the
 * background worker: slow paths look at the time every so often. So a program that does nothing
 * returns nothing; the worker is for those that rest after they have needed much.
 */
#include "internal.h"
#include "os.h"

enum { TICK_CALLS = 64 };

/* Every purge_delay_ms all depots are looked at; but as this takes part in a malloc or a free, no
 * more than one of them gives something up at a time. */
static void decay_depots(void)
{
    static _Atomic uint32_t seen_ms; /* when the last one of all was seen */
    const uint32_t now_ms = hz_os_now_ms();
    uint32_t before_ms = hz_atomic_peek(&seen_ms);
    if (now_ms == before_ms || now_ms - before_ms < (uint32_t)hz_cfg.purge_delay_ms) return;
    if (!hz_atomic_replace(&seen_ms, &before_ms, now_ms)) return; /* another thread is at it */
    if (!hz_depot_decay()) hz_atomic_poke(&seen_ms, before_ms);
}

void hz_decay_shared(void)
{
    hz_heap_cool_old();
    decay_depots();
    hz_pages_purge_old();
}

void hz_tick(hz_heap *heap)
{
    if (HZ_LIKELY(++heap->slow_calls % TICK_CALLS != 0)) return;
    hz_magazine_decay_all(heap);
    hz_decay_shared();
}
