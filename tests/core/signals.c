/*
 * Signals and cancellation that arrive in the middle of malloc and free: handlers that fork there,
 * and children that go on from there.
 */
#include "churn.h"

#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHILD_STEPS = 500, CHILD_SECONDS = 20, TIMER_US = 300 };

/* Once; a handler sets it again, so that the program goes on a little between two. */
static void set_timer(long microseconds)
{
    const struct itimerval timer = {{0, 0}, {0, microseconds}};
    (void)setitimer(ITIMER_REAL, &timer, NULL);
}

/* ---- forks in a handler --------------------------------------------------------------------- */

typedef enum way { TO_EXIT, TO_EXEC, TO_GO_ON } way;

static way childs_way;
static volatile sig_atomic_t is_child, arrivals, bad_status;

static void take_the_childs_way(void)
{
    char program[] = "/bin/true";
    char *arguments[] = {program, NULL};
    (void)signal(SIGALRM, SIG_DFL);
    (void)alarm(CHILD_SECONDS);
    is_child = 1;
    if (childs_way == TO_GO_ON) return;
    if (childs_way == TO_EXEC) (void)execv(program, arguments);
    _exit(childs_way == TO_EXIT ? 0 : 1);
}

static void fork_now(int number)
{
    const int saved = errno;
    int status = 0;
    (void)number;
    const pid_t child = fork();
    if (child == 0) {
        take_the_childs_way();
    } else {
        while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
        if (status != 0) bad_status = status;
        arrivals++;
        set_timer(TIMER_US + arrivals % 100);
    }
    errno = saved;
}

static void fork_while_allocating(way chosen, long wanted)
{
    static churn own = {.state = 7};
    long left = CHILD_STEPS;
    arrivals = 0;
    childs_way = chosen;
    require(signal(SIGALRM, fork_now) != SIG_ERR, "signal: %s", strerror(errno));
    set_timer(TIMER_US);
    while (is_child || (arrivals < wanted && bad_status == 0)) {
        churn_step(&own);
        if (is_child && --left == 0) _exit(0);
    }
    set_timer(0);
    require(bad_status == 0, "a child's wait status is %d", (int)bad_status);
}

CHECK_IN(120, "a child that was forked in a handler amidst malloc may exit, exec or go on there")
{
    fork_while_allocating(TO_EXIT, 300);
    fork_while_allocating(TO_EXEC, 80);
    fork_while_allocating(TO_GO_ON, 150);
}

/* ---- handlers and cancellation -------------------------------------------------------------- */

static atomic_bool reached_end;

/* With a cancellation pending, any cancellation point would end the thread. */
static void *allocate_while_cancelled(void *unused)
{
    void *block = NULL;
    (void)pthread_cancel(pthread_self());
    for (size_t size = 1; size < 3000000; size = size * 2 + 1) {
        free(malloc(size));
        free(calloc(1, size));
        block = realloc(block, size);
        free(memalign(256, size));
    }
    (void)malloc_trim(0);
#ifdef __GLIBC__
    (void)mallinfo2();
    malloc_stats(); /* writes to stderr, which is one */
#endif
    free(block);
    atomic_store(&reached_end, true);
    pthread_testcancel();
    return unused;
}

CHECK("malloc, free and their kin are no cancellation points")
{
    void *result = thread_end(thread_start(allocate_while_cancelled, NULL));
    require(atomic_load(&reached_end), "the thread was cancelled within malloc or free");
    require(result == PTHREAD_CANCELED, "the thread was not cancelled at all");
}
