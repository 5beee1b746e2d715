/*
 * The two halves of the simulation of caches: lines.c notes what threads do, caches.c plays it. In
 * this build the compiler includes this file before each source of hz.
 */
#ifndef HZ_LINES_H
#define HZ_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { HZ_LINES_CACHES = 128 }; /* and threads whose accesses are noted: the first ones */

#pragma GCC visibility push(default)

/* memmove and memset, noted. */
void *hz_lines_copy(void *to, const void *from, size_t bytes);
void *hz_lines_set(void *to, int value, size_t bytes);

#pragma GCC visibility pop
#pragma GCC visibility push(hidden)

/* A thread with cache `lane` reads or writes the word at `address`; it does not wait for what is
 * buffered. */
void hz_caches_access(uint32_t lane, uint64_t address, bool is_write, bool is_buffered);
/* Writes what came of it to a file: `calls` were played of the program's `all_calls`. */
void hz_caches_write(const char *path, uint32_t threads, uint64_t calls, uint64_t all_calls);

#pragma GCC visibility pop

#ifndef HZ_LEDGER_UNSEEN
#undef memcpy
#undef memmove
#undef memset
#define memcpy(to, from, bytes) hz_lines_copy((to), (from), (bytes))
#define memmove(to, from, bytes) hz_lines_copy((to), (from), (bytes))
#define memset(to, value, bytes) hz_lines_set((to), (value), (bytes))
#endif

#endif
