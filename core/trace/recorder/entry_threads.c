/*
 * pthread_create and pthread_join: when a thread may start, and when another one waited for its
 * end. Threads that are made in other ways are recorded, too; only their origin is not known.
 */
#include "entry.h"

#include <errno.h>
#include <pthread.h>

typedef int create_form(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *),
                        void *argument);
typedef int join_form(pthread_t thread, void **result);

ENTRY int pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                         void *(*start)(void *), void *argument)
{
    static create_form *next;
    if (next == NULL) *(void **)&next = hz_next_find("pthread_create");
    if (next == NULL) return EAGAIN;
    hz_log_event(HZ_LOG_CREATING, NULL, 0);
    const int failure = next(thread, attributes, start, argument);
    hz_log_event(HZ_LOG_CREATED, failure == 0 ? (const void *)*thread : NULL, 0);
    return failure;
}

ENTRY int pthread_join(pthread_t thread, void **result)
{
    static join_form *next;
    if (next == NULL) *(void **)&next = hz_next_find("pthread_join");
    if (next == NULL) return EINVAL;
    const int failure = next(thread, result);
    if (failure == 0) hz_log_event(HZ_LOG_JOINED, (const void *)thread, 0);
    return failure;
}
