/*
 * Forks at awkward moments: in a signal handler that interrupted malloc or free, and while other
 * threads hold the locks of the C library's streams and wait for memory.
 */
#include "check.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SLOTS = 200, CHURNERS = 4, CHILD_STEPS = 500, CHILD_SECONDS = 20, TIMER_US = 300 };

typedef enum way { TO_EXIT, TO_EXEC, TO_GO_ON } way;

typedef struct slot {
    unsigned char *block;
    size_t size;
} slot;

static way childs_way;
static volatile sig_atomic_t is_child;
static volatile sig_atomic_t forks;
static volatile sig_atomic_t bad_status;
static atomic_bool stop;

/* ---- a heap with a shadow ------------------------------------------------------------------- */

static size_t size_drawn(uint64_t draw)
{
    if (draw >> 60 == 0) return 300000 + draw % 100000;
    return (draw >> 32) % (draw >> 62 == 1 ? 40000 : 1000) + 2;
}

static void slot_step(slot *at, uint64_t draw)
{
    if (at->block != NULL) {
        const bool is_whole = at->block[0] == at->block[at->size - 1];
        require(is_whole && at->block[0] == (unsigned char)at->size, "a block changed");
        free(at->block);
    }
    at->size = size_drawn(draw);
    at->block = malloc(at->size);
    require(at->block != NULL, "no memory for %zu bytes", at->size);
    at->block[0] = at->block[at->size - 1] = (unsigned char)at->size;
}

static void *churn(void *seed)
{
    slot slots[SLOTS] = {{NULL, 0}};
    uint64_t state = (uint64_t)(uintptr_t)seed;
    while (!atomic_load(&stop)) {
        const uint64_t draw = random_next(&state);
        slot_step(&slots[draw % SLOTS], draw);
    }
    for (size_t i = 0; i < SLOTS; i++) free(slots[i].block);
    return NULL;
}

/* ---- forks in a handler --------------------------------------------------------------------- */

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

/* Once; a handler sets it again, so that the program goes on a little between two. */
static void set_timer(long microseconds)
{
    const struct itimerval timer = {{0, 0}, {0, microseconds}};
    (void)setitimer(ITIMER_REAL, &timer, NULL);
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
        forks++;
        set_timer(TIMER_US + forks % 100);
    }
    errno = saved;
}

static void fork_while_allocating(way chosen, long wanted)
{
    static slot slots[SLOTS];
    uint64_t state = 7;
    long left = CHILD_STEPS;
    childs_way = chosen;
    require(signal(SIGALRM, fork_now) != SIG_ERR, "signal: %s", strerror(errno));
    set_timer(TIMER_US);
    while (is_child || (forks < wanted && bad_status == 0)) {
        const uint64_t draw = random_next(&state);
        slot_step(&slots[draw % SLOTS], draw);
        if (is_child && --left == 0) _exit(0);
    }
    set_timer(0);
    require(bad_status == 0, "a child's wait status is %d", (int)bad_status);
}

CHECK_IN(60, "a child that was forked in a handler amidst malloc may exit")
{
    fork_while_allocating(TO_EXIT, 400);
}

CHECK_IN(60, "a child that was forked in a handler amidst malloc may exec")
{
    fork_while_allocating(TO_EXEC, 100);
}

CHECK_IN(60, "a child that was forked in a handler amidst malloc may go on there")
{
    fork_while_allocating(TO_GO_ON, 200);
}

static void start_threads(pthread_t *threads, size_t count, void *(*run)(void *))
{
    for (size_t i = 0; i < count; i++) {
        threads[i] = thread_start(run, (void *)(uintptr_t)(i + 1));
    }
}

static void end_threads(const pthread_t *threads, size_t count)
{
    atomic_store(&stop, true);
    for (size_t i = 0; i < count; i++) (void)thread_end(threads[i]);
}

static void block_timer(int how)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    (void)pthread_sigmask(how, &set, NULL);
}

CHECK_IN(60, "it may go on without the threads that were in malloc, too")
{
    pthread_t threads[CHURNERS];
    block_timer(SIG_BLOCK); /* the handler is to run on the main thread */
    start_threads(threads, CHURNERS, churn);
    block_timer(SIG_UNBLOCK);
    fork_while_allocating(TO_GO_ON, 100);
    end_threads(threads, CHURNERS);
}

/* ---- forks while streams are locked --------------------------------------------------------- */

static void *flush_all_streams(void *unused)
{
    while (!atomic_load(&stop)) (void)fflush(NULL);
    return unused;
}

/* getline holds the lock of its stream and allocates, and a stream that is opened or closed is
 * entered in the list of all. */
static void *read_lines(void *unused)
{
    char text[4096];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\n';
    while (!atomic_load(&stop)) {
        char *line = NULL;
        size_t bytes = 0;
        FILE *stream = fmemopen(text, sizeof text, "r");
        require(stream != NULL, "fmemopen: %s", strerror(errno));
        require(getline(&line, &bytes, stream) == sizeof text, "getline: %s", strerror(errno));
        free(line);
        (void)fclose(stream);
    }
    return unused;
}

CHECK_IN(60, "forks end while other threads allocate under the locks of streams")
{
    pthread_t flushers[2], readers[CHURNERS];
    start_threads(flushers, COUNT(flushers), flush_all_streams);
    start_threads(readers, COUNT(readers), read_lines);
    for (int i = 0; i < 80; i++) {
        const pid_t child = fork();
        if (child == 0) {
            (void)alarm(CHILD_SECONDS);
            for (size_t size = 1; size < 500000; size *= 3) free(malloc(size));
            _exit(0);
        }
        require_child_ends(child);
    }
    end_threads(flushers, COUNT(flushers));
    end_threads(readers, COUNT(readers));
}
