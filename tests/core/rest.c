/*
 * A process that has threads and rests gives its memory back, by a background thread that no
 * program notices: it changes nothing about forks, signals and the end of a process. HZ_REST_MS and
 * HZ_DECAY_MS say how long that takes. Rights, sandboxes and limits: rest_limits.c.
 */
#include "rester.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>

enum { STATUS_OF_HANDLER = 17 };

/* ---- the background thread ------------------------------------------------------------------ */

CHECK("a program without threads gets none")
{
    burst();
    burst();
    require(threads_now() == 1, "it has %zu threads", threads_now());
}

CHECK("what a burst left goes back while the threads rest")
{
    rester self;
    rester_start(&self);
    require_that_a_burst_is_given_back(&self);
    require_that_a_burst_is_given_back(&self); /* it slept meanwhile, and was woken */
    require(threads_now() == 3, "%zu threads, not main, one and the background thread",
            threads_now());
    rester_end(&self);
}

CHECK("many threads bring one background thread")
{
    enum { MANY = 12 };
    rester all[MANY];
    for (size_t i = 0; i < MANY; i++) rester_start(&all[i]);
    wait_for_threads(MANY + 2);
    for (size_t i = 0; i < MANY; i++) rester_end(&all[i]);
}

CHECK("at rest the background thread sleeps for good")
{
    rester self;
    rester_start(&self);
    require_that_a_burst_is_given_back(&self);
    long background = 0;
    char before[256] = "", now[256];
    background_seen(&background);
    for (int alike = 0; alike < LOOKS_ALIKE; alike++) {
        status_line(background, "voluntary_ctxt_switches:", now, sizeof now);
        if (strcmp(before, now) != 0) alike = 0;
        (void)strcpy(before, now);
        pass(LOOK_MS);
    }
    rester_end(&self);
}

CHECK("when the threads have ended so does the background thread, and comes again with the next")
{
    const size_t before = resident_bytes();
    for (int round = 0; round < 3; round++) {
        rester self;
        rester_start(&self);
        wait_for_threads(3);
        rester_burst(&self);
        rester_end(&self);
        wait_until_given_back(before);
        wait_for_threads(1);
    }
}

CHECK("it opens no descriptor, and survives that all are closed")
{
    const size_t before = numbers_in("/proc/self/fd", NULL);
    rester self;
    rester_start(&self);
    wait_for_threads(3);
    require(numbers_in("/proc/self/fd", NULL) == before, "a descriptor was opened");
    require(syscall(SYS_close_range, 3, ~0U, 0) == 0 || errno == ENOSYS, "close_range failed");
    require_that_a_burst_is_given_back(&self);
}

static void *allocate_a_little(void *unused)
{
    free(malloc(BLOCK_BYTES));
    return unused;
}

CHECK_IN(60, "two thousand threads come and go beside one background thread")
{
    for (int i = 0; i < 2000; i++) {
        pthread_t thread;
        require(pthread_create(&thread, NULL, allocate_a_little, NULL) == 0, "no thread %d", i);
        require(pthread_join(thread, NULL) == 0, "thread %d was not joined", i);
        if (i % 200 == 0) require(threads_now() <= 4, "%zu threads", threads_now());
    }
    wait_for_threads(1);
}

/* ---- forks ---------------------------------------------------------------------------------- */

static void act_as_a_child(void *unused)
{
    (void)unused;
    require(threads_now() == 1, "a child has %zu threads", threads_now());
    burst();
    rester own;
    rester_start(&own);
    require_that_a_burst_is_given_back(&own);
    require(threads_now() == 3, "%zu threads, not main, one and the background thread",
            threads_now());
    rester_end(&own);
}

static void require_children(int count)
{
    for (int i = 0; i < count; i++) {
        ending result;
        run_apart(act_as_a_child, NULL, 30, &result);
        require(result.signal == 0 && result.status == 0, "a child: signal %d, status %d: %s",
                result.signal, result.status, result.said);
    }
}

CHECK_IN(60, "a child has no background thread until it makes a thread")
{
    rester self;
    rester_start(&self);
    rester_burst(&self);
    require_children(3); /* while the background thread watches, and while it returns memory */
    rester_end(&self);
}

static void *fork_at_once(void *how_late)
{
    for (int i = 0; i < *(int *)how_late; i++) (void)syscall(SYS_gettid);
    require_children(1);
    return NULL;
}

/* The first thread forks while the one that has made it makes the background thread. */
static void fork_during_the_birth(void *how_late)
{
    pthread_t thread;
    require(pthread_create(&thread, NULL, fork_at_once, how_late) == 0, "no thread");
    require(pthread_join(thread, NULL) == 0, "it was not joined");
    rester self;
    rester_start(&self);
    require_that_a_burst_is_given_back(&self);
    rester_end(&self);
}

