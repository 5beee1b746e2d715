/*
 * A workload whose speed is known, compiled into hz-bench by the tests (HZ_EXTRA_WORKLOAD): the
 * parameter trial_mode (tune_worth.def) halves each operation's work, or makes the process crash.
 * It asks the running hz for the parameter's value.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>

#include "blocks.h"

enum { PLAIN_SPINS = 6000, PEACE = 200 };

static bool is_crash_due;
static int64_t spins = PLAIN_SPINS;
static size_t operations;

static void prepare(hz_run *run)
{
    int (*get)(const char *, char *, size_t);
    char word[16] = "";
    *(void **)&get = dlsym(RTLD_DEFAULT, "hz_get");
    (void)run;
    if (get != NULL) (void)get("trial_mode", word, sizeof word);
    is_crash_due = strcmp(word, "crash") == 0;
    if (strcmp(word, "faster") == 0) spins = PLAIN_SPINS / 2;
}

static size_t step(hz_player *w, size_t most)
{
    for (size_t i = 0; i < most; i++) {
        hz_give(w, hz_take_block(w, 64));
        for (int64_t spin = 0; spin < spins; spin++) __asm__ volatile("" ::: "memory");
    }
    operations += most;
    if (is_crash_due && operations > PEACE) (void)raise(SIGSEGV);
    return most;
}

const hz_workload hz_extra_workload = {
    .name = "worth",
    .doc = "spins as long as trial_mode says",
    .source = "the tests",
    .batch = 8,
    .prepare = prepare,
    .step = step,
};
