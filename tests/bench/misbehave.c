/*
 * A workload that goes wrong on demand, compiled into hz-bench by the tests (HZ_EXTRA_WORKLOAD).
 *
 * The variable HZ_MISCHIEF says how: crash, abort, hang, eat, exit, refuse, flood, drown, share or
 * never_ready. It is a variable and not a parameter because arms differ by their environment only.
 * Without it, the workload allocates and frees 64 bytes.
 */
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "blocks.h"

enum { PEACE = 20000, MEAL = 8 << 20 };

static size_t operations;

static void hang(hz_worker *w)
{
    (void)w;
    for (;;) (void)pause();
}

static void eat(hz_worker *w)
{
    (void)w;
    memset(malloc(MEAL), 1, MEAL);
}

static void crash(hz_worker *w)
{
    (void)w;
    (void)raise(SIGSEGV);
}

static void give_up(hz_worker *w)
{
    (void)w;
    abort();
}

static void leave(hz_worker *w)
{
    (void)w;
    _exit(0);
}

static void refuse(hz_worker *w)
{
    (void)w;
    _exit(78);
}

/* A megabyte a step on stderr. */
static void flood(hz_worker *w)
{
    static char text[1 << 20];
    (void)w;
    memset(text, 'x', sizeof text);
    (void)!write(STDERR_FILENO, text, sizeof text);
}

/* More than any reader keeps of stdout, once. */
static void drown(hz_worker *w)
{
    static char text[1 << 20];
    (void)w;
    memset(text, '{', sizeof text);
    if (operations < 2 * PEACE) (void)!write(STDOUT_FILENO, text, sizeof text);
}

static void share(hz_worker *w)
{
    w->run->remote_target = 50;
    w->local_frees++;
}

static const struct {
    const char *word;
    void (*act)(hz_worker *w);
} mischiefs[] = {
    {"crash", crash},   {"abort", give_up}, {"hang", hang},   {"eat", eat},     {"exit", leave},
    {"refuse", refuse}, {"flood", flood},   {"drown", drown}, {"share", share},
};

static void (*chosen)(hz_worker *w);

static void prepare(hz_run *run)
{
    const char *word = getenv("HZ_MISCHIEF");
    (void)run;
    for (size_t i = 0; word != NULL && i < HZ_LENGTH(mischiefs); i++)
        if (strcmp(word, mischiefs[i].word) == 0) chosen = mischiefs[i].act;
}

static void begin(hz_worker *w)
{
    const char *word = getenv("HZ_MISCHIEF");
    if (word != NULL && strcmp(word, "never_ready") == 0) hang(w);
}

static size_t step(hz_worker *w, size_t most)
{
    for (size_t i = 0; i < most; i++) hz_give(w, hz_take_block(w, 64));
    operations += most;
    if (chosen != NULL && operations > PEACE) chosen(w);
    return most;
}

static void end(hz_worker *w)
{
    (void)w;
}

const hz_workload hz_extra_workload = {
    .name = "misbehave",
    .doc = "goes wrong as HZ_MISCHIEF says",
    .source = "the tests",
    .min_threads = 1,
    .steady = true,
    .batch = 64,
    .prepare = prepare,
    .begin = begin,
    .step = step,
    .end = end,
};
