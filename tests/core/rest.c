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

/* At main, at one thread, and itself. It sleeps meanwhile, and is woken. */
static void burst_twice_beside_one_thread(void)
{
    rester self;
    rester_start(&self);
    require_that_a_burst_is_given_back(&self);
    require_that_a_burst_is_given_back(&self);
    wait_for_threads(3);
    rester_end(&self);
}

CHECK("what a burst left goes back while the threads rest")
{
    burst_twice_beside_one_thread();
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
    rester self;
    const int lowest = dup(0);
    (void)close(lowest);
    rester_start(&self);
    wait_for_threads(3);
    require(dup(0) == lowest, "a descriptor was opened");
    require(syscall(SYS_close_range, 3, ~0U, 0) == 0 || errno == ENOSYS, "close_range failed");
    require_that_a_burst_is_given_back(&self);
}

/* ---- forks ---------------------------------------------------------------------------------- */

static void act_as_a_child(void)
{
    require(threads_now() == 1, "%zu threads", threads_now());
    burst();
    burst_twice_beside_one_thread();
}

/* Children while the background thread watches, and while it returns memory. */
CHECK_IN(60, "a child has no background thread until it makes a thread")
{
    rester self;
    rester_start(&self);
    rester_burst(&self);
    for (int i = 0; i < 3; i++) require_of_child(act_as_a_child);
    rester_end(&self);
}

static void *fork_at_once(void *how_late)
{
    for (size_t i = 0; i < (size_t)how_late; i++) (void)syscall(SYS_gettid);
    require_of_child(act_as_a_child);
    return NULL;
}

/* The first thread forks while the one that has made it makes the background thread. */
static void fork_during_the_birth(void *how_late)
{
    (void)thread_end(thread_start(fork_at_once, how_late));
    burst_twice_beside_one_thread();
}

CHECK_IN(60, "a fork while the background thread is made leaves both processes whole")
{
    for (size_t how_late = 0; how_late < 400; how_late += 80)
        require_well(fork_during_the_birth, (void *)how_late, 30);
}

/* ---- signals, and the end ------------------------------------------------------------------- */

static void require_ends_by_handler(void (*act)(void *), void *subject)
{
    ending result;
    run_apart(act, subject, 30, &result);
    require(result.status == STATUS_OF_HANDLER, "signal %d, status %d: %s", result.signal,
            result.status, result.said);
}

static void exit_at_once(void *unused)
{
    static rester self;
    (void)unused;
    rester_start(&self);
    rester_burst(&self);
    exit(STATUS_OF_HANDLER);
}

CHECK_IN(60, "exit ends the process, whatever the background thread does")
{
    for (int i = 0; i < 4; i++) require_ends_by_handler(exit_at_once, NULL);
}

static pthread_t main_thread;

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
    require(pthread_join(main_thread, NULL) == 0, "main was not joined");
    (void)pthread_detach(thread_start(end_at_once, NULL));
    return unused;
}

static void end_with_threads_that_never_allocate(void *unused)
{
    crowd before;
    (void)unused;
    (void)atexit(end_with_status);
    crowd_start(&before, 3, end_at_once);
    crowd_end(&before);
    main_thread = pthread_self();
    (void)pthread_detach(thread_start(make_a_thread_after_main, NULL));
    pthread_exit(NULL);
}

CHECK("a process whose last threads never allocate ends with them")
{
    require_ends_by_handler(end_with_threads_that_never_allocate, NULL);
}
