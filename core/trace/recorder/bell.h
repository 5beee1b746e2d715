/*
 * How a recorder that sleeps is found and woken: a small segment of shared memory, which hz-record
 * finds in the list of what the process has mapped.
 */
#ifndef HZ_RECORDER_BELL_H
#define HZ_RECORDER_BELL_H

#include <stdbool.h>
#include <stddef.h>

/* Makes this process's segment; false when that is not possible. */
bool hz_bell_hang(void);

/* Whether hz-record has rung since the last answer. */
bool hz_bell_rings(void);

/* Copies where the pool is; false when that is no whole path. */
bool hz_bell_answer(char *path, size_t size);

#endif
