/*
 * Counting an event of stats.def.
 */
#ifndef HZ_COUNTERS_H
#define HZ_COUNTERS_H

#include "atomic.h"
#include "heap.h"

/* With HZ_STATS_COUNTERS=OFF only what hz itself reads is counted (hz_usage_now). */
#ifdef HZ_UNCOUNTED
#define HZ_IS_COUNTED(stat) ((stat) == HZ_STAT_committed_bytes)
#else
#define HZ_IS_COUNTED(stat) ((void)(stat), true)
#endif

/* Counts in the thread's own heap; threads without one share hz_heap_none's and may lose a count.
 */
HZ_FAST void hz_count(hz_stat stat, uint64_t by)
{
    if (!HZ_IS_COUNTED(stat)) return;
    _Atomic uint64_t *counter = &hz_heap_mine->counters.of[stat];
    hz_atomic_poke(counter, hz_atomic_peek(counter) + by);
}

#endif
