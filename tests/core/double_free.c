/*
 * A block that is freed twice has one owner, or the program ends.
 *
 * Each form frees a block twice in a child, with none or many other frees between, and goes on
 * allocating, in every thread of the form, until the block would have come up again. The child
 * must die with hz's message; where the block never comes up again it may live on, if no two
 * blocks that it holds overlap. Forms that must die do so in every case: nothing is written to the
 * block between, and the thread that freed it asks for it again. Where each free reads its block,
 * all of them must.
 *
 * offences.c has pointers that are no block, and the call that is wrong at once.
 */
#include "check.h"

#include <malloc.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { OTHERS = 10000, CLAIM = 1000, LIVE = 400000, STATUS_TWO_OWNERS = 3 };

static const size_t sizes[] = {8, 100, 4096, 131072};
static const size_t distances[] = {0, 1, 64, OTHERS};
#define BYTES_MOST ((size_t)12 << 20) /* of the blocks between; with more it only takes longer */

/*
 * The steps of a form, a letter each. Before a letter, 1 or 2 has one of two other threads do it,
 * and e a thread that ends then.
 *
 *   g get the block       f free it               a get one more      A free that
 *   o get the others      F free them             p get and free one, again and again
 *   b the block is one of the others; without others the form has no case
 *   n the one below it is left out of them        N free that         w use the class once
 *   t trim                h get one, and keep it  x free what was cut where the block begins
 *   s cut smaller blocks  S the same              l larger            L large
 *   X free what was cut
 */
static const struct form {
    const char *what, *steps;
    bool must_die; /* where no harm would be done, too */
} forms[] = {
    {"freed twice by one thread", "gofFf", true},
    {"freed twice below others by one thread", "goffF", true},
    {"freed twice while others come and go", "gffp", true},
    {"freed twice after others came and went", "gfpf", true},
    {"freed twice after it was given out again", "gofafFA", true},
    {"freed twice by one other thread", "go1f1F1f", true},
    {"freed elsewhere, then here", "go1fFf", false},
    {"freed here, then elsewhere", "gofF1f", false},
    {"freed in two other threads", "g2o1f2F2f", false},
    {"freed in a thread that ends, then here", "goefFf", false},
    {"freed here, then in a thread that ends", "gofFef", false},
    {"freed in two threads that end", "goefFef", false},
    {"of a dead thread, freed in two others", "egofF1f", false},
    {"freed before and after a trim", "gofFtf", false},
    /* One copy is back in the span when the other one is handed out. Then the neighbour comes
     * back, for which the span was still there. */
    {"back in its span and handed out", "obnFtfhNtsl", false},
    /* Another thread holds one copy, while the other goes back to the span with all its blocks.
     * A trim makes the pages fresh; without one they keep what is written in them. */
    {"parked while its span is cut into smaller blocks", "ob1w1fFs", false},
    {"parked while its pages come fresh into smaller blocks", "ob1w1fFts", false},
    {"parked where a smaller block is free by now", "ob1w1fFtsx", false},
    {"parked while its span is cut into larger blocks", "ob1w1fFl", false},
    {"parked while its span is cut into the same blocks", "ob1w1fFS", false},
    {"parked while its pages are a large block", "ob1w1fFL", false},
    {"parked while its pages are cut twice", "ob1w1fFsXl", false},
};

static struct {
    const struct form *form;
    size_t size, distance; /* so many other blocks are freed between the two frees */
    bool writes;           /* the owner of a block writes all of it */
} now;

/* ---- what the program holds ----------------------------------------------------------------- */

typedef struct extent {
    uintptr_t start, end;
} extent;

/* In memory of the test's own: no block of the allocator under test. */
static extent *live;
static size_t live_count;
static void **others;
static void *block, *neighbour, *again;

static void make_room(void)
{
    const size_t bytes = LIVE * sizeof *live + OTHERS * sizeof *others;
    live = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(live != MAP_FAILED, "no memory for the test's own tables");
    others = (void **)(live + LIVE);
}

static void *get(size_t size)
{
    void *got = malloc(size);
    require(got != NULL, "no memory for %zu bytes", size);
    if (now.writes) memset(got, 0x6b, size);
    return got;
}

static void hold(size_t count, size_t size)
{
    for (; count > 0; count--) {
        const uintptr_t start = (uintptr_t)get(size);
        require(live_count < LIVE, "too many blocks");
        live[live_count++] = (extent){start, start + size};
    }
}

static int by_start(const void *a, const void *b)
{
    const extent *x = a, *y = b;
    return x->start < y->start ? -1 : x->start > y->start;
}

/* qsort may ask for memory: the last question of the child. */
static void require_one_owner_each(void)
{
    qsort(live, live_count, sizeof *live, by_start);
    for (size_t i = 1; i < live_count; i++)
        if (live[i].start < live[i - 1].end) _exit(STATUS_TWO_OWNERS);
}

/* ---- steps ---------------------------------------------------------------------------------- */

static size_t bounded(size_t count)
{
    return count * now.size > BYTES_MOST ? BYTES_MOST / now.size : count;
}

static size_t others_count(void)
{
    return bounded(now.distance);
}

static void cut_anew_into(size_t size)
{
    size_t count = (now.distance + 1) * now.size * 2 / size;
    if (count * size > BYTES_MOST) count = BYTES_MOST / size;
    hold(count < LIVE / 4 ? count : LIVE / 4, size);
}

static void free_what_begins_there(void)
{
    for (size_t i = 0; i < live_count; i++) {
        if (live[i].start != (uintptr_t)block) continue;
        free(block);
        live[i] = live[--live_count];
        return;
    }
}

