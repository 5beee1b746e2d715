/*
 * Short names of allocators, from the files of their libraries.
 */
#ifndef HZ_BENCH_ALLOCATOR_NAME_H
#define HZ_BENCH_ALLOCATOR_NAME_H

#include <stddef.h>

/* A name as `glibc` or `hz` for a library's path, or NULL when it is no allocator known here. */
const char *hz_allocator_name(const char *path);

/* What follows the last slash of a path. */
const char *hz_base_name(const char *path);

#endif
