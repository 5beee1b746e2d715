/*
 * Waking a recorder that sleeps: its bell is found in the memory of its process (log_format.h).
 */
#ifndef HZ_TRACE_RING_H
#define HZ_TRACE_RING_H

#include <sys/types.h>

#include "log_format.h"

/* The bell of a process; refuses with a sentence one that has none which this user can ring. */
hz_bell *hz_bell_find(pid_t pid);

/* Tells the recorder where the pool is. */
void hz_bell_ring(hz_bell *bell, const char *pool_path);

#endif
