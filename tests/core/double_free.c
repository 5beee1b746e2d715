/*
 * A block that is freed twice has one owner, or the program ends.
 *
 * Each form frees a block twice in a child, with none or many other frees between, and goes on
 * allocating, in every thread of the form, until the block would have come up again. The child
 * must die with hz's message; where the block never comes up again it may live on, if no two
 * blocks that it holds overlap. The forms of the first kind (ENDING) must die in every case:
 * nothing is written to the block between, and the thread that freed it asks for it again.
 *
 * invalid_free.c has pointers that are no block, and the call that is wrong at once.
 */
#include "check.h"

#include <malloc.h>
#include <pthread.h>
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

#define BYTES_MOST                                                                                 \
    ((size_t)12 << 20) /* of the blocks between; with more, the test only takes longer */

typedef struct plan {
    size_t size;
    size_t distance; /* so many other blocks are freed between the two frees */
    bool writes;     /* the owner of a block writes all of it */
    bool must_die;   /* ends even where no harm would be done */
    void (*commit)(const struct plan *form);
} plan;

/* ---- what the program holds ----------------------------------------------------------------- */

typedef struct extent {
    uintptr_t start;
    uintptr_t end;
} extent;

/* In memory of the test's own: no block of the allocator under test. */
static extent *live;
static size_t live_count;
static void **others;

static void make_room(void)
{
    const size_t bytes = LIVE * sizeof *live + OTHERS * sizeof *others;
    live = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(live != MAP_FAILED, "no memory for the test's own tables");
    others = (void **)(live + LIVE);
}

static void *get(const plan *form, size_t size)
{
    void *block = malloc(size);
    require(block != NULL, "no memory for %zu bytes", size);
    if (form->writes) memset(block, 0x6b, size);
    return block;
}

