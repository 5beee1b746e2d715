/*
 * What the agent's files share.
 */
#ifndef HZ_AGENT_H
#define HZ_AGENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lease.h"
#include "text.h"

typedef int jemalloc_ctl(const char *name, void *old, size_t *old_size, void *fresh,
                         size_t fresh_size);

/* A function of the process by its name; the type is the caller's. */
void *function_named(const char *name);
/* The same into a pointer; false: the process has none. */
#define FIND(pointer, name) ((*(void **)&(pointer) = function_named(name)) != NULL)
/* jemalloc's mallctl; NULL: the process has none. */
jemalloc_ctl *jemalloc_find(void);
bool jemalloc_read(const char *name, void *value, size_t size);
/* 20109 is mimalloc 2.1.9; 0: the process has none. */
int mimalloc_version(void);
/* Whether glibc gives the process malloc: beside another allocator its own is unused. */
bool is_on_glibc(void);

/* What may change in this process. */
extern const hz_levers agent_levers;
/* Adds the levers of one allocator, and their values, to an object. */
void agent_add_levers(hz_text *answer, const char *allocator);
/* Notes what glibc was asked for, before the program can change its variables. */
void agent_levers_begin(void);

#endif