static void step_of_cuts(char step)
{
    if (step == 's') cut_anew_into(now.size > 128 ? 64 : 16);
    if (step == 'S') cut_anew_into(now.size);
    if (step == 'l') cut_anew_into(now.size * 3);
    if (step == 'L') cut_anew_into(1 << 20);
    if (step == 'x') free_what_begins_there();
    while (step == 'X' && live_count > 0) free((void *)live[--live_count].start);
    if (step == 'C') hold(others_count() + bounded(CLAIM), now.size); /* all that were freed */
}

static void step_of_others(char step)
{
    const size_t count = others_count(), middle = count / 2;
    for (size_t i = 0; step == 'o' && i < count; i++) others[i] = get(now.size);
    for (size_t i = 0; step == 'F' && i < count; i++) free(others[i]);
    for (size_t i = 0; step == 'p' && i < now.distance; i++) free(get(now.size));
    if (step == 'b') {
        if (count < 2) _exit(0);
        block = others[middle];
    }
    if (step == 'n') {
        neighbour = others[middle - 1];
        others[middle - 1] = NULL;
    }
    step_of_cuts(step);
}

static void step_do(char step)
{
    if (step == 'g') block = get(now.size);
    if (step == 'f') free(block);
    if (step == 'a') again = get(now.size);
    if (step == 'A') free(again);
    if (step == 'N') free(neighbour);
    if (step == 'w') free(get(now.size));
    if (step == 't') (void)malloc_trim(0);
    if (step == 'h') hold(1, now.size);
    step_of_others(step);
}

/* Threads that stay. */
static struct helper {
    pthread_barrier_t turn;
    char step;
} helpers[2];

static void *serve(void *argument)
{
    struct helper *this = argument;
    for (;;) {
        (void)pthread_barrier_wait(&this->turn);
        step_do(this->step);
        (void)pthread_barrier_wait(&this->turn);
    }
    return NULL;
}

static void have(struct helper *this, char step)
{
    this->step = step;
    (void)pthread_barrier_wait(&this->turn);
    (void)pthread_barrier_wait(&this->turn);
}

static void *step_and_end(void *step)
{
    step_do(*(const char *)step);
    return NULL;
}

static void run_steps(const char *steps)
{
    for (; *steps != '\0'; steps++) {
        const char what = *steps; /* a step, or the thread that does the next one */
        if (what == '1' || what == '2')
            have(&helpers[what - '1'], *++steps);
        else if (what == 'e')
            (void)thread_end(thread_start(step_and_end, ++steps));
        else
            step_do(what);
    }
}

/* ---- the cases ------------------------------------------------------------------------------ */

static void commit_and_go_on(void *unused)
{
    (void)unused;
    make_room();
    for (size_t i = 0; i < COUNT(helpers); i++) {
        (void)pthread_barrier_init(&helpers[i].turn, NULL, 2);
        (void)thread_start(serve, &helpers[i]);
    }
    step_do('w'); /* the thread has a magazine */
    run_steps(now.form->steps);
    run_steps("1CC2C");
    require_one_owner_each();
}

static void require_one_owner(void)
{
    ending result;
    run_apart(commit_and_go_on, NULL, 30, &result);
    const bool is_told = result.signal == SIGABRT && strncmp(result.said, "hz: ", 4) == 0;
    const bool lives_on = result.signal == 0 && result.status == 0;
    const bool is_abroad = strchr(now.form->steps, '1') != NULL && hz_counter("shards") > 1;
    const bool must_die = is_hardened() || is_at_call() /* but for what has no case */
                              ? now.distance > 1 || strchr(now.form->steps, 'b') == NULL
                              : now.form->must_die && !is_abroad; /* it waits in a ring */
    require(is_told || (lives_on && !must_die),
            "%zu bytes, %zu frees between, blocks %s: %s signal %d, status %d; it said '%.300s'",
            now.size, now.distance, now.writes ? "written" : "not written",
            result.status == STATUS_TWO_OWNERS ? "TWO OWNERS," : "", result.signal, result.status,
            result.said);
}

CHECK_IN(300, "a block that is freed twice has one owner, or the program ends")
{
    for (size_t i = 0; i < COUNT(forms) * COUNT(sizes) * COUNT(distances) * 2; i++) {
        now.form = &forms[i / (COUNT(sizes) * COUNT(distances) * 2)];
        now.size = sizes[i / (COUNT(distances) * 2) % COUNT(sizes)];
        now.distance = distances[i / 2 % COUNT(distances)];
        now.writes = i % 2 == 1;
        if (i % (COUNT(sizes) * COUNT(distances) * 2) == 0) printf("# %s\n", now.form->what);
        if (!now.writes || !(now.form->must_die || is_hardened())) require_one_owner();
    }
}

static void *free_twice(void *its)
{
    free(malloc(now.size));
    free(its);
    free(its);
    (void)!write(STDERR_FILENO, "both passed, ", 13);
    return NULL;
}

static void have_it_freed_twice(void *unused)
{
    (void)unused;
    (void)thread_end(thread_start(free_twice, malloc(now.size)));
    (void)malloc_trim(0);
    for (size_t i = 0; i < OTHERS; i++) (void)malloc(now.size);
}

CHECK("a free by another thread does not read the block: a second one is told later")
{
    ending result;
    if (is_hardened() || is_at_call()) return;
    for (now.size = 8; now.size < 10000; now.size *= 5) {
        run_apart(have_it_freed_twice, NULL, 30, &result);
        require(result.signal == SIGABRT && strncmp(result.said, "both passed, hz: ", 17) == 0,
                "%zu bytes: signal %d, it said '%.300s'", now.size, result.signal, result.said);
    }
}
