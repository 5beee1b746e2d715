/*
 * The optional background worker (background_period_us). It gives depots that ran dry a batch from
 * their spans, so that the next refill finds one. It also lets unused memory decay, even while the
 * program rests. The child of a fork has no worker.
 */
#include <pthread.h>
#include <signal.h>

#include "internal.h"
#include "os.h"

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

_Noreturn static void *worker_run(void *unused)
{
    (void)unused;
    for (;;) {
        hz_os_sleep_us((uint32_t)hz_cfg.background_period_us);
        round_of_refills();
        while (hz_decay()) continue;
    }
}

/* With every signal blocked, so that the program's handlers never run on this thread. */
void hz_background_start(void)
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (pthread_create(&thread, NULL, worker_run, NULL) == 0) pthread_detach(thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}
