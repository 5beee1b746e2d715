/*
 * The background thread of a program that rests.
 *
 * What was not used for a while goes back to the system on the slow paths of malloc and free, which
 * a program that rests does not take. So a program that has threads gets one more: the background
 * thread. It is made by the program's own pthread_create (threads.c), and nowhere else.
 *
 *   watching   every rest_ms it looks whether a thread of the program has visited the depots since;
 *              while one has, the program sees to its memory itself
 *   returning  when the last visit was rest_ms ago it does all that is due, in rounds decay_ms
 *              apart, until some rounds in a row have found nothing, or the program works again
 *   sleeping   then it sleeps without a timer, until a slow free wakes it
 *
 * A free that comes just before it falls asleep may read the word before that says so, and not wake
 * it. The word says so for the last rounds already: by the last one, which looks again, every store
 * of such a free is visible, and every later free wakes it.
 *
 * The background thread ends when only main is left, and either nothing is left to return, or main
 * goes on working. The last thread that has a heap ends it at once, and waits for that: the C
 * library calls the handlers of `exit` on the last thread of a process, which must be one of the
 * program's. So only a thread that has a heap brings it.
 *
 * It has no heap and no descriptor, and no signal reaches it but those that it would cause itself.
 * It makes only system calls that frees and locks make, as the program may have closed its sandbox
 * meanwhile.
 */
#include "rest.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>

#include "internal.h"
#include "os.h"
#include "own_signals.h"

enum {
    REST_STACK_BYTES = 128 << 10, /* beside what the C library puts there */
    VAIN_MOST = 4,  /* rounds that found nothing, in a row, before it sleeps. The first look at a
                       depot only notes what it holds, and pages are due decay_ms after their free */
    ALONE_MOST = 8, /* times in a row that it finds main alone and at work, before it ends */
    SLACK_MS = 20,  /* a pause is so much and a quarter longer than decay_ms: where the program
                       works, its own ticks come first. A sleep may be so much late, too */
};

hz_rest_state hz_rest;

/* No thread waits for one that makes the background thread, as a library that stands between may
 * make threads of its own for that, and wait for them. */
typedef enum phase {
    ABSENT = 0, /* there is none */
    CHANGING,   /* a thread of the program makes it, or waits for its end */
    WORKING,
    ENDED,   /* it has decided to end, and was not joined yet */
    REFUSED, /* the system refused one: hz tries no more */
} phase;

static struct {
    _Atomic uint32_t phase;       /* the thread that made it CHANGING has the next two fields */
    pthread_t thread;             /* the background thread */
    const hz_thread_calls *calls; /* that made it */
    _Atomic uint32_t made;        /* threads that the program made */
} background;

static bool phase_replace(phase from, phase to)
{
    uint32_t expected = from;
    return hz_atomic_replace(&background.phase, &expected, to);
}

/* ---- waking and sleeping -------------------------------------------------------------------- */

static bool word_replace(uint32_t from, uint32_t to)
{
    return hz_atomic_replace(&hz_rest.word, &from, to);
}

HZ_SLOW void hz_rest_wake(void)
{
    const int saved = errno;
    if (word_replace(HZ_REST_SLEEPS, HZ_REST_WATCHES)) hz_os_wake_one(&hz_rest.word);
    errno = saved;
}

static bool is_ending(void)
{
    return hz_atomic_peek(&hz_rest.word) == HZ_REST_ENDS;
}

/* Sleeps; false when it was woken, and when it slept much longer, as in a process that was stopped.
 * A signal of the C library, such as that of setuid, cuts one wait short: the sleep goes on. */
static bool sleep_for(uint32_t ms)
{
    const uint32_t word = hz_atomic_peek(&hz_rest.word), began_ms = hz_os_now_ms();
    if (word == HZ_REST_ENDS) return false;
    uint32_t passed_ms = 0;
    while (passed_ms < ms && hz_atomic_peek(&hz_rest.word) == word) {
        hz_os_sleep_while_ms(&hz_rest.word, word, ms - passed_ms);
        passed_ms = hz_os_now_ms() - began_ms;
    }
    return hz_atomic_peek(&hz_rest.word) == word && passed_ms <= 2 * ms + SLACK_MS;
}

/* ---- the background thread ------------------------------------------------------------------ */

/* Whether only main is left. Threads that never had a heap end uncounted, so that the background
 * thread may stay without need; main's own end counts, so that it may end too early. */
static bool is_program_single(void)
{
    return (int32_t)(hz_atomic_peek(&background.made) - hz_heap_ended()) <= 0 &&
           hz_heap_count() <= 1;
}

/* If the program makes a thread meanwhile, either this one sees it, or it sees that this one has
 * ended. */
static bool end_if_single(void)
{
    if (!is_program_single() || !phase_replace(WORKING, ENDED)) return false;
    return is_program_single() || !phase_replace(ENDED, WORKING);
}

/* The program as the background thread sees it. */
typedef struct look {
    bool is_single;
    uint32_t made;
} look;

static look look_now(void)
{
    return (look){is_program_single(), hz_atomic_peek(&background.made)};
}

/* Called where the program has worked since `before`; true when the background thread ends, as main
 * has been alone then for several times in a row. Fewer would not do: main may only join the
 * threads that have ended, and then rest, and what they left is to be returned. If threads came and
 * went meanwhile, main was not alone. */
static bool end_if_alone_again(look before, uint32_t *alone)
{
    const bool was_alone = before.is_single && hz_atomic_peek(&background.made) == before.made;
    *alone = was_alone ? *alone + 1 : 0;
    return *alone >= ALONE_MOST && end_if_single();
}

/* Waits for a whole rest_ms in which the program does not visit the depots; false when the
 * background thread is to end. */
