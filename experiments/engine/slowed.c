/*
 * Slows a server down by a known share of its own CPU time; preload it.
 *
 * Whenever the server asks for events, the CPU time that the process has used so far is read, and
 * the share of it that is not paid yet is spent in arithmetic, which touches no memory.
 * SLOWED_SHARE is the share (0.1: ten percent more); at 0 nothing is spent and only the clock is
 * read. What was spent and what the process used by itself is kept in the file SLOWED_ACCOUNT.PID.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
    LEAST_NS = 100000, /* a debt that is paid: reading clocks costs little beside it */
    STEPS = 100000,    /* by which a step is measured */
    TRIALS = 5,        /* of which the fastest counts */
};

typedef int wait_function(int, struct epoll_event *, int, int);

/* What the process used: the file's content. */
typedef struct account {
    int64_t own_ns;   /* CPU time without what was spent here */
    int64_t spent_ns; /* CPU time that was spent here */
    int64_t looks;    /* how often it asked for events */
} account;

static wait_function *real_wait;
static double share;
static double step_ns;
static account nowhere;
static account *kept = &nowhere;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int64_t clock_ns(clockid_t clock)
{
    struct timespec now;
    (void)clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Steps of which each needs the result of the one before. */
static void spend(int64_t steps)
{
    uint64_t state = (uint64_t)steps;
    for (; steps > 0; steps--) __asm__ volatile("imul %0, %0" : "+r"(state));
}

static void open_account(const char *place)
{
    char path[4096];
    (void)snprintf(path, sizeof path, "%s.%d", place, (int)getpid());
    const int fd = open(path, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, sizeof *kept) != 0) return;
    void *mapped = mmap(NULL, sizeof *kept, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped != MAP_FAILED) kept = mapped;
    (void)close(fd);
}

__attribute__((constructor)) static void begin(void)
{
    const char *asked = getenv("SLOWED_SHARE");
    const char *place = getenv("SLOWED_ACCOUNT");
    real_wait = (wait_function *)dlsym(RTLD_NEXT, "epoll_wait");
    share = asked != NULL ? strtod(asked, NULL) : 0.0;
    int64_t fastest_ns = INT64_MAX;
    for (int i = 0; i < TRIALS; i++) {
        const int64_t from_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
        spend(STEPS);
        const int64_t took_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID) - from_ns;
        if (took_ns < fastest_ns) fastest_ns = took_ns;
    }
    step_ns = (double)fastest_ns / STEPS;
    if (place != NULL) open_account(place);
}

int epoll_wait(int epoll, struct epoll_event *events, int room, int timeout_ms)
{
    (void)pthread_mutex_lock(&lock);
    kept->own_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - kept->spent_ns;
    kept->looks++;
    const double owed_ns = share * (double)kept->own_ns - (double)kept->spent_ns;
    if (owed_ns > LEAST_NS) {
        const int64_t from_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
        spend((int64_t)(owed_ns / step_ns));
        kept->spent_ns += clock_ns(CLOCK_THREAD_CPUTIME_ID) - from_ns;
    }
    (void)pthread_mutex_unlock(&lock);
    return real_wait(epoll, events, room, timeout_ms);
}
