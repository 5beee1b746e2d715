/*
 * What the agent asks the allocators of its process.
 *
 * Each function looks its allocator up by the names of that allocator's own interface. False: the
 * process has no such allocator. They are called by the agent's thread alone.
 */
#ifndef HZ_AGENT_ASKED_H
#define HZ_AGENT_ASKED_H

#include <stdbool.h>

#include "text.h"

#pragma GCC visibility push(hidden)

/* The file that gives the process malloc. */
const char *agent_provider(void);
bool agent_is_on_hz(void);

/* Adds an object with what an allocator holds and its settings. */
bool agent_add_jemalloc(hz_text *answer);
bool agent_add_mimalloc(hz_text *answer);
bool agent_add_tcmalloc(hz_text *answer);
bool agent_add_glibc(hz_text *answer);

/* Has an allocator give back what it does not need, and adds its name. */
bool agent_trim_jemalloc(hz_text *answer);
bool agent_trim_mimalloc(hz_text *answer);
bool agent_trim_tcmalloc(hz_text *answer);
bool agent_trim_glibc(hz_text *answer);

#pragma GCC visibility pop

#endif
