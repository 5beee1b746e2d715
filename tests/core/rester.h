/*
 * Threads that burst and rest, and what the system knows of the process: for the tests of the
 * background thread of a program that rests.
 */
#ifndef TEST_RESTER_H
#define TEST_RESTER_H

#include "check.h"

#include <dirent.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    BLOCKS = 60000,
    BLOCK_BYTES = 500, /* a burst of 30 MB */
    LOOK_MS = 10,
    LOOKS_ALIKE = 30, /* of what does not change any more */
};
#define BURST_BYTES ((size_t)BLOCKS * BLOCK_BYTES)

static inline void pass(unsigned ms)
{
    (void)usleep(ms * 1000);
}

static inline void wait_for_threads(size_t wanted)
{
    while (threads_now() != wanted) pass(LOOK_MS);
}

/* The background thread: the youngest, beside main and another. */
static inline long background_seen(void)
{
    long most = 0;
    wait_for_threads(3);
    DIR *all = opendir("/proc/self/task");
    for (const struct dirent *each; (each = readdir(all)) != NULL;) {
        const long number = strtol(each->d_name, NULL, 10);
        most = number > most ? number : most;
    }
    (void)closedir(all);
    return most;
}

/* A line of a thread's status, without its name. */
static inline void status_line(long thread, const char *name, char *value, size_t size)
{
    char path[64], line[256];
    (void)snprintf(path, sizeof path, "/proc/self/task/%ld/status", thread);
    FILE *file = fopen(path, "r");
    require(file != NULL, "cannot read %s", path);
    value[0] = '\0';
    while (value[0] == '\0' && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, name, strlen(name)) == 0)
            (void)snprintf(value, size, "%s", line + strlen(name));
    (void)fclose(file);
    require(value[0] != '\0', "%s does not tell %s", path, name);
}

/* ---- bursts --------------------------------------------------------------------------------- */

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
    for (; !atomic_load(&self->is_let_go); pass(1)) {
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
    while (atomic_load(&self->bursts_done) < atomic_load(&self->bursts_wanted)) pass(1);
}

static inline void wait_until_given_back(size_t before)
{
    while (resident_bytes() > before + BURST_BYTES / 2) pass(LOOK_MS);
}

static inline void require_that_a_burst_is_given_back(rester *self)
{
    const size_t before = resident_bytes();
    rester_burst(self);
    wait_until_given_back(before);
}

#endif
