/*
 * Forks out of a process whose other threads never stop allocating: the child can allocate at once,
 * whatever those threads held at that moment. TEST_FORKS changes the number of forks.
 */
#include "check.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHURNERS = 8, SLOTS = 200, CHILD_STEPS = 200, CHILD_SECONDS = 30 };

static atomic_bool stop;
static atomic_uint handler_runs;
static void *_Atomic exchange[64]; /* blocks on their way from one thread to another */

static void churn_step(void **slots, uint64_t *state)
{
    const uint64_t draw = random_next(state);
    void **slot = &slots[draw % SLOTS];
    if (draw >> 60 == 0) {
        *slot = atomic_exchange(&exchange[(draw >> 20) % COUNT(exchange)], *slot);
        return;
    }
    free(*slot);
    const size_t size = (draw >> 50 == 0) ? 300000 : (draw >> 32) % 3000 + 1;
    *slot = draw >> 59 == 3 ? realloc(malloc(10), size + 1) : malloc(size);
    require(*slot != NULL, "no memory for %zu bytes", size);
    *(volatile char *)*slot = 1;
}

static void *churn(void *argument)
{
    void *slots[SLOTS] = {NULL};
    uint64_t state = (uint64_t)(uintptr_t)argument;
    while (!atomic_load_explicit(&stop, memory_order_relaxed)) churn_step(slots, &state);
    for (size_t i = 0; i < SLOTS; i++) free(slots[i]);
    return NULL;
}

static void start_churn(pthread_t *threads)
{
    for (size_t i = 0; i < CHURNERS; i++) {
        threads[i] = thread_start(churn, (void *)(uintptr_t)(i + 1));
    }
}

static void end_churn(const pthread_t *threads)
{
    atomic_store(&stop, 1);
    for (size_t i = 0; i < CHURNERS; i++) (void)thread_end(threads[i]);
}

static void child_steps(uint64_t seed)
{
    void *slots[SLOTS] = {NULL};
    for (size_t i = 0; i < CHILD_STEPS; i++) churn_step(slots, &seed);
    for (size_t i = 0; i < SLOTS; i++) free(slots[i]);
}

static void require_good_child(pid_t child, size_t number)
{
    int status = 0;
    require(child > 0, "fork %zu: %s", number, strerror(errno));
    while (waitpid(child, &status, 0) < 0) require(errno == EINTR, "waitpid: %s", strerror(errno));
    require(!(WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM), "child %zu hung for %d s",
            number, CHILD_SECONDS);
    require(status == 0, "child %zu: wait status %d", number, status);
}

static void fork_once(size_t number)
{
    const pid_t child = fork();
    if (child == 0) {
        alarm(CHILD_SECONDS);
        child_steps(number);
        _exit(0);
    }
    require_good_child(child, number);
}

static size_t fork_count(void)
{
    return (size_t)number_chosen("TEST_FORKS", 20);
}

CHECK_IN(120, "forks among eight churning threads give children that can allocate")
{
    pthread_t threads[CHURNERS];
    start_churn(threads);
    for (size_t i = 0; i < fork_count(); i++) fork_once(i);
    end_churn(threads);
}

static void allocate_in_handler(void)
{
    free(malloc(100 + atomic_fetch_add(&handler_runs, 1) % 2000));
    free(malloc(500000));
}

CHECK_IN(120, "atfork handlers may allocate")
{
    pthread_t threads[CHURNERS];
    for (int i = 0; i < 3; i++) {
        require(pthread_atfork(allocate_in_handler, allocate_in_handler, allocate_in_handler) == 0,
                "pthread_atfork");
    }
    start_churn(threads);
    for (size_t i = 0; i < fork_count(); i++) fork_once(i);
    end_churn(threads);
    require(atomic_load(&handler_runs) > 0, "no handler ran");
}

static void child_with_threads(size_t number)
{
    pthread_t threads[CHURNERS];
    const pid_t child = fork();
    if (child == 0) {
        alarm(CHILD_SECONDS);
        start_churn(threads);
        child_steps(number);
        fork_once(number + 1000);
        end_churn(threads);
        exit(0); /* through the exit handlers */
    }
    require_good_child(child, number);
}

CHECK_IN(120, "children start threads of their own and fork again")
{
    pthread_t threads[CHURNERS];
    start_churn(threads);
    for (size_t i = 0; i < fork_count() / 10; i++) child_with_threads(i);
    end_churn(threads);
}

CHECK("blocks of the parent can be freed in the child, and stay the parent's")
{
    enum { BLOCKS = 5000 };
    static char *blocks[BLOCKS];
    for (size_t i = 0; i < BLOCKS; i++) {
        blocks[i] = malloc(i % 900 + 1);
        blocks[i][0] = (char)i;
    }
    const pid_t child = fork();
    if (child == 0) {
        for (size_t i = 0; i < BLOCKS; i++) {
            require(blocks[i][0] == (char)i, "block %zu changed", i);
            free(blocks[i]);
        }
        _exit(0);
    }
    require_good_child(child, 0);
    for (size_t i = 0; i < BLOCKS; i++) {
        require(blocks[i][0] == (char)i, "block %zu of the parent changed", i);
        free(blocks[i]);
    }
}

static void *fork_from_thread(void *unused)
{
    for (size_t i = 0; i < fork_count() / 4; i++) fork_once(i);
    return unused;
}

CHECK_IN(120, "two threads can fork at once")
{
    pthread_t threads[CHURNERS];
    pthread_t forkers[2];
    start_churn(threads);
    for (size_t i = 0; i < COUNT(forkers); i++) {
        forkers[i] = thread_start(fork_from_thread, NULL);
    }
    for (size_t i = 0; i < COUNT(forkers); i++) (void)thread_end(forkers[i]);
    end_churn(threads);
}

extern char **environ;

CHECK_IN(120, "posix_spawn and vfork leave the parent whole")
{
    pthread_t threads[CHURNERS];
    char program[] = "/bin/true";
    char *arguments[] = {program, NULL};
    start_churn(threads);
    for (size_t i = 0; i < 20; i++) {
        pid_t child = 0;
        require(posix_spawn(&child, program, NULL, NULL, arguments, environ) == 0,
                "posix_spawn failed");
        require_good_child(child, i);
        child = vfork();
        if (child == 0) {
            (void)execv(program, arguments);
            _exit(1);
        }
        require_good_child(child, i);
    }
    end_churn(threads);
}
