/*
 * Threads that burst and rest: for the tests of the background thread of a program that rests.
 */
#ifndef TEST_RESTER_H
#define TEST_RESTER_H

#include "check.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { BLOCKS = 60000, BLOCK_BYTES = 500 }; /* a burst of 30 MB */
#define BURST_BYTES ((size_t)BLOCKS * BLOCK_BYTES)

static inline void burst(void)
{
    void **blocks = malloc(BLOCKS * sizeof *blocks);
    for (size_t i = 0; i < BLOCKS; i++) blocks[i] = memset(malloc(BLOCK_BYTES), 1, BLOCK_BYTES);
    for (size_t i = 0; i < BLOCKS; i++) free(blocks[i]);
    free(blocks);
}

/* A thread that bursts when it is told to, and otherwise rests, until it is let go. */
typedef struct rester {
    pthread_t thread;
    atomic_int bursts_wanted, bursts_done;
    atomic_bool is_let_go;
    pid_t tid;
} rester;

static inline void *rest_and_burst(void *argument)
{
    rester *self = argument;
    self->tid = (pid_t)syscall(SYS_gettid);
    for (; !atomic_load(&self->is_let_go); (void)usleep(1000)) {
        if (atomic_load(&self->bursts_wanted) == atomic_load(&self->bursts_done)) continue;
        burst();
        atomic_fetch_add(&self->bursts_done, 1);
    }
    return NULL;
}

static inline void rester_start(rester *self)
{
    *self = (rester){.bursts_wanted = 0};
    self->thread = thread_start(rest_and_burst, self);
}

static inline void rester_end(rester *self)
{
    atomic_store(&self->is_let_go, true);
    (void)thread_end(self->thread);
}

static inline void rester_burst(rester *self)
{
    atomic_fetch_add(&self->bursts_wanted, 1);
    while (atomic_load(&self->bursts_done) < atomic_load(&self->bursts_wanted)) (void)usleep(1000);
}

static inline void wait_until_given_back(size_t before)
{
    while (resident_bytes() > before + BURST_BYTES / 2) (void)usleep(10000);
}

static inline void require_that_a_burst_is_given_back(rester *self)
{
    const size_t before = resident_bytes();
    rester_burst(self);
    wait_until_given_back(before);
}

#endif