CHECK_IN(60, "a fork while the background thread is made leaves both processes whole")
{
    for (int how_late = 0; how_late < 400; how_late += 50) {
        ending result;
        run_apart(fork_during_the_birth, &how_late, 30, &result);
        require(result.signal == 0 && result.status == 0, "signal %d, status %d: %s", result.signal,
                result.status, result.said);
    }
}

/* ---- signals, and the end ------------------------------------------------------------------- */

static atomic_int handled;

static void handle(int signal)
{
    (void)signal;
    atomic_fetch_add(&handled, 1);
}

CHECK("no handler runs on the background thread")
{
    sigset_t one, pending;
    (void)sigemptyset(&one);
    (void)sigaddset(&one, SIGUSR1);
    (void)signal(SIGUSR1, handle);
    (void)pthread_sigmask(SIG_BLOCK, &one, NULL);
    rester self;
    rester_start(&self); /* its mask is main's */
    wait_for_threads(3);
    require(kill(getpid(), SIGUSR1) == 0, "kill: %s", strerror(errno));
    require_that_a_burst_is_given_back(&self);
    require(sigpending(&pending) == 0 && sigismember(&pending, SIGUSR1) == 1, "it is not pending");
    require(atomic_load(&handled) == 0, "a handler ran");
    rester_end(&self);
}

static void exit_at_once(void *unused)
{
    (void)unused;
    static rester self;
    rester_start(&self);
    rester_burst(&self);
    exit(STATUS_OF_HANDLER);
}

CHECK_IN(60, "exit ends the process, whatever the background thread does")
{
    for (int i = 0; i < 8; i++) {
        ending result;
        run_apart(exit_at_once, NULL, 30, &result);
        require(result.status == STATUS_OF_HANDLER, "signal %d, status %d: %s", result.signal,
                result.status, result.said);
    }
}

static rester last;  /* thread of a process whose main has ended */
static pid_t helper; /* a thread that lets it go, and may end after it */

static void tell_thread(void)
{
    const pid_t self = (pid_t)syscall(SYS_gettid);
    _exit(self == last.tid || self == helper ? STATUS_OF_HANDLER : 1);
}

typedef enum how { IN_THE_MIDDLE, AT_REST, CANCELLED, HOWS } how;

static how last_ends;
static pthread_t main_thread;

static void *end_last(void *unused)
{
    helper = (pid_t)syscall(SYS_gettid);
    require(pthread_join(main_thread, NULL) == 0, "main was not joined");
    if (last_ends == CANCELLED)
        (void)pthread_cancel(last.thread);
    else
        atomic_store(&last.is_let_go, true);
    return unused;
}

static void main_ends_first(void *ends)
{
    pthread_t other;
    (void)atexit(tell_thread);
    last_ends = *(how *)ends;
    main_thread = pthread_self();
    rester_start(&last);
    rester_burst(&last);
    if (last_ends != IN_THE_MIDDLE) pass(200);
    require(pthread_create(&other, NULL, end_last, NULL) == 0, "no thread");
    (void)pthread_detach(other);
    pthread_exit(NULL);
}

/* The handlers of `exit` run on the last thread: where that is the background thread, or the
 * process waits for it, one of these fails. */
CHECK_IN(60, "a process whose main has ended ends with its last thread")
{
    for (how ends = IN_THE_MIDDLE; ends < HOWS; ends++) {
        for (int i = 0; i < 2; i++) {
            ending result;
            run_apart(main_ends_first, &ends, 30, &result);
            require(result.status == STATUS_OF_HANDLER, "signal %d, status %d: %s", result.signal,
                    result.status, result.said);
        }
    }
}

static void end_with_status(void)
{
    _exit(STATUS_OF_HANDLER);
}

static void *end_at_once(void *unused)
{
    return unused;
}

/* Its stack is one that was in use before, so that the C library allocates nothing. */
static void *make_a_thread_after_main(void *unused)
{
    pthread_t other;
    require(pthread_join(main_thread, NULL) == 0, "main was not joined");
    require(pthread_create(&other, NULL, end_at_once, NULL) == 0, "no thread");
    (void)pthread_detach(other);
    return unused;
}

static void end_with_threads_that_never_allocate(void *unused)
{
    pthread_t thread, before[3];
    (void)unused;
    (void)atexit(end_with_status);
    for (size_t i = 0; i < COUNT(before); i++)
        require(pthread_create(&before[i], NULL, end_at_once, NULL) == 0, "no thread");
    for (size_t i = 0; i < COUNT(before); i++) (void)pthread_join(before[i], NULL);
    main_thread = pthread_self();
    require(pthread_create(&thread, NULL, make_a_thread_after_main, NULL) == 0, "no thread");
    (void)pthread_detach(thread);
    pthread_exit(NULL);
}

CHECK("a process whose last threads never allocate ends with them")
{
    ending result;
    run_apart(end_with_threads_that_never_allocate, NULL, 20, &result);
    require(result.status == STATUS_OF_HANDLER, "signal %d, status %d: %s", result.signal,
            result.status, result.said);
}