static void *hold(const plan *form, size_t size)
{
    void *block = get(form, size);
    require(live_count < LIVE, "too many blocks");
    live[live_count++] = (extent){(uintptr_t)block, (uintptr_t)block + size};
    return block;
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

/* ---- a second thread that stays ------------------------------------------------------------- */

typedef struct helper {
    pthread_t thread;
    pthread_barrier_t turn;
    void (*act)(const plan *form, void *block);
    const plan *form;
    void *block;
} helper;

static void *serve(void *argument)
{
    helper *this = argument;
    for (;;) {
        (void)pthread_barrier_wait(&this->turn);
        this->act(this->form, this->block);
        (void)pthread_barrier_wait(&this->turn);
    }
    return NULL;
}

static void helper_start(helper *this)
{
    (void)pthread_barrier_init(&this->turn, NULL, 2);
    this->thread = thread_start(serve, this);
}

/* Has the helper do something; returns when that is done. */
static void have(helper *this, const plan *form, void (*act)(const struct plan *, void *),
                 void *block)
{
    this->form = form;
    this->act = act;
    this->block = block;
    (void)pthread_barrier_wait(&this->turn);
    (void)pthread_barrier_wait(&this->turn);
}

static helper first_helper, second_helper;

/* ---- steps ---------------------------------------------------------------------------------- */

static size_t bounded(const plan *form, size_t count)
{
    return count * form->size > BYTES_MOST ? BYTES_MOST / form->size : count;
}

static void get_others(const plan *form, void *nothing)
{
    (void)nothing;
    for (size_t i = 0; i < bounded(form, form->distance); i++) others[i] = get(form, form->size);
}

static void free_others(const plan *form, void *nothing)
{
    (void)nothing;
    for (size_t i = 0; i < bounded(form, form->distance); i++) free(others[i]);
}

static void free_one(const plan *form, void *block)
{
    (void)form;
    free(block);
}

/* Uses the class once, so that the thread has a magazine for it. */
static void warm_up(const plan *form, void *nothing)
{
    (void)nothing;
    free(get(form, form->size));
}

/* As many blocks as all that were freed, and more. */
static void claim(const plan *form, void *nothing)
{
    (void)nothing;
    const size_t count = bounded(form, form->distance) + bounded(form, CLAIM);
    for (size_t i = 0; i < count; i++) (void)hold(form, form->size);
}

static void *free_and_end(void *block)
{
    free(block);
    return NULL;
}

static void free_in_thread_that_ends(void *block)
{
    (void)thread_end(thread_start(free_and_end, block));
}

static void *get_and_end(void *argument)
{
    const plan *form = argument;
    return get(form, form->size);
}

static void *get_in_thread_that_ends(const plan *form)
{
    return thread_end(thread_start(get_and_end, (void *)(uintptr_t)form));
}

/* ---- forms: the frees ----------------------------------------------------------------------- */

static void here_and_here(const plan *form)
{
    void *block = get(form, form->size);
    get_others(form, NULL);
    free(block);
    free_others(form, NULL);
    free(block);
}

/* The other blocks go first and the block last, so that the copies lie side by side below. */
static void here_and_here_below_others(const plan *form)
{
    void *block = get(form, form->size);
    get_others(form, NULL);
    free(block);
    free(block);
    free_others(form, NULL);
}

static void here_while_pairs_go_on(const plan *form)
{
    void *block = get(form, form->size);
    free(block);
    free(block);
    for (size_t i = 0; i < form->distance; i++) free(get(form, form->size));
}

static void pairs_between(const plan *form)
{
    void *block = get(form, form->size);
    free(block);
    for (size_t i = 0; i < form->distance; i++) free(get(form, form->size));
    free(block);
}

static void here_after_one_reuse(const plan *form)
{
    void *block = get(form, form->size);
    get_others(form, NULL);
    free(block);
    void *again = get(form, form->size);
    free(block);
    free_others(form, NULL);
    free(again);
}

static void elsewhere_and_here(const plan *form)
{
    void *block = get(form, form->size);
    get_others(form, NULL);
    have(&first_helper, form, free_one, block);
    free_others(form, NULL);
    free(block);
}

static void here_and_elsewhere(const plan *form)
{
    void *block = get(form, form->size);
    get_others(form, NULL);
    free(block);
    free_others(form, NULL);
    have(&first_helper, form, free_one, block);
}

static void elsewhere_twice(const plan *form)
{
    void *block = get(form, form->size);
    get_others(form, NULL);
    have(&first_helper, form, free_one, block);
    have(&first_helper, form, free_others, NULL);
    have(&first_helper, form, free_one, block);
}

static void in_two_other_threads(const plan *form)
{
    void *block = get(form, form->size);
    have(&second_helper, form, get_others, NULL);
    have(&first_helper, form, free_one, block);
    have(&second_helper, form, free_others, NULL);
    have(&second_helper, form, free_one, block);
}

static void in_a_thread_that_ends_and_here(const plan *form)
{
    void *block = get(form, form->size);
    get_others(form, NULL);
    free_in_thread_that_ends(block);
    free_others(form, NULL);
    free(block);
}

static void here_and_in_a_thread_that_ends(const plan *form)
{
    void *block = get(form, form->size);
    get_others(form, NULL);
    free(block);
    free_others(form, NULL);
    free_in_thread_that_ends(block);
}

static void in_two_threads_that_end(const plan *form)
{
    void *block = get(form, form->size);
    get_others(form, NULL);
    free_in_thread_that_ends(block);
    free_others(form, NULL);
    free_in_thread_that_ends(block);
}

static void a_dead_threads_block(const plan *form)
{
    void *block = get_in_thread_that_ends(form);
    get_others(form, NULL);
    free(block);
    free_others(form, NULL);
    have(&first_helper, form, free_one, block);
}

/* ---- forms: the span goes away -------------------------------------------------------------- */

static void cut_anew_into(const plan *form, size_t size)
{
    size_t count = (form->distance + 1) * form->size * 2 / size;
    if (count * size > BYTES_MOST) count = BYTES_MOST / size;
    if (count > LIVE / 4) count = LIVE / 4;
    for (size_t i = 0; i < count; i++) (void)hold(form, size);
}

static size_t smaller(const plan *form)
{
    return form->size > 128 ? 64 : 16;
}

static void before_and_after_trim(const plan *form)
{
    void *block = get(form, form->size);
    get_others(form, NULL);
    free(block);
    free_others(form, NULL);
    (void)malloc_trim(0);
    free(block);
}

/* One copy is back in the span when the other one is handed out. Then the neighbour comes back, for
 * which the span was still there. */
static void back_in_its_span_and_handed_out(const plan *form)
{
    const size_t count = bounded(form, form->distance);
    if (count < 2) return;
    get_others(form, NULL);
    void *block = others[count / 2], *neighbour = others[count / 2 - 1];
    others[count / 2 - 1] = NULL;
    free_others(form, NULL);
    (void)malloc_trim(0);
    free(block);
    (void)hold(form, form->size);
    free(neighbour);
    (void)malloc_trim(0);
    cut_anew_into(form, smaller(form));
    cut_anew_into(form, form->size * 3);
}

/* The first helper holds one copy, while the other goes back to the span with all its blocks. A
 * trim makes the pages fresh; without one they keep what is written in them. */
static void *park_one_copy_and_return_the_other(const plan *form, bool trims)
{
    get_others(form, NULL);
    void *block = others[bounded(form, form->distance) / 2];
    have(&first_helper, form, warm_up, NULL);
    have(&first_helper, form, free_one, block);
    free_others(form, NULL);
    if (trims) (void)malloc_trim(0);
    return block;
}

static void parked_while_cut_into_smaller(const plan *form)
{
    if (form->distance == 0) return;
    (void)park_one_copy_and_return_the_other(form, false);
    cut_anew_into(form, smaller(form));
}

static void parked_while_fresh_pages_are_cut(const plan *form)
{
    if (form->distance == 0) return;
    (void)park_one_copy_and_return_the_other(form, true);
    cut_anew_into(form, smaller(form));
}

static void parked_while_cut_into_larger(const plan *form)
{
    if (form->distance == 0) return;
    (void)park_one_copy_and_return_the_other(form, false);
    cut_anew_into(form, form->size * 3);
}

static void parked_while_cut_into_the_same(const plan *form)
{
    if (form->distance == 0) return;
    (void)park_one_copy_and_return_the_other(form, false);
    cut_anew_into(form, form->size);
}

static void parked_while_a_large_block(const plan *form)
{
    if (form->distance == 0) return;
    (void)park_one_copy_and_return_the_other(form, false);
    cut_anew_into(form, 1 << 20);
}

/* The smaller block that begins where the parked one does is free, too, beside others in use. */
static void free_what_begins_at(uintptr_t start)
{
    for (size_t i = 0; i < live_count; i++) {
        if (live[i].start == start) {
            free((void *)start);
            live[i] = live[--live_count];
            return;
        }
    }
}

static void parked_beside_a_smaller_block(const plan *form)
{
    if (form->distance == 0) return;
    void *block = park_one_copy_and_return_the_other(form, true);
    cut_anew_into(form, smaller(form));
    free_what_begins_at((uintptr_t)block);
}

/* What was cut anew is freed again, so that its pages change hands a second time. */
static void parked_while_cut_twice(const plan *form)
{
    if (form->distance == 0) return;
    (void)park_one_copy_and_return_the_other(form, false);
    cut_anew_into(form, smaller(form));
    while (live_count > 0) free((void *)live[--live_count].start);
    cut_anew_into(form, form->size * 3);
}

/* ---- the cases ------------------------------------------------------------------------------ */

static void commit_and_go_on(void *argument)
{
    const plan *form = argument;
    make_room();
    helper_start(&first_helper);
    helper_start(&second_helper);
    free(get(form, form->size)); /* the thread has a magazine */
    form->commit(form);
    have(&first_helper, form, claim, NULL);
    claim(form, NULL);
    have(&second_helper, form, claim, NULL);
    require_one_owner_each();
}

static bool is_told(const ending *result)
{
    return result->signal == SIGABRT && strncmp(result->said, "hz: ", 4) == 0;
}

static void require_one_owner(const plan *form)
{
    ending result;
    run_apart(commit_and_go_on, (void *)(uintptr_t)form, 30, &result);
    const bool lives_on = result.signal == 0 && result.status == 0;
    require(is_told(&result) || (lives_on && !form->must_die),
            "%zu bytes, %zu frees between, blocks %s: %s signal %d, status %d; it said '%.300s'",
            form->size, form->distance, form->writes ? "written" : "not written",
            result.status == STATUS_TWO_OWNERS ? "TWO OWNERS," : "", result.signal, result.status,
            result.said);
}

static void require_one_owner_at_all(void (*commit)(const plan *), bool must_die)
{
    for (size_t i = 0; i < COUNT(sizes); i++) {
        for (size_t j = 0; j < COUNT(distances); j++) {
            const size_t distance = distances[j];
            require_one_owner(&(plan){sizes[i], distance, false, must_die, commit});
            if (!must_die) require_one_owner(&(plan){sizes[i], distance, true, false, commit});
        }
    }
}

static const struct {
    const char *what;
    void (*commit)(const plan *form);
    bool must_die; /* where no harm would be done, too */
} forms[] = {
    {"freed twice by one thread", here_and_here, true},
    {"freed twice below others by one thread", here_and_here_below_others, true},
    {"freed twice while others come and go", here_while_pairs_go_on, true},
    {"freed twice after others came and went", pairs_between, true},
    {"freed twice after it was given out again", here_after_one_reuse, true},
    {"freed twice by one other thread", elsewhere_twice, true},
    {"freed elsewhere, then here", elsewhere_and_here, false},
    {"freed here, then elsewhere", here_and_elsewhere, false},
    {"freed in two other threads", in_two_other_threads, false},
    {"freed in a thread that ends, then here", in_a_thread_that_ends_and_here, false},
    {"freed here, then in a thread that ends", here_and_in_a_thread_that_ends, false},
    {"freed in two threads that end", in_two_threads_that_end, false},
    {"of a dead thread, freed in two others", a_dead_threads_block, false},
    {"freed before and after a trim", before_and_after_trim, false},
    {"back in its span and handed out", back_in_its_span_and_handed_out, false},
    {"parked while its span is cut into smaller blocks", parked_while_cut_into_smaller, false},
    {"parked while its pages come fresh into smaller blocks", parked_while_fresh_pages_are_cut,
     false},
    {"parked where a smaller block is free by now", parked_beside_a_smaller_block, false},
    {"parked while its span is cut into larger blocks", parked_while_cut_into_larger, false},
    {"parked while its span is cut into the same blocks", parked_while_cut_into_the_same, false},
    {"parked while its pages are a large block", parked_while_a_large_block, false},
    {"parked while its pages are cut twice", parked_while_cut_twice, false},
};

CHECK_IN(300, "a block that is freed twice has one owner, or the program ends")
{
    for (size_t i = 0; i < COUNT(forms); i++) {
        printf("# %s\n", forms[i].what);
        require_one_owner_at_all(forms[i].commit, forms[i].must_die);
    }
}
