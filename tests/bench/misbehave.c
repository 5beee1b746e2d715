/*
 * A workload that goes wrong on demand, compiled into hz-bench by the tests (HZ_EXTRA_WORKLOAD).
 *
 * The variable HZ_MISCHIEF says how: crash, hang, eat, exit, flood, drown or never_ready.
 * It is a variable and not a parameter because arms differ by their environment only.
 * Without it, the workload allocates and frees 64 bytes.
 */
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "blocks.h"

enum { PEACE = 20000, MEAL = 8 << 20 };

static size_t operations;

static void hang(void)
{
    for (;;) (void)pause();
}

static void eat(void)
{
    memset(malloc(MEAL), 1, MEAL);
}

static void crash(void)
{
    (void)raise(SIGSEGV);
}

static void leave(void)
{
    _exit(0);
}

/* A megabyte a step on stderr. */
static void flood(void)
{
    static char text[1 << 20];
    memset(text, 'x', sizeof text);
    (void)!write(STDERR_FILENO, text, sizeof text);
}

/* More than any reader keeps of stdout, once. */
static void drown(void)
{
    static char text[1 << 20];
    memset(text, '{', sizeof text);
    if (operations < 2 * PEACE) (void)!write(STDOUT_FILENO, text, sizeof text);
}

static const struct {
    const char *word;
    void (*act)(void);
} mischiefs[] = {
    {"crash", crash}, {"hang", hang},   {"eat", eat},
    {"exit", leave},  {"flood", flood}, {"drown", drown},
};

static void (*chosen)(void);

static void prepare(hz_run *run)
{
    const char *word = getenv("HZ_MISCHIEF");
    (void)run;
    for (size_t i = 0; word != NULL && i < HZ_LENGTH(mischiefs); i++)
        if (strcmp(word, mischiefs[i].word) == 0) chosen = mischiefs[i].act;
}

static void begin(hz_player *p)
{
    (void)p;
    const char *word = getenv("HZ_MISCHIEF");
    if (word != NULL && strcmp(word, "never_ready") == 0) hang();
}

static size_t step(hz_player *p, size_t most)
{
    for (size_t i = 0; i < most; i++) hz_give(p, hz_take_block(p, 64));
    operations += most;
    if (chosen != NULL && operations > PEACE) chosen();
    return most;
}

const hz_workload hz_extra_workload = {
    .name = "misbehave",
    .doc = "goes wrong as HZ_MISCHIEF says",
    .source = "the tests",
    .prepare = prepare,
    .begin = begin,
    .step = step,
};
