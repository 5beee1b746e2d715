/*
 * Forks out of a process whose other threads never stop allocating, or hold the locks of the C
 * library's streams and wait for memory: the child can allocate at once, whatever those threads
 * held at that moment. TEST_FORKS changes the number of forks.
 */
#include "churn.h"

#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHURNERS = 8, CHILD_STEPS = 200 };

static crowd churners;
static size_t number; /* of the fork */

static size_t fork_count(void)
{
    return (size_t)number_chosen("TEST_FORKS", 20);
}

static void allocate_in_child(void)
{
    churn_steps(number, CHILD_STEPS);
}

static void fork_often(size_t count)
{
    for (size_t i = 0; i < count; i++, number++) require_of_child(allocate_in_child);
}

CHECK_IN(120, "forks among eight churning threads give children that can allocate")
{
    crowd_start(&churners, CHURNERS, churn_run);
    fork_often(fork_count());
    churn_end(&churners);
}

static atomic_uint handler_runs;

static void allocate_in_handler(void)
{
    free(malloc(100 + atomic_fetch_add(&handler_runs, 1) % 2000));
    free(malloc(500000));
}

static void *allocate_in_thread(void *unused)
{
    allocate_in_child();
    return unused;
}

static void start_thread_in_handler(void)
{
    if (atomic_load(&handler_runs) > 0) thread_end(thread_start(allocate_in_thread, NULL));
}

static void register_before_hz(void)
{
    pthread_atfork(NULL, NULL, start_thread_in_handler);
}

__attribute__((section(".preinit_array"),
               used)) static void (*before_hz)(void) = register_before_hz;

CHECK_IN(120, "atfork handlers may allocate, and start threads that do")
{
    pthread_atfork(allocate_in_handler, allocate_in_handler, allocate_in_handler);
    crowd_start(&churners, CHURNERS, churn_run);
    fork_often(fork_count());
    churn_end(&churners);
    require(atomic_load(&handler_runs) > 0, "no handler ran");
}

static void *fork_from_thread(void *unused)
{
    for (size_t i = 0; i < fork_count() / 4; i++) require_of_child(allocate_in_child);
    return unused;
}

CHECK_IN(120, "two threads can fork at once")
{
    crowd forkers;
    crowd_start(&churners, CHURNERS, churn_run);
    crowd_start(&forkers, 2, fork_from_thread);
    crowd_end(&forkers);
    churn_end(&churners);
}

extern char **environ;

CHECK_IN(120, "posix_spawn and vfork leave the parent whole")
{
    char program[] = "/bin/true";
    char *arguments[] = {program, NULL};
    crowd_start(&churners, CHURNERS, churn_run);
    for (size_t i = 0; i < 20; i++) {
        pid_t child = 0;
        require(posix_spawn(&child, program, NULL, NULL, arguments, environ) == 0, "posix_spawn");
        require_child_ends(child);
        child = vfork();
        if (child == 0) {
            (void)execv(program, arguments);
            _exit(1);
        }
        require_child_ends(child);
    }
    churn_end(&churners);
}

/* ---- forks while streams are locked --------------------------------------------------------- */

/* getline holds the lock of its stream and allocates, and a stream that is opened or closed is
 * entered in the list of all. */
static void *use_streams(void *seed)
{
    char text[4096];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\n';
    while (!atomic_load(&churn_is_over)) {
        char *line = NULL;
        size_t bytes = 0;
        if ((uintptr_t)seed % 3 == 0) {
            (void)fflush(NULL);
            continue;
        }
        FILE *stream = fmemopen(text, sizeof text, "r");
        require(stream != NULL, "fmemopen: %s", strerror(errno));
        require(getline(&line, &bytes, stream) == sizeof text, "getline: %s", strerror(errno));
        free(line);
        (void)fclose(stream);
    }
    return NULL;
}

CHECK_IN(60, "forks end while other threads allocate under the locks of streams")
{
    crowd readers;
    crowd_start(&readers, 6, use_streams);
    for (size_t i = 0; i < 2 * fork_count(); i++) require_of_child(allocate_in_child);
    churn_end(&readers);
}
