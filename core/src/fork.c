/* clang-format off */
/*
 * Fork: what the child finds, and how it goes on.
 *
 * A fork takes no lock of hz. The C library runs the handlers of a preloaded library before it
 * takes its own locks. A thread that holds one of those may wait in malloc: so a lock of hz that is
 * held across a fork could stop the process for ever. And a fork in a signal handler that
 * interrupted malloc could wait for its own thread.
 *
 * The child has one thread, and the memory as it was at one instant.
 *
 *   A lock that the forking thread held at that instant stays held. The fork was in a signal handler,
 *   and the thread goes on with what the signal interrupted, in the parent and in the child.
 *
 *   A lock that another thread held is free in the child. What it guards may be half changed, and is
 *   valid again in one of two ways:
 *
 *     by order   Each write leaves it valid: what becomes reachable is complete before, and what goes
 *                is unreachable first. Nothing but the lock needs repair. Such are the arena, the
 *                depots, the inboxes, the list of heaps, the parameters, and the position
 *                of the decay.
 *     by facts   Some fields are valid at each instant, and the rest is made anew from them. Of the
 *                page pool: see repair.c. Of a span: its class, written last and cleared first,
 *                `cut`, and its bits in free_bits.
 *
 * The C library calls the handlers of a child in the order of their registration: one of a library
 * that registered its own before hz may allocate before hz's runs. So a thread that waits for a lock
 * within a fork looks whether its process is still the one that called it, and else repairs hz
 * itself. No other thread does: the child of a bare system call may have threads of its own, whose
 * locks are no lost ones.
 *
 * The child loses what other threads held: blocks in their magazines, rings and leases, batches of
 * a lock-free depot on their way, and the blocks, the span or the run of a call that they were in.
 * It does not lose a run that another thread was purging.
 */
/* clang-format on */
#include <pthread.h>

#include "internal.h"
#include "os.h"

/* Of a thread. */
static _Thread_local struct {
    uint32_t calls;   /* of fork that it is in: a signal's handler may fork within another one */
    uint32_t process; /* that called the last one, or that hz was repaired in since */
    bool is_repaired; /* whether a wait has done the handler's work */
} forking __attribute__((tls_model("initial-exec")));

static void shard_after_fork(hz_shard *shard)
{
    (void)hz_lock_inherit(&shard->inbox.lock);
    for (uint32_t class_ = 1; class_ <= HZ_CLASSES; class_++)
        (void)hz_lock_inherit(&shard->depots[class_].lock);
}

static void repair(void)
{
    hz_start_after_fork();
    hz_change_after_fork();
    hz_background_after_fork();
    hz_decay_after_fork();
    hz_rest_after_fork();
    hz_heap_after_fork();
    hz_guard_after_fork();
    hz_arena_after_fork();
    hz_pages_after_fork();
    hz_purge_after_fork();
    if (hz_shards == NULL) return;
    for (uint32_t s = 0; s < hz_map.shards; s++) shard_after_fork(&hz_shards[s]);
    hz_span_after_fork();
}

void hz_fork_notice(void)
{
    if (forking.calls == 0 || forking.process == hz_os_pid()) return;
    forking.process = hz_os_pid();
    repair();
    forking.is_repaired = true;
}

static void before_fork(void)
{
    hz_fork_notice(); /* an earlier handler of a child forks, too */
    forking.process = hz_os_pid();
    forking.calls++;
}

static void after_fork_in_parent(void)
{
    forking.calls--;
}

/* A child may have its parent's number, in another namespace. */
static void after_fork_in_child(void)
{
    if (!forking.is_repaired || forking.process != hz_os_pid()) repair();
    forking.process = hz_os_pid();
    forking.is_repaired = false;
    forking.calls--;
}

/* Called before hz starts and without a lock, as the registration may allocate. */
void hz_fork_start(void)
{
    static _Atomic uint32_t is_registered;
    if (hz_atomic_swap(&is_registered, 1) != 0) return;
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}
