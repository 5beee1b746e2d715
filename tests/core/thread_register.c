/*
 * A library that stands before or behind a preloaded libhz.so and keeps a register of threads, as
 * profilers and checkers do. It gives each thread that is made through it a block, allocates on the
 * new thread before the thread's own function runs, and ends the program when a thread is joined
 * that it does not know.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int make_form(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
typedef int join_form(pthread_t, void **);

typedef struct record {
    pthread_t thread;
    void *(*start)(void *);
    void *argument;
    struct record *next;
} record;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static record *all;

__attribute__((constructor)) static void enter_main(void)
{
    static record of_main;
    of_main.thread = pthread_self();
    all = &of_main;
}

static void *run(void *argument)
{
    const record *self = argument;
    free(malloc(100));
    void *result = self->start(self->argument);
    free(malloc(200));
    return result;
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *),
                   void *argument)
{
    make_form *const behind = (make_form *)(uintptr_t)dlsym(RTLD_NEXT, "pthread_create");
    record *self = calloc(1, sizeof *self);
    if (self == NULL) abort();
    *self = (record){.start = start, .argument = argument};
    (void)pthread_mutex_lock(&lock);
    const int failure = behind(thread, attributes, run, self);
    if (failure == 0) {
        *self = (record){*thread, start, argument, all};
        all = self;
    }
    (void)pthread_mutex_unlock(&lock);
    return failure;
}

static bool forget(pthread_t thread)
{
    bool is_known = false;
    (void)pthread_mutex_lock(&lock);
    for (record **at = &all; *at != NULL && !is_known; at = is_known ? at : &(*at)->next) {
        is_known = pthread_equal((*at)->thread, thread) != 0;
        if (is_known) *at = (*at)->next;
    }
    (void)pthread_mutex_unlock(&lock);
    return is_known;
}

int pthread_join(pthread_t thread, void **result)
{
    join_form *const behind = (join_form *)(uintptr_t)dlsym(RTLD_NEXT, "pthread_join");
    if (!forget(thread)) abort();
    return behind(thread, result);
}
