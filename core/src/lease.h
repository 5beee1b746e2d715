/*
 * Changes that other processes make, and the lease under which a governor makes them: `set` and
 * `govern` of the requests (serve.h), for hz and the agent alike.
 *
 * A lever is a setting that may change while the process runs. Under a lease the values of before
 * are remembered, and are set again when it ends: by `govern 0`, or when the governor was not heard
 * for as long as it said. What has another value by then than the governor gave it is somebody
 * else's: it is taken, and stays as it is.
 */
#ifndef HZ_LEASE_H
#define HZ_LEASE_H

#include <stdbool.h>
#include <stddef.h>

#include "text.h"

/* One lever and the value that it is to have, both as text. */
typedef struct hz_setting {
    const char *name;  /* as in the table */
    const char *value; /* as the environment would hold it */
} hz_setting;

/* What a process lets others change. */
typedef struct hz_levers {
    const char *allocator; /* begins the answers */
    /* All take effect, or none. NULL: done; else a word for programs, and a sentence for people. */
    const char *(*set)(const hz_setting *settings, size_t count, char *sentence, size_t size);
    /* The value that `set` would take to leave it so; false: there is no such lever. */
    bool (*get)(const char *name, char *value, size_t size);
} hz_levers;

#pragma GCC visibility push(hidden)

/* Answers `set`, followed by lines NAME=VALUE. */
void hz_lease_set(const hz_levers *levers, char *lines, hz_text *answer);
/* Answers `govern SECONDS`, followed by token=HEX and lines NAME=VALUE. */
void hz_lease_govern(const hz_levers *levers, const char *seconds, char *lines, hz_text *answer);
/* How long a thread may wait that ends the lease in time, in ms; -1: for ever. */
int hz_lease_wait_ms(void);
/* Ends a lease whose time is over, or any. */
void hz_lease_end_in_time(void);
void hz_lease_end(void);
/* Whether a governor has a lease now. */
bool hz_lease_is_on(void);
/* Adds "NAME":VALUE to an object, behind a comma unless it is the first. */
void hz_lease_add_value(hz_text *answer, const char *name, const char *value);

#pragma GCC visibility pop

#endif
