/* Signals and cancellation that arrive in the middle of malloc and free. */
#include "check.h"

#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 300, THREADS = 4 };

static atomic_uint arrivals;
static atomic_bool stop;

static void churn_some(unsigned char **slots, uint64_t *state, size_t steps)
{
    for (size_t i = 0; i < steps; i++) {
        const uint64_t draw = random_next(state);
        unsigned char **slot = &slots[draw % SLOTS];
        const size_t size = (draw >> 20) % 2000 + 2;
        if (*slot != NULL) {
            require((*slot)[0] == (*slot)[1], "a block changed");
            free(*slot);
        }
        *slot = malloc(size);
        (*slot)[0] = (*slot)[1] = (unsigned char)draw;
    }
}

static void *churn(void *argument)
{
    unsigned char *slots[SLOTS] = {NULL};
    uint64_t state = (uint64_t)(uintptr_t)argument;
    while (!atomic_load(&stop)) churn_some(slots, &state, 100);
    for (size_t i = 0; i < SLOTS; i++) free(slots[i]);
    return NULL;
}

static void set_timer(long microseconds)
{
    const struct itimerval timer = {{0, microseconds}, {0, microseconds}};
    require(setitimer(ITIMER_REAL, &timer, NULL) == 0, "setitimer: %s", strerror(errno));
}

static void handle(int number, void (*handler)(int))
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    require(sigaction(number, &action, NULL) == 0, "sigaction: %s", strerror(errno));
}

/* Only what a handler may call. */
static void note_arrival(int number)
{
    struct timespec now;
    const int saved = errno;
    (void)number;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    (void)getpid();
    atomic_fetch_add(&arrivals, 1);
    errno = saved;
}

CHECK_IN(60, "handlers interrupt malloc and free without harm")
{
    pthread_t threads[THREADS];
    handle(SIGALRM, note_arrival);
    for (size_t i = 0; i < THREADS; i++) {
        threads[i] = thread_start(churn, (void *)(uintptr_t)(i + 1));
    }
    set_timer(500);
    while (atomic_load(&arrivals) < 300) (void)usleep(1000);
    set_timer(0);
    atomic_store(&stop, 1);
    for (size_t i = 0; i < THREADS; i++) (void)thread_end(threads[i]);
}

static void exit_now(int number)
{
    (void)number;
    _exit(7);
}

CHECK_IN(60, "a handler that interrupts malloc may end the process")
{
    for (long i = 0; i < 30; i++) {
        int status = 0;
        const pid_t child = fork();
        if (child == 0) {
            handle(SIGALRM, exit_now);
            set_timer(100 + i * 20);
            (void)churn((void *)(uintptr_t)(i + 1));
        }
        require(child > 0 && waitpid(child, &status, 0) == child, "fork: %s", strerror(errno));
        require(WIFEXITED(status) && WEXITSTATUS(status) == 7, "child %ld: wait status %d", i,
                status);
    }
}

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
#endif
    free(block);
    atomic_store(&reached_end, 1);
    pthread_testcancel();
    return unused;
}

CHECK("malloc and free are no cancellation points")
{
    void *result = NULL;
    const pthread_t thread = thread_start(allocate_while_cancelled, NULL);
    (void)pthread_join(thread, &result);
    require(atomic_load(&reached_end), "the thread was cancelled within malloc or free");
    require(result == PTHREAD_CANCELED, "the thread was not cancelled at all");
}

static void free_block(void *block)
{
    free(block);
}

static void *work_until_cancelled(void *argument)
{
    unsigned char *slots[SLOTS] = {NULL};
    uint64_t state = (uint64_t)(uintptr_t)argument;
    for (;;) {
        void *block = malloc(300);
        pthread_cleanup_push(free_block, block);
        churn_some(slots, &state, 5);
        pthread_testcancel();
        pthread_cleanup_pop(1);
    }
    return NULL;
}

CHECK_IN(60, "cancelled threads hold no lock")
{
    for (size_t i = 0; i < 400; i++) {
        void *result = NULL;
        const pthread_t thread = thread_start(work_until_cancelled, (void *)(uintptr_t)(i + 1));
        if (i % 3 == 0) {
            free(malloc(i));
            (void)sched_yield();
        }
        (void)pthread_cancel(thread);
        (void)pthread_join(thread, &result);
        require(result == PTHREAD_CANCELED, "thread %zu ended by itself", i);
    }
    unsigned char *slots[SLOTS] = {NULL};
    uint64_t state = 1;
    churn_some(slots, &state, 100000);
}
