/*
 * The optional background thread (background_period_us). It gives depots that ran dry a batch from
 * their spans, so that the next refill finds one. It also lets unused memory decay, even while the
 * program rests. A process starts and ends it as the parameter asks (hz_set). The child of a fork
 * has no background thread until it makes a thread, or changes a parameter.
 *
 * It ends, too, when the last thread that has a heap has ended: a process whose main ends by
 * pthread_exit lives until its last thread has ended. The next thread that is made brings it again.
 * And it ends after main where no other thread has a heap: of the bare system call `exit` no handler
 * hears, and main's heap stays.
 */
#include <pthread.h>

#include "internal.h"
#include "os.h"
#include "own_signals.h"

static void round_of_refills(void)
{
    size_t blocks = 0;
    for (uint32_t shard = 0; shard < hz_map.shards; shard++) {
        for (uint32_t class_ = 1; class_ <= HZ_CLASSES; class_++)
            blocks += hz_depot_top_up(shard, class_);
    }
    hz_count(HZ_STAT_background_rounds, 1);
    hz_count(HZ_STAT_background_blocks, blocks);
}

/* Whether there is a background thread, or one is being started. */
static _Atomic uint32_t is_there;

/* Whether no thread of the program has a heap any more. */
static _Atomic uint32_t is_over;

static uint32_t period_us(void)
{
    return (uint32_t)hz_live(background_period_us);
}

static bool background_is_wanted(void)
{
    return period_us() > 0 && hz_atomic_get(&is_over) == 0;
}

/* The background thread ends when it is wanted no more. If it is wanted again meanwhile, it stays,
 * unless another one was started. */
static bool background_may_end(void)
{
    if (background_is_wanted()) return false;
    (void)hz_atomic_swap(&is_there, 0);
    return !background_is_wanted() || hz_atomic_swap(&is_there, 1) != 0;
}

static void *background_run(void *unused)
{
    const bool can_tell = hz_os_has_main();
    while (!background_may_end()) {
        hz_os_sleep_us(period_us());
        if (can_tell && hz_heap_count() <= 1 && !hz_os_has_main()) hz_background_end();
        round_of_refills();
        while (hz_decay()) continue;
    }
    return unused;
}

static bool make_background_thread(void)
{
    pthread_t thread;
    sigset_t before;
    hz_own_signals_block(&before);
    const bool is_started = pthread_create(&thread, NULL, background_run, NULL) == 0;
    if (is_started) pthread_detach(thread);
    hz_own_signals_restore(&before);
    return is_started;
}

void hz_background_start(void)
{
    if (period_us() == 0) return;
    hz_atomic_put(&is_over, 0);
    if (hz_atomic_swap(&is_there, 1) == 0 && !make_background_thread()) hz_atomic_put(&is_there, 0);
}

void hz_background_end(void)
{
    hz_atomic_put(&is_over, 1);
}

void hz_background_after_fork(void)
{
    hz_atomic_put(&is_there, 0);
}
