/*
 * Fork: what the child finds, and how it goes on.
 *
 * A fork takes no lock of hz. The C library runs the handlers of a preloaded library before it
 * takes its own locks, and the thread that holds one of those may be waiting in malloc: so a lock
 * held across a fork could stop the process for ever. A fork in a signal handler that interrupted
 * malloc could wait for its own thread.
 *
 * The child has one thread, and the memory as it was at one instant. A lock that this thread itself
 * held at that instant stays held: the fork was in a signal handler, and the thread goes on with
 * what the signal interrupted, in the parent and in the child. A lock that another thread held is
 * free in the child, and what it guards may be half changed. There are two ways to make that good:
 *
 *   by order    Each write leaves it valid: what becomes reachable is complete before, and what
 * goes is unreachable first. Nothing is to be done but to free the lock. So are written the arena,
 * depots, inboxes, the list of heaps, the decay's place. by facts    Some fields are valid at each
 * instant, and the rest is made of them anew. Of the page heap: `top`, and the state and the pages
 * of each run in use. Of a span: its class, written last and cleared first, `carved`, and its bits
 * in free_bits.
 *
 * What is lost in the child is what other threads had in their hands: blocks in their magazines,
 * rings and leases, batches of a lock-free depot on their way, and the blocks, span or run of a
 * call that they were in. A run that another thread was purging is not lost.
 */
#include <pthread.h>

#include "internal.h"

static void shard_after_fork(hz_shard *shard)
{
    (void)hz_lock_inherit(&shard->inbox.lock);
    for (uint32_t class_ = 1; class_ <= HZ_CLASSES; class_++)
        (void)hz_lock_inherit(&shard->depots[class_].lock);
}

static void after_fork_in_child(void)
{
    hz_start_after_fork();
    hz_decay_after_fork();
    hz_heap_after_fork();
    hz_guard_after_fork();
    hz_arena_after_fork();
    hz_pages_after_fork();
    hz_purge_after_fork();
    if (hz_shards == NULL) return;
    for (uint32_t s = 0; s < hz_map.shards; s++) shard_after_fork(&hz_shards[s]);
    hz_span_after_fork();
}

/* Before hz starts and without a lock: to register may allocate. */
void hz_fork_start(void)
{
    static _Atomic uint32_t is_registered;
    if (hz_atomic_swap(&is_registered, 1) == 0) pthread_atfork(NULL, NULL, after_fork_in_child);
}
