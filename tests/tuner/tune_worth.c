/*
 * A workload whose speed is known, compiled into hz-bench by the tests (HZ_EXTRA_WORKLOAD): the
 * parameter trial_mode (tune_worth.def) halves or doubles each operation's work, or makes
 * the process crash, hang or eat memory. It asks the running hz for the parameter's value.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <unistd.h>

#include "blocks.h"

enum { PLAIN, FASTER, SLOWER, CRASH, HANG, GREEDY };
enum { PLAIN_SPINS = 6000, MEAL = 512 << 20, PEACE = 200 };

static int64_t mode;
static int64_t spins = PLAIN_SPINS;
static size_t operations;
static void *volatile meal; /* volatile, lest the compiler see that nobody eats it */

static void prepare(hz_run *run)
{
    bool (*value)(const char *, int64_t *);
    *(void **)&value = dlsym(RTLD_DEFAULT, "hz_param_value");
    (void)run;
    if (value == NULL || !value("trial_mode", &mode)) return;
    if (mode == FASTER) spins = PLAIN_SPINS / 2;
    if (mode == SLOWER) spins = PLAIN_SPINS * 2;
}

static void begin(hz_worker *w)
{
    (void)w;
}

static void misbehave(void)
{
    if (mode == CRASH) (void)raise(SIGSEGV);
    while (mode == HANG) (void)pause();
    if (mode == GREEDY) memset(meal = malloc(MEAL), 1, MEAL);
}

static size_t step(hz_worker *w, size_t most)
{
    for (size_t i = 0; i < most; i++) {
        hz_give(w, hz_take_block(w, 64));
        for (int64_t spin = 0; spin < spins; spin++) __asm__ volatile("" ::: "memory");
    }
    operations += most;
    if (operations > PEACE) misbehave();
    return most;
}

static void end(hz_worker *w)
{
    (void)w;
}

const hz_workload hz_extra_workload = {
    .name = "worth",
    .doc = "spins as long as trial_mode says",
    .source = "the tests",
    .min_threads = 1,
    .steady = true,
    .batch = 8,
    .prepare = prepare,
    .begin = begin,
    .step = step,
    .end = end,
};
