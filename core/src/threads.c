/*
 * pthread_create: the C library's, and after the first thread the background thread of rest.c. In
 * the shared library only: in a static program nothing leads to the C library's function behind
 * this one.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>

#include "internal.h"
#include "override.h"

static uintptr_t address_behind(const char *name)
{
    return (uintptr_t)dlsym(RTLD_NEXT, name);
}

/* The functions behind this library's own: of the C library, or of a library that stands between
 * and knows the threads that it has made. glibc's least stack is what Rust's threads ask for, too.
 * Looked up before the program has threads: a later look could wait for a thread that is loading a
 * library. */
__attribute__((constructor)) static const hz_thread_calls *find_calls(void)
{
    static _Atomic uint32_t is_known;
    static hz_thread_calls calls;
    if (hz_atomic_get(&is_known) == 0) {
        calls.make = (__typeof__(calls.make))address_behind("pthread_create");
        calls.join = (__typeof__(calls.join))address_behind("pthread_join");
        calls.least = (__typeof__(calls.least))address_behind("__pthread_get_minstack");
        if (calls.least == NULL) (void)dlerror(); /* the program should not find this failure */
        hz_atomic_put(&is_known, 1);
    }
    return &calls;
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
    const hz_thread_calls *calls = find_calls();
    if (calls->make == NULL || calls->join == NULL) return EAGAIN;
    hz_fork_notice(); /* the new thread, which is in no fork, could not */
    const int failure = calls->make(thread, attributes, start, argument);
    if (failure == 0 && !is_of_hz(start)) hz_rest_thread_made(calls);
    return failure;
}
