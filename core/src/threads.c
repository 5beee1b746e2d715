/*
 * pthread_create: the C library's, and after the first thread the worker of rest.c. In the shared
 * library only: in a static program nothing leads to the C library's function behind this one.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>

#include "internal.h"
#include "override.h"

/* The function of that name behind this library's own. Looked up before the program has threads: a
 * later look could wait for a thread that is loading a library. */
__attribute__((constructor)) static hz_thread_make *find_make(void)
{
    static _Atomic(void *) known;
    void *found = hz_atomic_get(&known);
    if (found == NULL) {
        found = dlsym(RTLD_NEXT, "pthread_create");
        hz_atomic_put(&known, found);
    }
    return (hz_thread_make *)(uintptr_t)found;
}

/* The ends of this library in memory, as the linker tells them. */
extern const char __ehdr_start[] __attribute__((visibility("hidden")));
extern const char etext[] __attribute__((visibility("hidden")));

/* hz's own threads (background.c, serve.c, rest.c) begin in this library. */
static bool is_of_hz(void *(*start)(void *))
{
    return (uintptr_t)start >= (uintptr_t)__ehdr_start && (uintptr_t)start < (uintptr_t)etext;
}

DROP_IN int pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                           void *(*start)(void *), void *argument)
{
    hz_thread_make *make = find_make();
    if (make == NULL) return EAGAIN;
    const int failure = make(thread, attributes, start, argument);
    if (failure == 0 && !is_of_hz(start)) hz_rest_thread_made(make);
    return failure;
}