static bool await_rest(uint32_t *alone)
{
    const uint32_t rest_ms = (uint32_t)hz_cfg.rest_ms;
    while (!is_ending()) {
        const look before = look_now();
        const uint32_t seen_ms = hz_decay_seen_ms(), passed_ms = hz_os_now_ms() - seen_ms;
        /* A rest that began long ago counts anew: this thread has just been made or woken, or did
           not see all of it. */
        const bool is_whole = sleep_for(passed_ms < rest_ms ? rest_ms - passed_ms : rest_ms);
        if (hz_decay_seen_ms() != seen_ms) {
            if (end_if_alone_again(before, alone)) return false;
        } else if (is_whole) {
            return true;
        }
    }
    return false;
}

static bool return_what_is_due(void)
{
    bool any = false;
    while (!is_ending() && hz_decay()) any = true;
    hz_count(HZ_STAT_background_rounds, 1);
    return any;
}

/* Returns what is due until nothing is left; false when the program works again before. */
static bool return_all(void)
{
    const uint32_t decay_ms = (uint32_t)hz_live(decay_ms);
    hz_pages_end_huge();
    for (uint32_t vain = 0; vain < VAIN_MOST;) {
        vain = return_what_is_due() ? 0 : vain + 1;
        if (vain > 0) (void)word_replace(HZ_REST_WATCHES, HZ_REST_SLEEPS);
        const uint32_t seen_ms = hz_decay_seen_ms();
        if (!sleep_for(decay_ms + decay_ms / 4 + SLACK_MS)) return false;
        if (hz_decay_seen_ms() != seen_ms) return false;
    }
    return true;
}

static void *rest_run(void *unused)
{
    hz_heap_renounce(); /* of a library that stands between, whose code ran before this */
    uint32_t alone = 0;
    while (await_rest(&alone)) {
        const look before = look_now();
        const bool is_done = return_all();
        if (is_done ? end_if_single() : end_if_alone_again(before, &alone)) break;
        while (is_done && hz_atomic_peek(&hz_rest.word) == HZ_REST_SLEEPS)
            hz_os_sleep_while(&hz_rest.word, HZ_REST_SLEEPS);
        (void)word_replace(HZ_REST_SLEEPS, HZ_REST_WATCHES);
    }
    return unused;
}

/* ---- its birth and its end ------------------------------------------------------------------ */

static void background_join(void)
{
    int cancellation;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancellation);
    background.calls->join(background.thread, NULL);
    pthread_setcancelstate(cancellation, NULL);
}

/* A thread gets the scheduling of the one that makes it. In real time the background thread could
 * keep the program's threads from their CPU for as long as it takes to return all memory. */
static void set_small_and_usual(pthread_attr_t *attributes)
{
    const struct sched_param none = {0};
    const int policy = sched_getscheduler(0);
    const hz_thread_calls *calls = background.calls;
    pthread_attr_init(attributes);
    const size_t least = calls->least != NULL ? calls->least(attributes) : 0;
    pthread_attr_setstacksize(attributes, REST_STACK_BYTES + least);
    if (policy != SCHED_FIFO && policy != SCHED_RR) return;
    pthread_attr_setinheritsched(attributes, PTHREAD_EXPLICIT_SCHED);
    pthread_attr_setschedpolicy(attributes, SCHED_OTHER);
    pthread_attr_setschedparam(attributes, &none);
}

static int background_make(void)
{
    pthread_attr_t attributes;
    sigset_t before;
    set_small_and_usual(&attributes);
    hz_own_signals_block(&before);
    const int failure = background.calls->make(&background.thread, &attributes, rest_run, NULL);
    hz_own_signals_restore(&before);
    pthread_attr_destroy(&attributes);
    return failure;
}

static void background_bring(const hz_thread_calls *calls)
{
    const bool has_ended = phase_replace(ENDED, CHANGING);
    if (!has_ended && !phase_replace(ABSENT, CHANGING)) return;
    if (has_ended) background_join();
    hz_atomic_poke(&hz_rest.word, HZ_REST_WATCHES);
    background.calls = calls;
    hz_atomic_put(&background.phase, background_make() == 0 ? WORKING : REFUSED);
}

/* Where no thread has a heap, the program has a malloc of its own before hz's. */
static bool has_heap(void)
{
    if (hz_heap_mine != &hz_heap_none) return true;
    return hz_heap_first() != NULL && hz_heap_enter() != &hz_heap_none;
}

void hz_rest_thread_made(const hz_thread_calls *calls)
{
    if (!hz_start()) return;
    const int saved = errno;
    hz_atomic_add(&background.made, 1);
    hz_background_start();
    /* A write even where it works: it publishes that one more thread was made. */
    if (hz_cfg.rest_ms != 0 && hz_live(background_period_us) == 0 && has_heap() &&
        !phase_replace(WORKING, WORKING))
        background_bring(calls);
    errno = saved;
}

bool hz_rest_has_thread(void)
{
    return hz_atomic_get(&background.phase) == WORKING;
}

/* A thread that is bringing the background thread has a heap, and ends it later. */
void hz_rest_end(void)
{
    hz_background_end();
    if (!phase_replace(WORKING, CHANGING) && !phase_replace(ENDED, CHANGING)) return;
    hz_atomic_put(&hz_rest.word, HZ_REST_ENDS);
    hz_os_wake_one(&hz_rest.word);
    background_join();
    hz_atomic_put(&background.phase, ABSENT);
}

/* The child has no background thread; it gets one when it makes a thread. */
void hz_rest_after_fork(void)
{
    hz_atomic_poke(&background.phase, ABSENT);
    hz_atomic_poke(&background.made, 0);
    hz_atomic_poke(&hz_rest.word, HZ_REST_WATCHES);
}
