/*
 * The background thread that returns memory while a program rests (rest.c): how it is made, and
 * what the slow paths do for it: they wake it when it sleeps without a timer.
 */
#ifndef HZ_REST_H
#define HZ_REST_H

#include <pthread.h>

#include "atomic.h"
#include "compiler.h"
#include "types.h"

#pragma GCC visibility push(hidden)

typedef enum hz_rest_word {
    HZ_REST_WATCHES =
        0,          /* it looks every now and then whether the program rests; or there is none */
    HZ_REST_SLEEPS, /* nothing was left to return: it sleeps until a slow free wakes it */
    HZ_REST_ENDS,   /* it is to end at once */
} hz_rest_word;

typedef struct hz_rest_state {
    HZ_ALIGNED_TO_LINE _Atomic uint32_t word; /* hz_rest_word: what the thread sleeps on */
} hz_rest_state;

/* How the background thread is made and waited for. */
typedef struct hz_thread_calls {
    int (*make)(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *),
                void *argument);                       /* pthread_create */
    int (*join)(pthread_t thread, void **result);      /* pthread_join */
    size_t (*least)(const pthread_attr_t *attributes); /* bytes of a stack that the C library and
                                                          thread-local variables take; NULL: the
                                                          C library adds them by itself */
} hz_thread_calls;

extern hz_rest_state hz_rest;

void hz_rest_wake(void);

#pragma GCC visibility pop

/* For a call after which there may be something to return. */
HZ_FAST void hz_rest_note(void)
{
    if (HZ_UNLIKELY(hz_atomic_peek(&hz_rest.word) == HZ_REST_SLEEPS)) hz_rest_wake();
}

#endif
